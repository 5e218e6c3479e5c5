package metrics

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/settings"
)

// MaxTopics is how many topics one Metrics tells apart.
const MaxTopics = 100

// Topic is one that a Consumer has a handler for.
type Topic struct {
	// Name of the topic. Required.
	Name string
	// Policy is a name for the retry policy of the topic, the value of the
	// label "policy". Empty means "default".
	Policy string
	// Dependency is that of consumer.TopicConfig. Empty means Name.
	Dependency string
}

func (t Topic) policy() string {
	if t.Policy == "" {
		return "default"
	}
	return t.Policy
}

func faults(topics []Topic) error {
	var found []error
	refuse := func(bad bool, field, problem, fix string) {
		if bad {
			found = append(found, &settings.Error{Package: "metrics", Field: field, Problem: problem, Fix: fix})
		}
	}
	refuse(len(topics) == 0, "topics", "are missing", "name every topic that the Consumer has a handler for")
	refuse(len(topics) > MaxTopics, "topics", fmt.Sprintf("are %d", len(topics)),
		fmt.Sprintf("name at most %d, the most important ones: the others are counted together", MaxTopics))
	seen := map[string]bool{}
	for i, t := range topics {
		field := fmt.Sprintf("topics[%d]", i)
		refuse(t.Name == "", field+".Name", "is empty", "use the name that the handler is registered for")
		refuse(t.Name != "" && seen[t.Name], field+".Name", fmt.Sprintf("is %q once more", t.Name), "name each topic once")
		refuse(!utf8.ValidString(t.Name), field+".Name", "is not UTF-8", "leave the topic out: it is counted under \"other\"")
		refuse(!utf8.ValidString(t.Policy), field+".Policy", "is not UTF-8", "use a short word")
		refuse(!utf8.ValidString(t.Dependency), field+".Dependency", "is not UTF-8", "leave it out: its pauses are counted under \"other\"")
		seen[t.Name] = true
	}
	return errors.Join(found...)
}

// other is the label of what is not in a closed set.
const other = "other"

// What becomes of a run.
const (
	succeeded = iota
	rescheduled
	deferred
	buried
	skipped
	released
	lost
)

var outcomes = [...]string{
	succeeded: "success", rescheduled: "retry", deferred: "defer", buried: "dead_letter", skipped: "skip", released: "release", lost: "lost",
}

// What becomes of a delivery.
const (
	acked = iota
	retried
	givenBack
	rejected
)

var settlements = [...]string{acked: "ack", retried: "retry", givenBack: "release", rejected: "reject"}

// How a run ended.
const (
	success = iota
	failure
)

var results = [...]string{success: "success", failure: "failure"}

// backlogStates are what messages do in the broker.
var backlogStates = [...]string{"ready", "taken", "delayed"}

// Whether a pause by hand has an end.
const (
	timed = iota
	endless
)

var ends = [...]string{timed: "timed", endless: "none"}

// noClass is the index of the class of a success.
const noClass = 0

// classes end with other.
var classes = [...]string{
	"none",
	classify.ClassTransient, classify.ClassThrottled, classify.ClassEnvironment,
	classify.ClassUnknown, classify.ClassPoison, classify.ClassShutdown, classify.ClassLost, classify.ClassSkipped,
	other,
}

func classOf(c string) int { return index(classes[1:], string(c)) + 1 }

// reasons end with other.
var reasons = [...]string{
	"exhausted", "expired", "outage", "poison",
	"undecodable", "validation", "panic", "timeout", "unclassified",
	"ambiguous", "crash-loop", "oversize", "refused", "unreadable", "unroutable", "redrive-limit", "operator", "skipped-by-hand",
	other,
}

// deferrals are why runs are put off. They end with other.
var deferrals = [...]string{"budget", "crash-loop", "dependency", "paused", "poison", "room", "start-after", other}

func reasonOf(entry *dlq.Entry) int {
	if entry == nil {
		return len(reasons) - 1
	}
	return index(reasons[:], entry.Reason)
}

// index returns the place of a word, which is that of the last one, other, if
// it is not there.
func index(words []string, word string) int {
	if i := slices.Index(words, word); i >= 0 {
		return i
	}
	return len(words) - 1
}
