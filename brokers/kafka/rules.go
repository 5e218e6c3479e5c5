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

	"github.com/redrive-go/redrive/brokers"
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
	longest  time.Duration     // delay that may wait in it
	needed   time.Duration     // the longest delay that the subscription asks for: in a delay topic, or after an entry topic
	made     kafka.TopicConfig // as Open creates it
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

// rule finds one fault of a topic that exists. An empty why finds none.
type rule func(q quality) brokers.Finding

// rules are for topics that others may have made, in the order of their harm.
var rules = []rule{compacts, isBounded, expires, dropsLetters, isSmall, hasFewReplicas, hasFewInSync, electsUnclean}

// judge finds all that is wrong with a topic.
func (q quality) judge() (found []brokers.Finding) {
	for _, rule := range rules {
		if f := rule(q); f.Why != "" {
			found = append(found, f)
		}
	}
	return found
}

// differs is a finding about a setting that can be changed.
func (q quality) differs(s brokers.Severity, setting, want, why string) brokers.Finding {
	return brokers.Finding{
		Severity: s, Topic: q.name, Setting: setting, Value: q.settings[setting], Want: want, Why: why, See: setUp,
		Fix: fmt.Sprintf("kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=%s", q.name, setting, want),
	}
}

func (q quality) isCopy() bool { return q.role == delays || q.role == letters }

func compacts(q quality) brokers.Finding {
	const setting = "cleanup.policy"
	if policy := q.settings[setting]; !q.isCopy() || policy == "" || policy == "delete" {
		return brokers.Finding{}
	}
	return q.differs(brokers.Refused, setting, "delete", "compaction drops "+q.what()+" with equal keys")
}

func (q quality) what() string {
	if q.role == delays {
		return "retries"
	}
	return "dead letters"
}

func isBounded(q quality) brokers.Finding {
	const setting = "retention.bytes"
	if size := q.settings[setting]; q.role != delays || size == "" || size == "-1" {
		return brokers.Finding{}
	}
	return q.differs(brokers.Refused, setting, "-1", "retries are deleted because there are many")
}

// expires finds topics that delete messages or retries before workers have handled
// them. For an entry topic this is only noted, because its owner decides on its
// settings. A topic that only compacts deletes nothing by age.
func expires(q quality) brokers.Finding {
	const setting = "retention.ms"
	least := int((q.needed + leastOutage).Milliseconds())
	want := strconv.Itoa(int((q.needed + outage).Milliseconds()))
	switch {
	case !q.isBelow(setting, least):
	case q.role == delays:
		return q.differs(brokers.Refused, setting, want,
			fmt.Sprintf("retries wait there for up to %v, and for the end of an outage: the least is %d", q.needed, least))
	case q.role == entry && q.settings["cleanup.policy"] != "compact":
		return q.differs(brokers.Noted, setting, want,
			fmt.Sprintf("the broker deletes messages of that age, even if no worker has handled them yet, as in an outage. Retries take up to %v: the least is %d", q.needed, least))
	}
	return brokers.Finding{}
}

// isBelow reports whether a setting for which -1 means no limit is less than least.
func (q quality) isBelow(setting string, least int) bool {
	n, err := strconv.Atoi(q.settings[setting])
	return err == nil && n >= 0 && n < least
}

func dropsLetters(q quality) brokers.Finding {
	const setting = "retention.ms"
	if q.role != letters || !q.isBelow(setting, int(briefLetters.Milliseconds())) {
		return brokers.Finding{}
	}
	return q.differs(brokers.Noted, setting, "-1", "dead letters are deleted after so long, whether anybody has looked at them or not")
}

// isSmall is about what a producer stores: the limit is for that as it is, compressed
// or not.
func isSmall(q quality) brokers.Finding {
	const setting = "max.message.bytes"
	want := q.like.largest + headroom
	if !q.isCopy() || !q.isBelow(setting, want) {
		return brokers.Finding{}
	}
	if q.isBelow(setting, q.like.largest) {
		return q.differs(brokers.Refused, setting, strconv.Itoa(want),
			fmt.Sprintf("messages of up to %d bytes come in, and their copies have more headers: those that do not fit stop their partition", q.like.largest))
	}
	return q.differs(brokers.Noted, setting, strconv.Itoa(want), fmt.Sprintf("it leaves no room for the headers of copies of the largest messages, "+
		"of up to %d bytes: those that do not fit are not copied, or lose their body", q.like.largest))
}

