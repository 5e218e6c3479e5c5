package sqs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
)

const (
	// existing is the page about queues that others have made, checking the one about
	// what Inspect finds beyond Open.
	existing = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/set-up-queues-on-sqs.md#queues-that-exist-already"
	checking = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/check-a-set-up.md#sqs"

	nameRetention = "MessageRetentionPeriod"
	nameSize      = "MaximumMessageSize"
	namePolicy    = "RedrivePolicy"
	nameReceives  = "maxReceiveCount"
	nameFIFO      = "FifoQueue"
	nameKey       = "KmsMasterKeyId"
	nameManaged   = "SqsManagedSseEnabled"
)

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

// row is a finding about a queue, if it is so.
type row struct {
	so                   bool
	about                *site
	severity             inspect.Severity
	setting, value, want string
	why                  string
	fix                  string // "" is the command that sets the setting to want
	missing              bool
}

// findingsOf are the findings of rows, of which a page tells more.
func findingsOf(page string, rows ...row) (found []inspect.Finding) {
	for _, r := range rows {
		if !r.so {
			continue
		}
		if r.fix == "" {
			r.fix = r.about.mend(r.setting, r.want)
		}
		found = append(found, inspect.Finding{
			Severity: r.severity, Topic: printable(r.about.topic)[0], Missing: r.missing,
			Setting: r.setting, Value: r.value, Want: r.want, Why: r.why, Fix: r.fix, See: page,
		})
	}
	return found
}

// judge finds all that is wrong with the queue of a topic, which exists and whose
// attributes are known, whoever made it: the most harmful first.
func (s *site) judge(sub brokers.Subscription) []row {
	letters, net := cmp.Or(s.letters, new(site)), cmp.Or(s.net, new(site))
	least, keeps := leastReceives(s.topic, sub.MaxAttempts), inSeconds(s.attrs.retention)+" or more"
	netForgets := !isFIFO(s.topic) && net.forgetsBefore(s)
	return []row{
		s.tooLong(sub, s.attrs.retention),
		row{
			so: letters.attrs.limit != 0 && letters.attrs.limit < s.attrs.limit, about: letters, severity: inspect.Blocking,
			setting: nameSize, value: strconv.Itoa(letters.attrs.limit), want: strconv.Itoa(s.attrs.limit),
			why: fmt.Sprintf("what %q takes beyond that could never be dead-lettered, and is lost when its retention ends", s.topic),
		},
		row{
			so: net.hidden && net != letters, about: net, severity: inspect.Unverified, // else it is told already
			why: fmt.Sprintf("the RedrivePolicy of %q leads here, and its attributes must not be read", s.topic),
			fix: "grant the identity sqs:GetQueueAttributes on the queue, or see to it that it keeps messages for 14 days",
		},
		row{
			so: net.missing && net != letters, about: s, severity: inspect.Blocking, missing: true,
			setting: namePolicy, value: s.attrs.deadLetter,
			why: "the queue to which SQS moves what was received too often does not exist",
		},
		row{ // on FIFO queues what SQS moves is new
			so: netForgets, about: net, severity: inspect.Blocking,
			setting: nameRetention, value: inSeconds(net.attrs.retention), want: keeps,
			why: fmt.Sprintf("what SQS itself moves here from %q keeps its age, and may be deleted at once", s.topic),
			fix: net.mend(nameRetention, inSeconds(retention)),
		},
		s.countsReceives(sub, least),
		row{ // letters that workers write are new
			so: letters.forgetsBefore(s) && !(letters == net && netForgets), about: letters, severity: inspect.Noted,
			setting: nameRetention, value: inSeconds(letters.attrs.retention), want: keeps,
			why: "after that a dead letter is deleted, whether anybody has seen it or not",
			fix: letters.mend(nameRetention, inSeconds(retention)),
		},
		s.lacksNet(letters, least),
	}
}

// tooLong is about messages that are deleted while they wait for a retry, by a queue
// that keeps them for a time; 0 if that is not known.
func (s *site) tooLong(sub brokers.Subscription, keep time.Duration) row {
	need := sub.MaxAge + sub.MaxDelay
	r := row{
		so: keep != 0 && need > keep, about: s, severity: inspect.Blocking,
		setting: nameRetention, want: inSeconds(need),
		why: fmt.Sprintf("retries may take %v (MaxAge and the longest delay), and SQS deletes what is older", need),
	}
	if !s.missing {
		r.value = inSeconds(keep)
	}
	if need > retention {
		r.want, r.fix = "", "lower the MaxAge of the retry policy: 14 days is the most that there is"
	}
	return r
}

func (s *site) forgetsBefore(source *site) bool {
	return s.attrs.retention > 0 && s.attrs.retention < source.attrs.retention
}

