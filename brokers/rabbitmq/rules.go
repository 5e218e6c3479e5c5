package rabbitmq

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// role is what a queue is for, and so what may be asked of it.
type role uint8

const (
	ours     role = iota // made by workers for themselves: it is as they make it
	entry                // of a topic: whoever made it
	letters              // for dead letters
	receipts             // for receipts
)

// quality is what is known of a queue: its arguments, and its policies if they
// could be read.
type quality struct {
	queue               // as it would be declared
	kind     string     // quorum, classic or stream
	args     amqp.Table // what is in force, and properties that are not as they should be
	declared amqp.Table // of these the arguments of the queue; the others are a policy's
	unknown  bool       // its arguments could not be read
	denied   error      // it does not exist, and the user may not declare it
	read     bool       // its policies are in args
	policy   object     // what its policies set
	ruling   ruling     // the policies, as far as they are known
	wanted   object     // what they should set, by the findings so far
	members  []string   // nodes, if they could be read
	vhost    string
	drops    bool // the broker limits deliveries by default, as RabbitMQ 4 does
}

const (
	typeQuorum  = "quorum"
	typeClassic = "classic"
	typeStream  = "stream"
)

// rule is a fault that a queue may have, and its cure: a policy that sets something,
// or else fix.
type rule struct {
	setting  string
	severity inspect.Severity
	broken   func(q quality) bool
	value    string // unless it is that of the setting
	want     string // with names of facts in braces, as why has
	why      string
	set      func(q quality) object
	beside   []string // keys of set that may stay as arguments have them
	fix      func(q quality) string
}

// rules are for queues that others may have made, in the order of their harm.
var rules = []rule{
	{setting: argType, severity: inspect.Blocking, broken: func(q quality) bool { return q.kind == typeStream }, value: typeStream, want: typeQuorum,
		why: "nothing can be taken out of a stream, and all of it is read again",
		fix: func(quality) string { return "read it with a client of streams, or use another name" }},
	fleeting(propertyDurable),
	fleeting(propertyAutoDelete),
	fleeting(propertyExclusive),
	expiry(argTTL, "what nobody has taken by then is lost"),
	expiry(argExpires, "the queue is deleted with all that is in it when nobody has read it for so long"),
	{setting: argOverflow, severity: inspect.Blocking, broken: func(q quality) bool { return q.lengthLimit() != "" && q.overflow() == overflowDrop }, value: overflowDrop, want: overflowReject,
		why: "above {length} the oldest messages are lost{unless}",
		set: func(quality) object { return object{"overflow": overflowReject} }},
	{setting: argLimit, severity: inspect.Blocking, broken: func(q quality) bool { return q.endsSoon() && q.text(argExchange) == "" }, want: strconv.Itoa(deliveryLimit),
		why: "a message is lost that came back so often, as in deployments and crashes: the queue has no dead-letter exchange{unless}",
		set: quality.net, beside: besideNet},
	{setting: argLimit, severity: inspect.Noted, broken: func(q quality) bool { return q.endsSoon() && q.text(argExchange) != "" }, want: strconv.Itoa(deliveryLimit),
		why: "the broker itself dead-letters a message that came back so often, as in deployments and crashes, without its story",
		set: func(quality) object { return object{"delivery-limit": deliveryLimit} }},
	{setting: argLimit, severity: inspect.Noted, broken: func(q quality) bool {
		return q.role == letters && q.kind == typeQuorum && q.text(argExchange) == "" && q.args[argLimit] == nil && q.drops
	}, want: strconv.Itoa(unlimited),
		why: "the broker drops a dead letter that was looked at and given back 20 times",
		set: func(quality) object { return object{"delivery-limit": -1} }},
	{setting: argExchange, severity: inspect.Noted, broken: func(q quality) bool { return q.kept && q.kind == typeQuorum && q.text(argExchange) == "" }, want: "{exchange}",
		why: "a message with which all workers die is dropped by the broker after 20 deliveries, and one that no dead letter has room for stays with the worker",
		set: quality.net, beside: besideNet},
	{setting: argStrategy, severity: inspect.Noted, broken: func(q quality) bool {
		return q.role == entry && q.kind == typeQuorum && q.text(argExchange) != "" && !q.keeps()
	}, want: atLeastOnce,
		why: "what the broker itself dead-letters may be lost on its way",
		set: func(quality) object { return object{"dead-letter-strategy": atLeastOnce, "overflow": overflowReject} }},
	{setting: argType, severity: inspect.Noted, broken: func(q quality) bool { return q.kind == typeClassic }, value: typeClassic, want: typeQuorum,
		why: "it is on one node alone{uncounted}",
		fix: func(quality) string { return "move to a quorum queue, as the page says" }},
	// Arguments of ours win over policies.
	{setting: "policy", severity: inspect.Unverified, broken: func(q quality) bool { return !q.read && !maps.Equal(q.args, q.queue.args) }, value: "not visible to AMQP",
		why: "a policy could have messages expire, or drop the oldest ones",
		fix: func(quality) string {
			return "look with rabbitmqctl list_queues name policy, or give the address of the management API (Options.ManagementURL)"
		}},
}

