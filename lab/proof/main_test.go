package main

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

func TestCommandRefusesWrongUse(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-broker", "carrier-pigeon"}, `unknown broker "carrier-pigeon": use one of kafka, rabbitmq, sqs`},
		{[]string{"-messages", "0"}, "-messages is 0: send at least 1"},
		{[]string{"-seed", "x"}, "invalid value"},
		{[]string{"-messages", "50", "-loops", "6"}, "-loops is 6: use 0 to a tenth of -messages"},
		{[]string{"-partitions", "0"}, "-partitions is 0: use 1 or more"},
		{[]string{"more"}, `unexpected argument "more"`},
	} {
		var out, problems bytes.Buffer
		if status := command(t.Context(), tt.args, &out, &problems); status != 2 || !strings.Contains(problems.String(), tt.want) || out.Len() > 0 {
			t.Errorf("%q: status %d, %q; want 2 and %q", tt.args, status, problems.String(), tt.want)
		}
	}
}

func TestReport(t *testing.T) {
	rec, _ := playVirtual(t, newScenario(7, messagesPerScenario, virtual), nil, rig{})
	var out, problems bytes.Buffer
	if status := report(rec, options{job: job{Messages: messagesPerScenario}}, &out, &problems); status != 0 {
		t.Errorf("status %d, want 0:\n%s", status, problems.String())
	}
	for line := range strings.Lines(out.String()) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(fields) != 5 || fields[4] != "ok" {
			t.Errorf("line %q, want five fields, the last ok", line)
		}
	}

	out.Reset()
	for topic := range rec.letters {
		rec.letters[topic] = nil
	}
	if status := report(rec, options{job: job{Messages: messagesPerScenario}}, &out, &problems); status != 1 || !strings.Contains(out.String(), "\t0\tshort\n") {
		t.Errorf("with the dead letters gone: status %d, want 1:\n%s", status, out.String())
	}
	if got := problems.String(); !strings.Contains(got, string(promiseConfirm)) || !strings.Contains(got, "handler ends with") {
		t.Errorf("the problem is explained as\n%s\nwant the promise and the life of the message", got)
	}
}

