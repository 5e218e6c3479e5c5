package brokertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// Harness tells the suite how to reach a broker and what can be expected of
// it. Open alone is required.
type Harness struct {
	// Open connects to an empty broker, or to an empty part of a shared one.
	// The suite calls it once per clause and closes the Broker; what else
	// there is to clean up belongs into t.Cleanup.
	Open func(t testing.TB) brokers.Broker

	// Topic turns the name of a topic into one that is free on a shared
	// broker, and may create it where Open of the adapter only verifies. It is
	// called once per name and clause, and the name of a subscription's Group
	// is made from the result. Nil leaves names as they are.
	Topic func(name string) string

	// Virtual says that the broker lives in this process. Every clause then
	// runs in a testing/synctest bubble: waiting costs nothing, duplicates
	// are faults, and a goroutine that outlives Close is found. Such a broker
	// must do without sockets and without goroutines from before Open.
	Virtual bool

	// Unit is the scale of delays and leases: delays of one to four units, a
	// lease of five. It should be well above the broker's granularity and
	// latency. 0 means one second.
	Unit time.Duration

	// Slack is how late a retry may come, beyond Capabilities.Granularity, how
	// long a call may need to notice the end of its context, and how long
	// after LeaseUntil the broker may still keep a lease. 0 means half a Unit.
	Slack time.Duration

	// AbandonedMargin is how many of the deliveries that ended without a
	// settlement Delivery.Abandoned may leave out, for the releases and
	// bystanders that the broker counts as well. 0 means that Abandoned is
	// exact, -1 that nothing counts and it is always 0.
	AbandonedMargin int

	// EstimatesMeta says that the broker retries in place and cannot store
	// Meta (SQS): all it has is a counter. Then only Attempt is checked, as an
	// upper bound, and a delivery that ended without a settlement may count
	// there instead of in Abandoned.
	EstimatesMeta bool

	// Unordered says that the broker may deliver in any order, even where nothing
	// fails (SQS standard queues). Clauses about Subscription.Ordered are skipped.
	Unordered bool

	// SortsHeaders says that the broker keeps no order among headers of
	// different names, Meta.Origin included. Values of one name must stay in
	// order all the same.
	SortsHeaders bool

	// TypedHeaders are examples of headers with a Type of the broker's own
	// that must survive publishing and retries.
	TypedHeaders brokers.Headers

	// Groups says that each group of workers gets all messages of a topic (Kafka).
	// The clause about them is skipped without it.
	Groups bool

	// Refused returns a message that Publish and SendBack must refuse for ever. Nil
	// means one that is larger than Capabilities.MessageLimit; if that is 0 too, the
	// clauses are skipped.
	Refused func() brokers.Message

	// Rejected names the topic where the broker keeps what is rejected of a topic,
	// given that and its dead-letter topic: as for Open, passed through Topic. ""
	// says that it is kept where nobody receives it: in a log, say. Nil means the
	// dead-letter topic.
	Rejected func(topic, deadLetter string) string

	// PublishUnreadable stores a message in a topic, passed through Topic, that the
	// adapter cannot read although the broker takes it: as whoever may publish there
	// could, and not by Publish of the adapter. The clause that needs it is skipped
	// if it is nil. Leave it so only if there is no such message.
	PublishUnreadable func(ctx context.Context, b brokers.Broker, topic string) error

	// Delete deletes a topic and its messages, as an operator would while workers
	// use it. The topic is a result of Topic. Restore creates it again, empty. If
	// Delete is nil, the clause that needs it is skipped.
	Delete func(b brokers.Broker, topic string) (restore func())

	// Crash ends a source of b as the death of its process would: nothing is
	// settled, released or said to the broker. Clauses that need it are
	// skipped if it is nil.
	Crash func(b brokers.Broker, src brokers.Source)

	// LoseRequests keeps what this Broker, and no other that Open has returned,
	// asks the broker to store from getting there, until heal is called. Of what
	// it publishes, returns or retries meanwhile nothing is stored, not after heal
	// either, and no confirmation comes, or an error does. Acks and releases must
	// get through: an adapter that acks before its copy is confirmed then loses the
	// message. Clauses that need it are skipped if it is nil.
	LoseRequests func(b brokers.Broker) (heal func())

	// LoseConfirms is the other half of an unknown outcome: what this Broker
	// publishes, returns or retries, until heal is called, is stored, and the answer
	// that would confirm it gets lost. Clauses that need it are skipped if it is nil.
	LoseConfirms func(b brokers.Broker) (heal func())
}

// Run checks a broker against every clause, each in a subtest of its name. A
// failure prints the rule and what was observed instead. Clauses that would
// only repeat the failure of a more basic one are skipped and say so. Unless
// the broker is Virtual, 24 clauses run at a time, as they mostly wait.
func Run(t *testing.T, h Harness) {
	if h.Open == nil {
		t.Fatal("brokertest: Harness.Open is nil: there is no broker to check")
	}
	s, all, most := newSuite(h), clauses(), 1
	if !h.Virtual {
		most = 24
		sort.SliceStable(all, func(i, j int) bool { return all[i].long && !all[j].long })
	}
	room := make(chan struct{}, most)
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range all {
		room <- struct{}{}
		running.Go(func() {
			leave := sync.OnceFunc(func() { <-room })
			defer leave() // of one that the -run flag leaves out
			defer s.done(c)
			t.Run(c.name, func(t *testing.T) { report(t, c, s.examine(t, c, leave)) })
		})
	}
}