// fleeting is about a property of queues that do not last.
func fleeting(property string) rule {
	return rule{setting: property, severity: inspect.Blocking, broken: func(q quality) bool { return q.args[property] != nil }, want: lasting[property],
		why: "what is in it is lost when the broker restarts, or when its consumer leaves", fix: func(quality) string { return another }}
}

// expiry is about time that a queue gives its messages, or itself.
func expiry(setting, why string) rule {
	return rule{setting: setting, severity: inspect.Blocking, broken: func(q quality) bool { return q.args[setting] != nil }, want: notSet,
		why: why, fix: func(q quality) string { return q.without(strings.TrimPrefix(setting, "x-")) }}
}

const notSet = "not set"

// lasting are the properties of a queue that lasts.
var lasting = map[string]string{propertyDurable: "true", propertyAutoDelete: "false", propertyExclusive: "false"}

// judge finds all that is wrong with a queue.
func (q quality) judge() (found []inspect.Finding) {
	if q.unknown {
		return []inspect.Finding{q.finding(inspect.Unverified, "", "", "",
			"its arguments could not be compared: the broker does that only for users with the right to configure the queue",
			"grant that right, or give the address of the management API (Options.ManagementURL)")}
	}
	if q.role == ours {
		return q.compare()
	}
	q.wanted = object{}
	maps.Copy(q.wanted, q.policy)
	facts := strings.NewReplacer("{length}", q.lengthLimit(), "{unless}", q.unless(), "{exchange}", textOf(q.queue.args[argExchange]), "{uncounted}", q.uncounted())
	for _, r := range rules {
		if !r.broken(q) {
			continue
		}
		fix := ""
		if r.set != nil {
			fix = q.mend(r.set(q), r.beside...)
		} else {
			fix = r.fix(q)
		}
		found = append(found, q.finding(r.severity, r.setting, cmp.Or(r.value, textOf(q.args[r.setting])), facts.Replace(r.want), facts.Replace(r.why), fix))
		if q.kind == typeStream { // nothing else matters
			break
		}
	}
	return found
}

func (q quality) finding(s inspect.Severity, setting, value, want, why, fix string) inspect.Finding {
	return inspect.Finding{Severity: s, Topic: q.name, Setting: setting, Value: value, Want: want, Why: why, Fix: fix, See: existing}
}

// lengthLimit is the limit above which the queue overflows, or "".
func (q quality) lengthLimit() string {
	for _, limit := range []string{argMaxLength, argMaxBytes} {
		if n, set := q.args[limit].(int64); set {
			return fmt.Sprintf("%s of %d", limit, n)
		}
	}
	return ""
}

func (q quality) overflow() string { return cmp.Or(q.text(argOverflow), overflowDrop) }

// endsSoon reports whether deployments alone use up the limit of deliveries.
func (q quality) endsSoon() bool {
	n, set := q.args[argLimit].(int64)
	return q.kind == typeQuorum && set && n < deliveryLimit && (n >= 0 || !q.drops)
}

// uncounted is what a queue of a topic lacks that is no quorum queue.
func (q quality) uncounted() string {
	if q.role != entry {
		return ""
	}
	return ", and does not count deliveries: a message that kills its workers is never found, and is delivered again without end"
}

