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
	args     amqp.Table // what is in force
	declared amqp.Table // of these the arguments of the queue; the others are a policy's
	flaws    []string   // durable=false and the like
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

// rule finds one fault of a queue. An empty why finds none.
type rule func(q quality) inspect.Finding

// rules are for queues that others may have made, in the order of their harm.
var rules = []rule{
	isStream, isFleeting,
	expiry(argTTL, "what nobody has taken by then is lost"),
	expiry(argExpires, "the queue is deleted with all that is in it when nobody has read it for so long"),
	dropsHead, limitsDeliveries, losesDeaths, isClassic, isUnread,
}

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
	for _, rule := range rules {
		if f := rule(q); f.Why != "" {
			found = append(found, f)
		}
		if q.kind == typeStream { // nothing else matters
			break
		}
	}
	return found
}

const (
	typeQuorum  = "quorum"
	typeClassic = "classic"
	typeStream  = "stream"
)

func (q quality) finding(s inspect.Severity, setting, value, want, why, fix string) inspect.Finding {
	return inspect.Finding{Severity: s, Topic: q.name, Setting: setting, Value: value, Want: want, Why: why, Fix: fix, See: existing}
}

// another is the way out where arguments cannot be changed.
const another = "arguments cannot be changed: delete the queue when it is empty and let Run declare it anew, or use another name"

func isStream(q quality) inspect.Finding {
	if q.kind != typeStream {
		return inspect.Finding{}
	}
	return q.finding(inspect.Blocking, argType, typeStream, typeQuorum, "nothing can be taken out of a stream, and all of it is read again", "read it with a client of streams, or use another name")
}

func isFleeting(q quality) inspect.Finding {
	if len(q.flaws) == 0 {
		return inspect.Finding{}
	}
	return q.finding(inspect.Blocking, q.flaws[0], "", "", "what is in it is lost when the broker restarts, or when its consumer leaves", another)
}

// expiry is about time that a queue gives its messages, or itself.
func expiry(setting, why string) rule {
	return func(q quality) inspect.Finding {
		n, set := q.args[setting].(int64)
		if !set {
			return inspect.Finding{}
		}
		return q.finding(inspect.Blocking, setting, strconv.FormatInt(n, 10), "not set", why, q.without(strings.TrimPrefix(setting, "x-")))
	}
}

func dropsHead(q quality) inspect.Finding {
	overflow := cmp.Or(q.text(argOverflow), overflowDrop)
	for _, limit := range []string{argMaxLength, argMaxBytes} {
		if n, set := q.args[limit].(int64); set && overflow == overflowDrop {
			return q.finding(inspect.Blocking, argOverflow, overflow, overflowReject, fmt.Sprintf("above %s of %d the oldest messages are lost", limit, n)+q.unless(),
				q.mend(map[string]any{"overflow": overflowReject}))
		}
	}
	return inspect.Finding{}
}

// limitsDeliveries is about a limit that deployments alone use up.
func limitsDeliveries(q quality) inspect.Finding {
	n, set := q.args[argLimit].(int64)
	if q.kind != typeQuorum || !set || n >= deliveryLimit || n < 0 && q.drops {
		return inspect.Finding{}
	}
	severity, why := inspect.Blocking, "a message is lost that came back so often, as in deployments and crashes: the queue has no dead-letter exchange"
	fix := ""
	if q.text(argExchange) == "" {
		why += q.unless()
		fix = q.mend(q.netPolicy(), beside...)
	} else {
		severity, why = inspect.Noted, "the broker itself dead-letters a message that came back so often, as in deployments and crashes, without its story"
		fix = q.mend(map[string]any{"delivery-limit": deliveryLimit})
	}
	return q.finding(severity, argLimit, strconv.FormatInt(n, 10), strconv.Itoa(deliveryLimit), why, fix)
}