// Which of two messages is to blame shows in the life of the other one.
func TestExplainTellsOfBoth(t *testing.T) {
	rec, _ := playVirtual(t, newScenario(7, messagesPerScenario, virtual), nil, rig{})
	var c checker
	c.misplace("m1", "m2", "is run beside m2")
	var out strings.Builder
	explain(&out, rec, verdict{violations: c.violations})
	for _, want := range []string{"message m1 is run beside m2", "m1 has the key", "m2 has the key"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// A record in which nothing went wrong breaks no promise; each change to it
// breaks one.
func TestCheckOfSmallRecords(t *testing.T) {
	s := newScenario(1, 1, virtual)
	s.options.Ordered, s.options.MaxLease = false, 0
	s.topics = []topic{{name: "orders", dead: "orders.dead", policy: retry.Policy{MaxAttempts: 3}, timeout: time.Minute}}
	s.messages[0].topic = 0
	life := func() []event {
		on := event{ID: "m0", Topic: "orders", Worker: 1, Delivery: 1}
		with := func(at time.Duration, k kind, change func(*event)) event {
			e := on
			e.At, e.Kind = at, k
			change(&e)
			return e
		}
		none := func(*event) {}
		return []event{
			{Kind: up, Worker: 1, Attempt: 1, Delay: time.Second},
			{Kind: sent, ID: "m0", Topic: "orders"},
			{Kind: confirmed, ID: "m0", Topic: "orders"},
			with(1, received, func(e *event) { e.Until = 30 * time.Second }),
			with(2, started, func(e *event) { e.Attempt, e.Flags = 1, isFirst }),
			with(3, ended, func(e *event) { e.Flags = isFirst }),
			with(4, settling, none),
			with(5, settled, none),
			{At: 6, Kind: stopping, Worker: 1},
			{At: 7, Kind: closing, Worker: 1},
			{At: 8, Kind: down, Worker: 1},
		}
	}
	// refused has the ack of m0 refused as if its lease were lost, while the lease is
	// extended. A fault may be the reason.
	refused := func(r *record, fault bool) {
		again := slices.Clone(r.events[3:8])
		for i := range again {
			again[i].At += 31 * time.Second
			again[i].Until, again[i].Delivery, again[i].Abandoned = time.Minute, 2, 1
		}
		told, end := r.events[7], r.events[8:]
		told.Err = leaseLost
		extension := event{At: 4, Kind: extended, ID: "m0", Topic: "orders", Worker: 1, Delivery: 1, Until: 31 * time.Second, Delay: 31 * time.Second}
		events := slices.Clone(r.events[:7])
		if fault {
			events = append(events, event{At: 4, Kind: faulted, ID: "m0", Err: leaseLost, Note: "settle"})
		}
		for i := range end {
			end[i].At += 32 * time.Second
		}
		r.events = slices.Concat(events, []event{extension, told}, again, end)
	}
	// moved has m0 kill its workers, and then lie among the dead letters as it is.
	moved := func(r *record, kills int, ordered, byBroker bool) {
		killer := *s
		killer.served = true
		killer.slots = []slot{s.slots[0]}
		killer.slots[0].config.OrderByKey = ordered
		killer.messages = []message{s.messages[0]}
		killer.messages[0].script = []step{{fatal: true}}
		r.scenario, r.events = &killer, r.events[1:3]
		for n := range kills {
			on := event{At: time.Duration(n), Worker: n + 1, Delivery: n + 1, ID: "m0", Topic: "orders"}
			for _, k := range []kind{up, received, started, crashed, down} {
				e := on
				e.Kind = k
				switch k {
				case up:
					e.Attempt, e.Delay = 1, time.Second
				case received:
					e.Until = on.At + 30*time.Second
				case started:
					e.Attempt, e.Flags = 1, isFirst
				case crashed:
					e.Note = string(byMessage)
				}
				r.events = append(r.events, e)
			}
		}
		r.letters = map[string][]brokers.Message{"orders.dead": {s.messages[0].Message}}
		r.moved = map[string]bool{"m0": byBroker}
	}
	for _, tt := range []struct {
		name   string
		change func(r *record)
		want   promise
	}{
		{"nothing", func(*record) {}, ""},
		{"no settlement", func(r *record) { r.events = append(r.events[:6:6], r.events[8:]...) }, promiseShutdown},
		{"never handled", func(r *record) { r.events = append(r.events[:3:3], r.events[8:]...) }, promiseLost},
		{"left in its topic", func(r *record) { r.left = map[string]int{"orders": 1} }, promiseLiveness},
		{"a strange dead letter", func(r *record) {
			r.letters = map[string][]brokers.Message{"orders.dead": {{ID: "m9"}}}
		}, promiseStranger},
		{"a dead letter without a story", func(r *record) {
			r.letters = map[string][]brokers.Message{"orders.dead": {s.messages[0].Message}}
		}, promiseLetter},
		{"moved by the broker", func(r *record) {
			r.letters = map[string][]brokers.Message{"orders.dead": {s.messages[0].Message}}
			r.moved = map[string]bool{"m0": true}
		}, promiseLetter},
		{"a killer moved by the broker", func(r *record) { moved(r, 18, true, true) }, ""},
		{"a killer moved too early", func(r *record) { moved(r, 17, true, true) }, promiseLetter},
		{"a killer of no order moved", func(r *record) { moved(r, 18, false, true) }, promiseLetter},
		{"a killer without a story", func(r *record) { moved(r, 18, true, false) }, promiseLetter},
		{"taken for a crash loop", func(r *record) {
			onProcesses := *s
			onProcesses.served = true
			r.scenario = &onProcesses
			r.letters = map[string][]brokers.Message{"orders.dead": {dlq.Entry{Message: s.messages[0].Message, Reason: "crash-loop"}.Encode(0)}}
		}, promiseInnocent},
		{"too slow to stop", func(r *record) { r.events[10].At = time.Minute }, promiseShutdown},
		{"stopped by itself", func(r *record) { r.events = append(r.events[:8:8], r.events[9:]...) }, promiseShutdown},
		{"told by a fault that its lease is lost, and extended", func(r *record) { refused(r, true) }, ""},
		{"told so for no reason", func(r *record) { refused(r, false) }, promiseLease},
		{"settled after its lease", func(r *record) {
			for i := 6; i < len(r.events); i++ {
				r.events[i].At += time.Minute
			}
		}, promiseStale},
	} {
		r := &record{scenario: s, events: life()}
		tt.change(r)
		got := map[promise]bool{}
		for _, v := range check(r).violations {
			got[v.promise] = true
		}
		want := map[promise]bool{}
		if tt.want != "" {
			want[tt.want] = true
		}
		if tt.want == "" && len(got) > 0 || tt.want != "" && !got[tt.want] {
			t.Errorf("%s: broken are %v, want %v", tt.name, reflect.ValueOf(got).MapKeys(), reflect.ValueOf(want).MapKeys())
		}
	}
}

// TestCheckOfSlowPublishes lets a message be there twice while its Publish lasts for
// longer than a call may, and not long after one that has ended.
func TestCheckOfSlowPublishes(t *testing.T) {
	for _, tt := range []struct {
		end     kind // of the Publish, a moment after its begin; 0 if it has none
		again   time.Duration
		excused bool
	}{
		{0, callTimeout, false},
		{0, callTimeout + 1, true},
		{confirmed, 2 * callTimeout, false},
		{unsent, 2 * callTimeout, false},
	} {
		s := newScenario(1, 1, virtual)
		s.served = true
		events := []event{{Kind: sent}}
		if tt.end != 0 {
			events = append(events, event{At: 1, Kind: tt.end})
		}
		if tt.end != unsent {
			events = append(events, event{At: 2, Kind: received, Delivery: 1})
		}
		events = append(events, event{At: tt.again, Kind: received, Delivery: 2})
		if found := finds(s, "delivered once more", events); found == tt.excused {
			t.Errorf("%+v: a delivery too many is found: %t", tt, found)
		}
	}
}

// finds reports whether the check says these words of what a worker and the producer
// did with the only message.
func finds(s *scenario, words string, events []event) bool {
	s.topics = s.topics[:1]
	s.messages[0].topic = 0
	for i := range events {
		e := &events[i]
		e.ID, e.Topic, e.Worker = "m0", s.topics[0].name, 1
	}
	events = append([]event{{Kind: up, Worker: 1, Attempt: 1}}, events...)
	return strings.Contains(fmt.Sprint(check(&record{scenario: s, events: events}).violations), words)
}

// TestCheckOfStuckHandlers lets a worker pause a topic whose handlers have lost their
// leases, if they were stuck by then: those have failed for it, though they return.
func TestCheckOfStuckHandlers(t *testing.T) {
	const timeout = time.Minute
	for ran, stuck := range map[time.Duration]bool{timeout - 1: false, timeout: true} {
		s := newScenario(1, 3, virtual)
		s.topics = []topic{{name: "orders", policy: retry.Policy{MaxAttempts: 3}, timeout: timeout}}
		events := []event{{Kind: up, Worker: 1, Attempt: 3}}
		for _, k := range []kind{received, started, ended} {
			for i := range s.messages {
				s.messages[i].topic = 0
				e := event{Kind: k, Worker: 1, Delivery: i + 1, ID: s.messages[i].ID, Topic: "orders", Attempt: 1, Flags: isFirst, Until: time.Hour}
				if k == ended {
					e.At, e.Outcome, e.Cause = ran, interrupted, lost
				}
				events = append(events, e)
			}
		}
		events = append(events, event{Kind: paused, At: ran, Worker: 1, Note: "orders"})
		violations := check(&record{scenario: s, events: events}).violations
		unfounded := slices.ContainsFunc(violations, func(v violation) bool { return v.promise == promiseContrast })
		if unfounded == stuck {
			t.Errorf("a pause after runs of %v that lost their leases: unfounded is %t, want %t", ran, unfounded, !stuck)
		}
	}
}

// TestCheckOfUnheardReceives lets the count of a message of SQS tell of receives that
// the ledger does not know: of one for each half of a lease that it was there to be
// received, and for no other time.
func TestCheckOfUnheardReceives(t *testing.T) {
	const half = sqsLease / 2
	receive := func(at time.Duration, number, attempt int, due time.Duration) event {
		return event{At: at, Kind: received, Delivery: number, Attempt: attempt, Due: due, Until: at + sqsLease}
	}
	first := receive(4*half, 1, 4, 0)
	over := 4*half + sqsLease // its lease, which is one receive more
	const due = 20 * half
	retried := []event{
		receive(0, 1, 0, 0),
		{At: 1, Kind: settling, Delivery: 1, Action: brokers.Retry, Attempt: 1, Due: due, Delay: due},
		{At: 2, Kind: settled, Delivery: 1, Action: brokers.Retry},
	}
	for _, tt := range []struct {
		name    string
		events  []event
		excused bool
	}{
		{"none", []event{receive(half-1, 1, 0, 0)}, true},
		{"one too early", []event{receive(half-1, 1, 1, 0)}, false},
		{"one", []event{receive(half, 1, 1, 0)}, true},
		{"two in the time of one", []event{receive(2*half-1, 1, 2, 0)}, false},
		{"those before the delivery that is over", []event{first, receive(over, 2, 5, 0)}, true},
		{"one more than those", []event{first, receive(over, 2, 6, 0)}, false},
		{"one since it is over", []event{first, receive(over+half, 2, 6, 0)}, true},
		{"one before it is due", append(slices.Clone(retried), receive(due+half-1, 2, 2, due)), false},
		{"one since it is due", append(slices.Clone(retried), receive(due+half, 2, 2, due)), true},
	} {
		s := newScenario(1, 1, servedSQS())
		s.served, s.broker, s.copies, s.fifo = true, "sqs", false, false
		s.topics[0].policy.MaxAttempts = 20
		if found := finds(s, "was delivered as", append([]event{{Kind: sent}, {Kind: confirmed}}, tt.events...)); found == tt.excused {
			t.Errorf("%s: a count that is too high is found: %t", tt.name, found)
		}
	}
}