// another is the way out where arguments cannot be changed.
const another = "arguments cannot be changed: delete the queue when it is empty and let Run declare it anew, or use another name"

// harmless are arguments that void no promise on a quorum queue that refuses
// what it has no room for.
var harmless = []string{
	argMaxLength, argMaxBytes, "x-max-in-memory-length", "x-max-in-memory-bytes", argSingle,
	"x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size",
}

// compare finds how a queue of ours differs from what it must be.
func (q quality) compare() (found []inspect.Finding) {
	differs := func(setting, value, want string) {
		found = append(found, q.finding(inspect.Blocking, setting, value, want, "retries would be late, lost or stuck", another))
	}
	if q.kind != typeQuorum {
		differs(argType, q.kind, typeQuorum)
		return found
	}
	for _, name := range slices.Sorted(maps.Keys(q.args)) {
		if _, wanted := q.queue.args[name]; !wanted && !slices.Contains(harmless, name) {
			differs(name, textOf(q.args[name]), cmp.Or(lasting[name], notSet))
		}
	}
	_, delays := q.queue.args[argTTL]
	for _, name := range slices.Sorted(maps.Keys(q.queue.args)) {
		is, set := q.args[name]
		switch n, _ := is.(int64); {
		case is == q.queue.args[name]:
		case name == argLimit && !delays && (!set || n >= deliveryLimit): // not set is 20 since RabbitMQ 4, and no limit before
		case (name == argExchange || name == argKey) && !delays && q.text(argExchange) != "": // its owner chooses the key, too
		default:
			differs(name, textOf(is), textOf(q.queue.args[name]))
		}
	}
	return found
}

func textOf(value any) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

func (q quality) text(name string) string {
	text, _ := q.args[name].(string)
	return text
}

// keeps reports whether the broker keeps what it is told to dead-letter.
func (q quality) keeps() bool {
	return !q.unknown && q.kind == typeQuorum && q.text(argExchange) != "" && q.text(argStrategy) == atLeastOnce && q.text(argOverflow) == overflowReject
}

// net is what the queue has to have for the broker's own dead letters to reach those
// of the topic.
func (q quality) net() object {
	return object{
		"dead-letter-exchange": q.queue.args[argExchange], "dead-letter-routing-key": q.queue.args[argKey],
		"dead-letter-strategy": atLeastOnce, "overflow": overflowReject, "delivery-limit": deliveryLimit,
	}
}

// besideNet are the keys of net whose values may stay as arguments set them.
var besideNet = []string{"dead-letter-routing-key", "dead-letter-strategy", "overflow", "delivery-limit"}

// mend is the command that sets a policy for the queue, which has no effect where
// an argument is set: some keys may be left out then. Only one policy of a queue is in
// force, so it repeats the settings of the present one and of earlier findings.
func (q quality) mend(definition object, optional ...string) string {
	definition = maps.Clone(definition)
	for name := range definition {
		if _, set := q.declared["x-"+name]; set && !slices.Contains(optional, name) {
			return another
		} else if set {
			delete(definition, name)
		}
	}
	maps.Copy(q.wanted, definition)
	priority := ""
	switch u := q.ruling.user; {
	case u != nil:
		priority = fmt.Sprintf(" --priority %.0f", max(10, u.Priority+1))
	case q.ruling.operator == nil && len(q.policy) > 0:
		priority = " --priority 10" // the default is 0
	}
	wanted := q.wanted
	if len(wanted) == 0 { // the broker refuses an empty policy
		wanted = object{"overflow": overflowReject}
	}
	return fmt.Sprintf("rabbitmqctl set_policy -p %s%s --apply-to queues %s %s %s", shell(q.vhost), priority, shell(q.name),
		shell("^"+regexp.QuoteMeta(q.name)+"$"), shell(jsonOf(wanted)))
}

// unless says that a policy may have mended the queue, if policies could not be read.
func (q quality) unless() string {
	if q.read {
		return ""
	}
	return ", unless a policy says otherwise (Run sees policies only with Options.ManagementURL)"
}

// jsonOf is the JSON of a definition, which cannot fail: it has strings and numbers.
func jsonOf(o object) string {
	text, _ := json.Marshal(o)
	return string(text)
}

// shell quotes s for a shell.
func shell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
