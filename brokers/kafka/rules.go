package kafka

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// setUp is the page about topics and rights.
const setUp = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/set-up-topics-on-kafka.md"

const (
	// letterPartitions are enough for what is rare, and read by hand. Letters of one
	// key stay in order: they share a partition, however many there are.
	letterPartitions = 3

	// usualLargest is what a topic takes unless somebody says otherwise.
	usualLargest = 1_048_588

	// usualReplicas are what a topic has that outlives the loss of a broker, and of
	// another one while that is replaced.
	usualReplicas = 3

	// briefLetters is for how long dead letters should be kept at least.
	briefLetters = 14 * 24 * time.Hour
)

// role is what a topic is for, and so what may be asked of it.
type role uint8

const (
	entry    role = iota // is read
	delays               // where retries wait
	letters              // for dead letters
	receipts             // for receipts
)

// quality is what is known of a topic.
type quality struct {
	name     string
	role     role
	longest  time.Duration // delay that may wait in it
	needed   time.Duration // the longest delay that the subscription asks for: in a delay topic, or after an entry topic
	made     newTopic      // as Open creates it
	state    topicState
	settings map[string]string // those in force; empty if they could not be read
	like     baseline
}

// baseline is what the topics that are read have, the most of each.
type baseline struct {
	largest  int // message, 0 if that is not known
	replicas int // the least, 0 if that is not known
	inSync   int // min.insync.replicas, 0 if that is not known
}

func (l baseline) with(topic topicState, settings map[string]string) baseline {
	if topic.exists() && (l.replicas == 0 || topic.replication < l.replicas) {
		l.replicas = topic.replication
	}
	l.largest = max(l.largest, intOf(settings["max.message.bytes"]))
	l.inSync = max(l.inSync, intOf(settings["min.insync.replicas"]))
	return l
}

// intOf reads a setting, which is 0 where it is not known.
func intOf(setting string) int {
	n, _ := strconv.Atoi(setting)
	return n
}

// rule is about a setting of topics with one of the roles. Either a single value is
// good, or there is a least one, where -1 means that there is no limit.
type rule struct {
	setting  string
	roles    []role
	severity inspect.Severity
	good     string
	least    func(q quality) int
	want     func(q quality) int // unless it is good, or the least
	why      string              // with names of facts in braces
}

const replicas = "replication factor" // which is no setting, but has rules as if it were

var (
	copies    = []role{delays, letters}
	messages  = []role{entry, delays, letters}
	afterLong = func(q quality) int { return int((q.needed + outage).Milliseconds()) }
	withRoom  = func(q quality) int { return q.like.largest + headroom }
)

// rules are for topics that others may have made, in the order of their harm. Of the
// rules for a setting only the first that a topic breaks counts.
var rules = []rule{
	{setting: "cleanup.policy", roles: copies, severity: inspect.Blocking, good: "delete",
		why: "compaction drops {copies} with equal keys"},
	{setting: "retention.bytes", roles: []role{delays}, severity: inspect.Blocking, good: "-1",
		why: "retries are deleted because there are many"},
	{setting: "retention.ms", roles: []role{delays}, severity: inspect.Blocking, least: quality.leastRetention, want: afterLong,
		why: "retries wait there for up to {delay}, and for the end of an outage: the least is {least}"},
	{setting: "retention.ms", roles: []role{entry}, severity: inspect.Noted, least: quality.leastRetention, want: afterLong, // its owner decides on it
		why: "the broker deletes messages of that age, even if no worker has handled them yet, as in an outage. Retries take up to {delay}: the least is {least}"},
	{setting: "retention.ms", roles: []role{letters}, severity: inspect.Noted, least: func(quality) int { return int(briefLetters.Milliseconds()) }, want: func(quality) int { return -1 },
		why: "dead letters are deleted after so long, whether anybody has looked at them or not"},
	// What a producer stores counts as it is, compressed or not.
	{setting: "max.message.bytes", roles: copies, severity: inspect.Blocking, least: func(q quality) int { return q.like.largest }, want: withRoom,
		why: "messages of up to {largest} bytes come in, and their copies have more headers: those that do not fit stop their partition"},
	{setting: "max.message.bytes", roles: copies, severity: inspect.Noted, least: withRoom,
		why: "it leaves no room for the headers of copies of the largest messages, of up to {largest} bytes: those that do not fit are not copied, or lose their body"},
	{setting: replicas, roles: copies, severity: inspect.Noted, least: func(q quality) int { return q.like.replicas },
		why: "{copies} are lost with fewer brokers than the messages that come in"},
	{setting: replicas, roles: messages, severity: inspect.Noted, least: quality.leastReplicas,
		why: "it is on one of {brokers} brokers: it stands still while that is down, and is lost with its disk"},
	{setting: "min.insync.replicas", roles: copies, severity: inspect.Noted,
		least: func(q quality) int { return min(q.like.inSync, q.state.replication) }, want: func(q quality) int { return q.like.inSync },
		why: "{copies} are confirmed by fewer brokers than the messages that come in, and lost with them"},
	{setting: "min.insync.replicas", roles: messages, severity: inspect.Noted, least: quality.leastInSync,
		why: "what a single broker has confirmed is lost with its disk, although others have copies of the topic"},
	{setting: "unclean.leader.election.enable", roles: messages, severity: inspect.Noted, good: "false",
		why: "a replica that is behind may become the leader, and what it lacks is lost, confirmed or not"},
}

// leastRetention is 0 for a topic that is read and only compacts: it deletes nothing
// by age.
func (q quality) leastRetention() int {
	if q.role == entry && q.settings["cleanup.policy"] == "compact" {
		return 0
	}
	return int((q.needed + leastOutage).Milliseconds())
}