func report(t *testing.T, c clause, err error) {
	if reason, ok := errors.AsType[skip](err); ok {
		t.Skip(reason)
	}
	if err != nil {
		t.Error(c.explain(err))
	}
}

// clause is one rule of the contract and the check that guards it.
type clause struct {
	name  string
	needs string // names of clauses whose failure this one would only repeat
	with  string // a field of Harness without which it is skipped
	not   string // a field of Harness with which it is skipped
	long  bool   // waits for several leases
	rule  string
	check func(*trial)
}

func clauses() []clause {
	return slices.Concat(
		publishClauses, messageClauses, endClauses, receiveClauses, closeClauses,
		carryClauses, retryClauses, settleClauses, returnClauses, readerClauses, leaseClauses, extendClauses,
		topicClauses, unreadableClauses, pauseClauses, crashClauses, orderClauses,
	)
}

func (c clause) explain(err error) string {
	return fmt.Sprintf("\nrule:     %s\nobserved: %v", c.rule, err)
}

// skip is the reason why a clause says nothing about a broker.
type skip string

func (s skip) Error() string { return string(s) }

// suite is one pass over the clauses.
type suite struct {
	harness  Harness
	verdicts map[string]*verdict // by clause
}

type verdict struct {
	known  chan struct{} // closed when broken is set
	broken bool          // it failed, or rests on one that did
}

func newSuite(h Harness) *suite {
	s := &suite{harness: h, verdicts: make(map[string]*verdict)}
	for _, c := range clauses() {
		s.verdicts[c.name] = &verdict{known: make(chan struct{})}
	}
	return s
}

// done lets those be judged that rest on c.
func (s *suite) done(c clause) { close(s.verdicts[c.name].known) }

// examine returns nil, a skip, or what the broker did wrong. When it has left the
// broker alone it waits until those clauses are done that c rests on.
func (s *suite) examine(t *testing.T, c clause, leave func()) error {
	err := s.unfounded(c, false)
	if err == nil {
		err = s.harness.try(t, c)
	}
	leave()
	if unfounded := s.unfounded(c, true); unfounded != nil {
		s.verdicts[c.name].broken = true
		return unfounded
	}
	_, skipped := errors.AsType[skip](err)
	s.verdicts[c.name].broken = err != nil && !skipped
	return err
}

// unfounded returns a skip if one of the clauses that c rests on is broken, as far
// as that is known yet, unless it waits.
func (s *suite) unfounded(c clause, wait bool) error {
	for _, name := range strings.Fields(c.needs) {
		v := s.verdicts[name]
		if wait {
			<-v.known
		}
		select {
		case <-v.known:
			if v.broken {
				return skip(fmt.Sprintf("clause %q does not hold, and this one rests on it", name))
			}
		default:
		}
	}
	return nil
}

// duplicate is a failure that a duplicate delivery would explain.
type duplicate struct{ error }

func (d duplicate) Unwrap() error { return d.error }

// try runs the check of c on a fresh broker. Outside the process duplicates are
// legal, so what they would explain must happen three times to be a failure;
// all else is one at once.
func (h Harness) try(t *testing.T, c clause) error {
	if h.Virtual {
		return h.bubble(t, c)
	}
	const rounds = 3
	var errs []error
	for range rounds {
		err := h.once(t, c)
		if _, excused := errors.AsType[duplicate](err); !excused {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("in each of %d rounds, which is too often for a duplicate: %w", rounds, errors.Join(errs...))
}

// bubble runs the check in virtual time, and finds the goroutines that it left.
func (h Harness) bubble(t *testing.T, c clause) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.Join(err, fmt.Errorf("goroutines are left after Close (%v):\n%s", v, bubbled()))
		}
	}()
	synctest.Test(t, func(t *testing.T) { err = h.once(t, c) })
	return err
}

func (h Harness) once(t testing.TB, c clause) error {
	field := reflect.ValueOf(h).FieldByName
	switch {
	case c.with != "" && field(c.with).IsZero():
		return skip(fmt.Sprintf("Harness.%s is not set", c.with))
	case c.not != "" && !field(c.not).IsZero():
		return skip(fmt.Sprintf("Harness.%s is set", c.not))
	}
	tr := newTrial(t, h)
	defer tr.close()
	if c.with != "" {
		tr.fail, _ = field(c.with).Interface().(func(brokers.Broker) func())
	}
	return tr.told(caught(func() { c.check(tr) }))
}

// bubbled returns the stacks of the goroutines that wait in a bubble for ever.
func bubbled() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "synctest bubble") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