// tight reports whether SQS itself may end messages while the worker has use for
// them, so that none may be received without need.
func (s *site) tight(sub brokers.Subscription) bool {
	return s.hidden || s.attrs.deadLetter != "" && s.attrs.maxReceives < leastReceives(s.topic, sub.MaxAttempts)
}

// countsReceives is about a RedrivePolicy that ends messages with attempts left. On a
// standard queue whatever goes back at its last receive is a copy.
func (s *site) countsReceives(sub brokers.Subscription, least int) row {
	r := row{
		so: s.attrs.deadLetter != "" && s.tight(sub), about: s, severity: inspect.Noted,
		setting: nameReceives, value: strconv.Itoa(s.attrs.maxReceives), want: strconv.Itoa(least) + " or more",
		why: "SQS itself dead-letters, without its story, what workers received more often and died of or lost",
		fix: s.mend(namePolicy, policy(s.attrs.deadLetter, least)),
	}
	if least > mostReceives {
		r.want, r.fix = "without "+namePolicy, s.mend(namePolicy, "")
	}
	switch {
	case isFIFO(s.topic):
		r.why = "SQS itself dead-letters, without its story, what was received more often: each attempt counts, and each crash, stop and pause; polls ask for one message at a time"
	case sub.MaxDelay > 0:
		r.why += "; retries go by copy, which starts the count anew, and little is prefetched"
	}
	return r
}

// lacksNet is about what no worker survives to bury.
func (s *site) lacksNet(letters *site, least int) row {
	r := row{
		so: s.letters != nil && s.attrs.deadLetter == "", about: s, severity: inspect.Noted,
		setting: namePolicy, want: "one to the dead-letter queue",
		why: "a message with which all workers die before they can dead-letter it is lost when the retention ends, and move tasks do not work",
		fix: fmt.Sprintf("set one that leads to %q", letters.topic),
	}
	if letters.attrs.arn != "" && least <= mostReceives {
		r.fix = s.mend(namePolicy, policy(letters.attrs.arn, least))
	}
	return r
}

// gap is what is missing. Topics have a policy that sub asks for.
func (s *site) gap(sub brokers.Subscription, create bool) row {
	const missing = "there is no such queue, or none for this identity"
	r := row{so: true, about: s, severity: inspect.Blocking, missing: true, fix: s.creation(sub)}
	switch {
	case !creatable(s.topic):
		r.why = missing + ", and it is not created by its URL"
		r.fix = "correct its name, account or region; in another account its policy must let this one in"
	case create:
		r.severity, r.why = inspect.Noted, missing+": the first worker that starts creates it (Options.Create)"
	default:
		r.why = missing + ", and Options.Create does not let Run create it; a queue of another account needs its URL"
	}
	return r
}

func (s *site) unread() row {
	return row{
		so: true, about: s, severity: inspect.Unverified,
		why: "its attributes must not be read: retention, size and RedrivePolicy are for you to see to; where it is received from, as few messages as with a low maxReceiveCount, and retried by copy",
		fix: "grant the identity sqs:GetQueueAttributes on the queue",
	}
}

// mixed finds dead-letter queues of another type than their queues.
func mixed(sub brokers.Subscription) (rows []row) {
	topics, _ := stages(sub)
	for _, topic := range topics {
		dead := sub.DeadLetters[topic]
		rows = append(rows, row{
			so: dead != "" && isFIFO(dead) != isFIFO(topic), about: &site{topic: dead}, severity: inspect.Blocking,
			setting: nameFIFO, value: strconv.FormatBool(isFIFO(dead)), want: strconv.FormatBool(isFIFO(topic)),
			why: fmt.Sprintf("it is the dead-letter queue of %q, and one of them alone is a FIFO queue", printable(topic)[0]),
			fix: "make both of one type: name another queue, which ends in .fifo or does not, as the other one",
		})
	}
	return rows
}

// creation is the command that creates the queue as Open would, without a
// RedrivePolicy if it is not known yet where that leads to.
func (s *site) creation(sub brokers.Subscription) string {
	target := ""
	if s.letters != nil {
		target = s.letters.attrs.arn
	}
	return "aws sqs create-queue --queue-name " + shell(s.topic) + " --attributes " + shell(jsonOf(wanted(sub, s.topic, target)))
}

// mend is the command that sets an attribute.
func (s *site) mend(attribute, value string) string {
	return "aws sqs set-queue-attributes --queue-url " + shell(s.url) + " --attributes " + shell(jsonOf(map[string]string{attribute: value}))
}

// policy is a RedrivePolicy.
func policy(target string, receives int) string {
	return jsonOf(map[string]string{"deadLetterTargetArn": target, nameReceives: strconv.Itoa(receives)})
}

// jsonOf is the JSON of what has none but strings.
func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// shell quotes s for a shell.
func shell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func inSeconds(d time.Duration) string { return strconv.FormatInt(wholeSeconds(d), 10) }