func hasFewReplicas(q quality) brokers.Finding {
	is, want, why := q.state.replication, q.like.replicas, q.what()+" are lost with fewer brokers than the messages that come in"
	if !q.isCopy() || is >= want {
		want = min(q.state.brokers, usualReplicas)
		why = fmt.Sprintf("it is on one of %d brokers: it stands still while that is down, and is lost with its disk", q.state.brokers)
		if q.role == receipts || is != 1 || want < 2 {
			return brokers.Finding{}
		}
	}
	return brokers.Finding{
		Severity: brokers.Noted, Topic: q.name, Setting: "replication factor", Value: strconv.Itoa(is), Want: strconv.Itoa(want), Why: why, See: setUp,
		Fix: "kafka-reassign-partitions.sh; or delete it when it is empty, set Options.Replication and let Run create it anew",
	}
}

func hasFewInSync(q quality) brokers.Finding {
	const setting = "min.insync.replicas"
	switch {
	case q.isCopy() && q.isBelow(setting, min(q.like.inSync, q.state.replication)):
		return q.differs(brokers.Noted, setting, strconv.Itoa(q.like.inSync), q.what()+" are confirmed by fewer brokers than the messages that come in, and lost with them")
	case q.role != receipts && q.state.replication >= usualReplicas && q.isBelow(setting, 2):
		return q.differs(brokers.Noted, setting, "2", "what a single broker has confirmed is lost with its disk, although others have copies of the topic")
	}
	return brokers.Finding{}
}

func electsUnclean(q quality) brokers.Finding {
	const setting = "unclean.leader.election.enable"
	if q.role == receipts || q.settings[setting] != "true" {
		return brokers.Finding{}
	}
	return q.differs(brokers.Noted, setting, "false", "a replica that is behind may become the leader, and what it lacks is lost, confirmed or not")
}

// gap is a finding of what is not there. A topic that is read is its owner's to
// shape, and all others are as Open makes them.
func (q quality) gap(why string) brokers.Finding {
	f := brokers.Finding{Severity: brokers.Refused, Missing: true, Topic: q.name, Why: why, See: setUp}
	if q.role == entry {
		f.Why += ": correct the name, or create it"
		f.Fix = "kafka-topics.sh --create --if-not-exists --topic " + q.name
		return f
	}
	f.Fix = q.creation()
	return f
}

// creation is the command that makes the topic as Open would.
func (q quality) creation() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-topics.sh --create --if-not-exists --topic %s", q.name)
	if q.made.NumPartitions > 0 {
		fmt.Fprintf(&b, " --partitions %d", q.made.NumPartitions)
	}
	replicas := q.made.ReplicationFactor
	if replicas < 1 {
		replicas = q.like.replicas
	}
	if replicas > 0 {
		fmt.Fprintf(&b, " --replication-factor %d", replicas)
	}
	for _, entry := range q.made.ConfigEntries {
		fmt.Fprintf(&b, " --config %s=%s", entry.ConfigName, entry.ConfigValue)
	}
	if q.like.inSync > 1 {
		fmt.Fprintf(&b, " --config min.insync.replicas=%d", q.like.inSync)
	}
	return b.String()
}

// operations are the rights that this package asks for, by the words of kafka-acls.sh.
var operations = []struct {
	operation kmsg.ACLOperation
	name      string
}{
	{kmsg.ACLOperationRead, "Read"}, {kmsg.ACLOperationWrite, "Write"}, {kmsg.ACLOperationDescribeConfigs, "DescribeConfigs"},
}

// wants are the rights that a worker needs on a topic.
func (q quality) wants() []string {
	switch q.role {
	case entry:
		return []string{"Read", "DescribeConfigs"}
	case delays:
		return []string{"Read", "Write", "DescribeConfigs"}
	case letters:
		return []string{"Write", "DescribeConfigs"}
	}
	return []string{"Write"}
}

// rightsOn finds the rights that the user lacks on a topic. Without DescribeConfigs
// work goes on.
func (o Options) rightsOn(q quality, readOnly bool) []brokers.Finding {
	var has, lacks []string
	for _, op := range operations {
		switch {
		case q.state.may(op.operation):
			has = append(has, op.name)
		case slices.Contains(q.wants(), op.name):
			lacks = append(lacks, op.name)
		}
	}
	if readOnly { // takes topics as they are
		lacks = slices.DeleteFunc(lacks, func(name string) bool { return name == "DescribeConfigs" })
	}
	if len(lacks) == 0 {
		return nil
	}
	f := brokers.Finding{
		Severity: brokers.Refused, Topic: q.name, Setting: "the user's right", Value: cmp.Or(strings.Join(has, ", "), "none"), Want: strings.Join(q.wants(), ", "),
		Why: "the worker cannot work without it", Fix: o.grant(lacks, "--topic "+q.name), See: setUp + "#rights-of-a-worker",
	}
	if slices.Equal(lacks, []string{"DescribeConfigs"}) {
		f.Severity, f.Why = brokers.Unverified, "nobody could look at its settings: with some of them messages are lost"
	}
	return []brokers.Finding{f}
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
