package sqs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
)

// existing is the page about queues that others have made.
const existing = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/set-up-queues-on-sqs.md#queues-that-exist-already"

// site is what is known of a queue.
type site struct {
	topic   string // as the subscription spells it, or the name in an ARN
	url     string
	missing bool
	hidden  bool // its attributes cannot be read
	attrs   attributes

	letters *site // for the dead letters of its topic, nil if there are none
	net     *site // where its RedrivePolicy leads, nil without one
}

// rule finds one fault of the queue of a topic. An empty why finds none.
type rule func(s *site, sub brokers.Subscription) inspect.Finding

// rules are for queues that exist and whose attributes are known, whoever made them,
// in the order of their harm.
var rules = []rule{forgets, lettersTooSmall, netMissing, netForgets, countsReceives, lettersForgotten, lacksNet}

// judge finds all that is wrong with the queue of a topic.
func (s *site) judge(sub brokers.Subscription) (found []inspect.Finding) {
	for _, rule := range rules {
		if f := rule(s, sub); f.Why != "" {
			found = append(found, f)
		}
	}
	return found
}

// tight reports whether SQS itself may end messages while the worker has use for
// them, so that none may be received without need.
func (s *site) tight(sub brokers.Subscription) bool {
	return s.hidden || s.attrs.deadLetter != "" && s.attrs.maxReceives < leastReceives(s.topic, sub.MaxAttempts)
}

func (s *site) finding(severity inspect.Severity, setting, value, want, why, fix string) inspect.Finding {
	return inspect.Finding{Severity: severity, Topic: printable(s.topic)[0], Setting: setting, Value: value, Want: want, Why: why, Fix: fix, See: existing}
}

// gap is what is missing. Topics have a policy that sub asks for.
func (s *site) gap(sub brokers.Subscription, create bool) inspect.Finding {
	const missing = "there is no such queue, or none for this identity"
	f := s.finding(inspect.Blocking, "", "", "", missing+", and it is not created by its URL",
		"correct its name, account or region; in another account its policy must let this one in")
	f.Missing = true
	if !creatable(s.topic) {
		return f
	}
	f.Fix = s.creation(sub)
	if create {
		f.Severity, f.Why = inspect.Noted, missing+": the first worker that starts creates it (Options.Create)"
	} else {
		f.Why = missing + ", and Options.Create does not let Run create it; a queue of another account needs its URL"
	}
	return f
}

// creation is the command that creates the queue as Open would, without a
// RedrivePolicy if it is not known yet where that leads to.
func (s *site) creation(sub brokers.Subscription) string {
	target := ""
	if s.letters != nil {
		target = s.letters.attrs.arn
	}
	text, _ := json.Marshal(wanted(sub, s.topic, target)) // strings cannot fail
	return "aws sqs create-queue --queue-name " + shell(s.topic) + " --attributes " + shell(string(text))
}

func (s *site) unread() inspect.Finding {
	return s.finding(inspect.Unverified, "", "", "",
		"its attributes must not be read: retention, size and RedrivePolicy are for you to see to; where it is received from, as few messages as with a low maxReceiveCount, and retried by copy",
		"grant the identity sqs:GetQueueAttributes on the queue")
}

// mend is the command that sets an attribute.
func (s *site) mend(attribute, value string) string {
	text, _ := json.Marshal(map[string]string{attribute: value}) // strings cannot fail
	return "aws sqs set-queue-attributes --queue-url " + shell(s.url) + " --attributes " + shell(string(text))
}

// shell quotes s for a shell.
func shell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

const (
	nameRetention = "MessageRetentionPeriod"
	nameSize      = "MaximumMessageSize"
	namePolicy    = "RedrivePolicy"
	nameReceives  = "maxReceiveCount"
	nameFIFO      = "FifoQueue"
	nameKey       = "KmsMasterKeyId"
	nameManaged   = "SqsManagedSseEnabled"
)

func inSeconds(d time.Duration) string { return strconv.FormatInt(wholeSeconds(d), 10) }

// forgets is about messages that are deleted while they wait for a retry.
func forgets(s *site, sub brokers.Subscription) inspect.Finding {
	need := sub.MaxAge + sub.MaxDelay
	if s.attrs.retention == 0 || need <= s.attrs.retention {
		return inspect.Finding{}
	}
	return s.tooLong(need, inSeconds(s.attrs.retention))
}

func (s *site) tooLong(need time.Duration, value string) inspect.Finding {
	why := fmt.Sprintf("retries may take %v (MaxAge and the longest delay), and SQS deletes what is older", need)
	if need > retention {
		return s.finding(inspect.Blocking, nameRetention, value, "", why, "lower the MaxAge of the retry policy: 14 days is the most that there is")
	}
	return s.finding(inspect.Blocking, nameRetention, value, inSeconds(need), why, s.mend(nameRetention, inSeconds(need)))
}

// lettersTooSmall is about messages that would be tried again and again, and be gone
// when the retention ends.
func lettersTooSmall(s *site, _ brokers.Subscription) inspect.Finding {
	if s.letters == nil || s.attrs.limit == 0 || s.letters.attrs.limit == 0 || s.letters.attrs.limit >= s.attrs.limit {
		return inspect.Finding{}
	}
	want := strconv.Itoa(s.attrs.limit)
	return s.letters.finding(inspect.Blocking, nameSize, strconv.Itoa(s.letters.attrs.limit), want,
		fmt.Sprintf("what %q takes beyond that could never be dead-lettered, and is lost when its retention ends", s.topic), s.letters.mend(nameSize, want))
}