func (q quality) leastReplicas() int {
	if q.state.replication != 1 {
		return 0
	}
	return min(q.state.brokers, usualReplicas)
}

func (q quality) leastInSync() int {
	if q.state.replication < usualReplicas {
		return 0
	}
	return 2
}

// judge finds all that is wrong with a topic.
func (q quality) judge() (found []inspect.Finding) {
	for _, r := range rules {
		told := slices.ContainsFunc(found, func(f inspect.Finding) bool { return f.Setting == r.setting })
		if f, broken := r.judge(q); broken && !told {
			found = append(found, f)
		}
	}
	return found
}

func (r rule) judge(q quality) (f inspect.Finding, broken bool) {
	value := q.settings[r.setting]
	if r.setting == replicas {
		value = strconv.Itoa(q.state.replication)
	}
	want, least := r.good, 0
	if r.least != nil {
		least = r.least(q)
		want = strconv.Itoa(least)
	}
	if r.want != nil {
		want = strconv.Itoa(r.want(q))
	}
	n, err := strconv.Atoi(value)
	isBelow := err == nil && n >= 0 && n < least
	if !slices.Contains(r.roles, q.role) || value == "" || value == r.good || r.good == "" && !isBelow {
		return f, false
	}
	copies := "dead letters"
	if q.role == delays {
		copies = "retries"
	}
	why := strings.NewReplacer("{copies}", copies, "{delay}", q.needed.String(), "{least}", strconv.Itoa(least),
		"{largest}", strconv.Itoa(q.like.largest), "{brokers}", strconv.Itoa(q.state.brokers)).Replace(r.why)
	fix := fmt.Sprintf("kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=%s", q.name, r.setting, want)
	if r.setting == replicas {
		fix = "kafka-reassign-partitions.sh; or delete it when it is empty, set Options.Replication and let Run create it anew"
	}
	return inspect.Finding{Severity: r.severity, Topic: q.name, Setting: r.setting, Value: value, Want: want, Why: why, Fix: fix, See: setUp}, true
}

// gap is a finding of what is not there. A topic that is read is its owner's to
// shape, and all others are as Open makes them.
func (q quality) gap(why string) inspect.Finding {
	f := inspect.Finding{Severity: inspect.Blocking, Missing: true, Topic: q.name, Why: why, See: setUp}
	if q.role == entry {
		f.Why += ": correct the name, or create it"
		f.Fix = "kafka-topics.sh --create --if-not-exists --topic " + q.name
		return f
	}
	f.Fix = q.creation()
	return f
}

const tooManyReplicas = "the cluster has fewer brokers than replicas are asked for in Options.Replication"

// isShort reports whether the cluster does not create the topic because too few of its
// brokers are up. It does not say how many it has, but the topics that are read have
// their replicas on so many.
func (q quality) isShort(refusal error) bool {
	return is(refusal, kafka.InvalidReplicationFactor) && int(q.made.ReplicationFactor) <= q.like.replicas
}

// creation is the command that makes the topic as Open would.
func (q quality) creation() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-topics.sh --create --if-not-exists --topic %s", q.name)
	if q.made.NumPartitions > 0 {
		fmt.Fprintf(&b, " --partitions %d", q.made.NumPartitions)
	}
	replicas := int(q.made.ReplicationFactor)
	if replicas < 1 {
		replicas = q.like.replicas
	}
	if replicas > 0 {
		fmt.Fprintf(&b, " --replication-factor %d", replicas)
	}
	for _, entry := range q.made.Configs {
		fmt.Fprintf(&b, " --config %s=%s", entry.Name, *entry.Value)
	}
	if q.like.inSync > 1 {
		fmt.Fprintf(&b, " --config min.insync.replicas=%d", q.like.inSync)
	}
	return b.String()
}

// rights are what a worker needs on topics, by the words of kafka-acls.sh.
var rights = []struct {
	name      string
	operation kmsg.ACLOperation
	roles     []role
}{
	{"Read", kmsg.ACLOperationRead, []role{entry, delays}},
	{"Write", kmsg.ACLOperationWrite, []role{delays, letters, receipts}},
	{describe, kmsg.ACLOperationDescribeConfigs, messages},
}

const describe = "DescribeConfigs"

// rightsOn finds the rights that the user lacks on a topic. Without DescribeConfigs
// work goes on, and who only reads takes topics as they are.
func (o Options) rightsOn(q quality, readOnly bool) []inspect.Finding {
	var has, lacks, wants []string
	for _, right := range rights {
		wanted := slices.Contains(right.roles, q.role)
		if wanted {
			wants = append(wants, right.name)
		}
		if q.state.may(right.operation) {
			has = append(has, right.name)
		} else if wanted && !(readOnly && right.name == describe) {
			lacks = append(lacks, right.name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	f := inspect.Finding{
		Severity: inspect.Blocking, Topic: q.name, Setting: "the user's right", Value: cmp.Or(strings.Join(has, ", "), "none"), Want: strings.Join(wants, ", "),
		Why: "the worker cannot work without it", Fix: o.grant(lacks, "--topic "+q.name), See: setUp + "#rights-of-a-worker",
	}
	if slices.Equal(lacks, []string{describe}) {
		f.Severity, f.Why = inspect.Unverified, "nobody could look at its settings: with some of them messages are lost"
	}
	return []inspect.Finding{f}
}

// grant is the command that gives the user rights.
func (o Options) grant(rights []string, on string) string {
	user := "NAME"
	if login, ok := o.SASL.(plain.Mechanism); ok {
		user = login.Username
	}
	command := "kafka-acls.sh --add --allow-principal " + shell("User:"+user)
	for _, right := range rights {
		command += " --operation " + right
	}
	return command + " " + on
}

// shell quotes s for a shell, if it needs that.
func shell(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:=,@/") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