// losesDeaths is about what the broker itself gives up.
func losesDeaths(q quality) inspect.Finding {
	if q.kind != typeQuorum || q.role == receipts {
		return inspect.Finding{}
	}
	exchange := q.text(argExchange)
	switch {
	case exchange == "" && q.role == letters:
		if _, set := q.args[argLimit]; set || !q.drops {
			return inspect.Finding{}
		}
		return q.finding(inspect.Noted, argLimit, "", strconv.Itoa(unlimited), "the broker drops a dead letter that was looked at and given back 20 times",
			q.mend(map[string]any{"delivery-limit": -1}))
	case exchange == "" && !q.kept:
		return inspect.Finding{}
	case exchange == "":
		return q.finding(inspect.Noted, argExchange, "", q.queue.args[argExchange].(string),
			"a message with which all workers die is dropped by the broker after 20 deliveries, and one that no dead letter has room for stays with the worker",
			q.mend(q.netPolicy(), beside...))
	case q.role == entry && (q.text(argStrategy) != atLeastOnce || q.text(argOverflow) != overflowReject):
		return q.finding(inspect.Noted, argStrategy, q.text(argStrategy), atLeastOnce, "what the broker itself dead-letters may be lost on its way",
			q.mend(map[string]any{"dead-letter-strategy": atLeastOnce, "overflow": overflowReject}))
	}
	return inspect.Finding{}
}

func isClassic(q quality) inspect.Finding {
	if q.kind != typeClassic {
		return inspect.Finding{}
	}
	why := "it is on one node alone"
	if q.role == entry {
		why += ", and does not count deliveries: a message that kills its workers is never found, and is delivered again without end"
	}
	return q.finding(inspect.Noted, argType, typeClassic, typeQuorum, why, "move to a quorum queue, as the page says")
}

// isUnread is about policies of queues that others have made: arguments of ours
// win over them.
func isUnread(q quality) inspect.Finding {
	if q.read || maps.EqualFunc(q.args, q.queue.args, func(a, b any) bool { return a == b }) {
		return inspect.Finding{}
	}
	return q.finding(inspect.Unverified, "policy", "not visible to AMQP", "",
		"a policy could have messages expire, or drop the oldest ones", "look with rabbitmqctl list_queues name policy, or give the address of the management API (Options.ManagementURL)")
}

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
	for _, flaw := range q.flaws {
		differs(flaw, "", "")
	}
	for _, name := range slices.Sorted(maps.Keys(q.args)) {
		if _, wanted := q.queue.args[name]; !wanted && !slices.Contains(harmless, name) {
			differs(name, fmt.Sprint(q.args[name]), "not set")
		}
	}
	_, shelf := q.queue.args[argTTL]
	for _, name := range slices.Sorted(maps.Keys(q.queue.args)) {
		is, set := q.args[name]
		switch n, _ := is.(int64); {
		case is == q.queue.args[name]:
		case name == argLimit && !shelf && (!set || n >= deliveryLimit): // not set is 20 since RabbitMQ 4, and no limit before
		case (name == argExchange || name == argKey) && !shelf && q.text(argExchange) != "": // its owner chooses the key, too
		default:
			differs(name, textOf(is), fmt.Sprint(q.queue.args[name]))
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

// netPolicy is what the queue has to have for the broker's own dead letters to
// reach those of the topic.
func (q quality) netPolicy() map[string]any {
	return map[string]any{
		"dead-letter-exchange": q.queue.args[argExchange], "dead-letter-routing-key": q.queue.args[argKey],
		"dead-letter-strategy": atLeastOnce, "overflow": overflowReject, "delivery-limit": deliveryLimit,
	}
}

// beside are the keys of netPolicy whose values may stay as arguments set them.
var beside = []string{"dead-letter-routing-key", "dead-letter-strategy", "overflow", "delivery-limit"}

// mend is the command that sets a policy for the queue, which has no effect where
// an argument is set: some keys may be left out then. Only one policy of a queue is in
// force, so it repeats the settings of the present one and of earlier findings.
func (q quality) mend(definition map[string]any, optional ...string) string {
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