func netMissing(s *site, _ brokers.Subscription) inspect.Finding {
	switch {
	case s.net == nil:
		return inspect.Finding{}
	case s.net.hidden && s.net != s.letters: // else it is told already
		return s.net.finding(inspect.Unverified, "", "", "", fmt.Sprintf("the RedrivePolicy of %q leads here, and its attributes must not be read", s.topic),
			"grant the identity sqs:GetQueueAttributes on the queue, or see to it that it keeps messages for 14 days")
	case !s.net.missing, s.net == s.letters:
		return inspect.Finding{}
	}
	f := s.finding(inspect.Blocking, namePolicy, s.attrs.deadLetter, "", "the queue to which SQS moves what was received too often does not exist", s.mend(namePolicy, ""))
	f.Missing = true
	return f
}

// netForgets is about a net that keeps messages for too short a time. On standard
// queues what SQS moves keeps its age.
func netForgets(s *site, _ brokers.Subscription) inspect.Finding {
	if s.net == nil || isFIFO(s.topic) || !forgetsBefore(s.net, s) {
		return inspect.Finding{}
	}
	return s.net.keepFor(inspect.Blocking, s, fmt.Sprintf("what SQS itself moves here from %q keeps its age, and may be deleted at once", s.topic))
}

// lettersForgotten is about letters that workers write, which are new.
func lettersForgotten(s *site, sub brokers.Subscription) inspect.Finding {
	if s.letters == nil || !forgetsBefore(s.letters, s) || s.letters == s.net && netForgets(s, sub).Why != "" {
		return inspect.Finding{}
	}
	return s.letters.keepFor(inspect.Noted, s, "after that a dead letter is deleted, whether anybody has seen it or not")
}

func forgetsBefore(dead, s *site) bool {
	return dead.attrs.retention > 0 && dead.attrs.retention < s.attrs.retention
}

func (s *site) keepFor(severity inspect.Severity, source *site, why string) inspect.Finding {
	return s.finding(severity, nameRetention, inSeconds(s.attrs.retention), inSeconds(source.attrs.retention)+" or more", why, s.mend(nameRetention, inSeconds(retention)))
}

// countsReceives is about a RedrivePolicy that ends messages with attempts left. On a
// standard queue whatever goes back at its last receive is a copy.
func countsReceives(s *site, sub brokers.Subscription) inspect.Finding {
	if s.attrs.deadLetter == "" || !s.tight(sub) {
		return inspect.Finding{}
	}
	why := "SQS itself dead-letters, without its story, what workers received more often and died of or lost"
	switch {
	case isFIFO(s.topic):
		why = "SQS itself dead-letters, without its story, what was received more often: each attempt counts, and each crash, stop and pause; polls ask for one message at a time"
	case sub.MaxDelay > 0:
		why += "; retries go by copy, which starts the count anew, and little is prefetched"
	}
	least := leastReceives(s.topic, sub.MaxAttempts)
	if least > mostReceives {
		return s.finding(inspect.Noted, nameReceives, strconv.Itoa(s.attrs.maxReceives), "without "+namePolicy, why, s.mend(namePolicy, ""))
	}
	return s.finding(inspect.Noted, nameReceives, strconv.Itoa(s.attrs.maxReceives), strconv.Itoa(least)+" or more", why, s.mend(namePolicy, policy(s.attrs.deadLetter, least)))
}

// lacksNet is about what no worker survives to bury.
func lacksNet(s *site, sub brokers.Subscription) inspect.Finding {
	if s.letters == nil || s.attrs.deadLetter != "" {
		return inspect.Finding{}
	}
	fix := fmt.Sprintf("set one that leads to %q", s.letters.topic)
	if least := leastReceives(s.topic, sub.MaxAttempts); s.letters.attrs.arn != "" && least <= mostReceives {
		fix = s.mend(namePolicy, policy(s.letters.attrs.arn, least))
	}
	return s.finding(inspect.Noted, namePolicy, "", "one to the dead-letter queue",
		"a message with which all workers die before they can dead-letter it is lost when the retention ends, and move tasks do not work", fix)
}

// mixed finds dead-letter queues of another type than their queues.
func mixed(sub brokers.Subscription) (found []inspect.Finding) {
	for _, topic := range slices.Compact(slices.Sorted(slices.Values(sub.Topics))) {
		dead := sub.DeadLetters[topic]
		if dead == "" || isFIFO(dead) == isFIFO(topic) {
			continue
		}
		s := &site{topic: dead}
		found = append(found, s.finding(inspect.Blocking, nameFIFO, strconv.FormatBool(isFIFO(dead)), strconv.FormatBool(isFIFO(topic)),
			fmt.Sprintf("it is the dead-letter queue of %q, and one of them alone is a FIFO queue", printable(topic)[0]),
			"make both of one type: name another queue, which ends in .fifo or does not, as the other one"))
	}
	return found
}

// policy is a RedrivePolicy.
func policy(target string, receives int) string {
	text, _ := json.Marshal(map[string]string{"deadLetterTargetArn": target, nameReceives: strconv.Itoa(receives)}) // strings cannot fail
	return string(text)
}
