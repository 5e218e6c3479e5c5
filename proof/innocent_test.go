package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
)

// A message that a worker had when something else killed it may be blamed for
// that. One that was only ever beside a message that kills may not, nor one that
// was settled before.
func TestWhoMayBeTakenForACrashLoop(t *testing.T) {
	for name, tt := range map[string]struct {
		by      point
		settled bool
		want    int
	}{
		"killed by a message":  {by: byMessage, want: 1},
		"killed by the driver": {by: beforeAck},
		"killed afterwards":    {by: beforeAck, settled: true, want: 1},
	} {
		m := brokers.Message{ID: "m0", Topic: "orders", Body: []byte("{}")}
		s := &scenario{
			broker: "kafka", served: true,
			topics:   []topic{{name: "orders", dead: "orders.dead"}},
			messages: []message{{Message: m, script: []step{{}}}},
		}
		w := &life{number: 1, committed: time.Second}
		c := &checker{record: &record{scenario: s}, fates: map[string]*fate{}, workers: map[int]*life{1: w}, now: time.Second}
		w.deliveries = []*delivery{{number: 1, fate: c.fate("m0"), topic: &s.topics[0], worker: w, settled: tt.settled}}
		c.takeWorker(&event{Kind: crashed, Worker: 1, Note: string(tt.by)})
		c.checkLetter("orders.dead", dlq.Entry{Message: m, Reason: "crash-loop"}.Encode(0))
		found := 0
		for _, v := range c.violations {
			if v.promise == promiseInnocent {
				found++
			}
		}
		if found != tt.want {
			t.Errorf("%s: broken %d times, want %d: %v", name, found, tt.want, c.violations)
		}
	}
}

// What Kafka's library has no answer to it writes up to three times, which only
// a fault explains.
func TestHowOftenAMessageMayBeStored(t *testing.T) {
	for name, tt := range map[string]struct {
		broker string
		storm  storm
		want   int
	}{
		"in a fault":                   {"kafka", storm{to: time.Minute}, 3},
		"without one":                  {"kafka", storm{}, 1},
		"by a library that sends once": {"rabbitmq", storm{to: time.Minute}, 1},
	} {
		c := &checker{record: &record{scenario: &scenario{
			broker: tt.broker, served: true,
			topics:   []topic{{name: "orders", dead: "orders.dead"}},
			messages: []message{{Message: brokers.Message{ID: "m0", Topic: "orders"}, script: []step{{}}}},
		}}, fates: map[string]*fate{}, workers: map[int]*life{1: {number: 1}}, deliveries: map[int]*delivery{}, storm: tt.storm, now: time.Second}
		for _, kind := range []kind{sent, confirmed} {
			c.takePublish(&event{Kind: kind, ID: "m0", Topic: "orders"})
		}
		c.now = time.Hour // the fault is over
		for number := 1; len(c.violations) == 0 && number < 9; number++ {
			c.takeReceived(&event{Kind: received, ID: "m0", Topic: "orders", Worker: 1, Delivery: number})
		}
		if stored := len(c.deliveries) - 1; stored != tt.want {
			t.Errorf("%s it may be delivered %d times, want %d: %v", name, stored, tt.want, c.violations)
		}
	}
}

// A worker that a fault keeps from opening its source may say so at its end, also
// when it was told to stop by then, but not take longer. Without a fault, or once it
// has received, it must end without an error.
func TestHowAWorkerMayEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		storm              storm
		stopping, received int
		at                 time.Duration
		wants              bool
	}{
		"in a fault, by itself":       {storm{to: time.Minute}, 0, 0, 2 * time.Second, true},
		"in a fault, told to stop":    {storm{to: time.Minute}, 1, 0, 2 * time.Second, true},
		"in a fault, long after":      {storm{to: time.Hour}, 1, 0, time.Hour, false},
		"in a fault, having received": {storm{to: time.Minute}, 1, 3, 2 * time.Second, false},
		"without one":                 {storm{}, 1, 0, 2 * time.Second, false},
	} {
		c := &checker{record: &record{scenario: &scenario{}}, storm: tt.storm, now: tt.at}
		w := &life{number: 1, stopping: time.Duration(tt.stopping) * time.Second, received: tt.received}
		c.takeDown(w, &event{At: c.now, Worker: 1, Note: "open: connection refused"})
		if (len(c.violations) == 0) != tt.wants {
			t.Errorf("%s: violations %v, allowed is %v", name, c.violations, tt.wants)
		}
	}
}

// Before a worker of SQS ends, it waits for its polls; those of others have none.
func TestHowLongAWorkerMayTakeToStop(t *testing.T) {
	const drain = time.Second
	usual := drain + time.Second + served.slack
	for name, tt := range map[string]struct {
		pace pace
		took time.Duration
		want bool
	}{
		"with nothing to wait for":   {served, usual, true},
		"longer":                     {served, usual + time.Millisecond, false},
		"of SQS, with a poll":        {servedSQS(), usual + sqsPollWait, true},
		"of SQS, longer than a poll": {servedSQS(), usual + sqsPollWait + time.Millisecond, false},
	} {
		c := &checker{record: &record{scenario: &scenario{pace: tt.pace}}}
		const stopped = time.Minute
		c.takeDown(&life{number: 1, drain: drain, stopping: stopped}, &event{At: stopped + tt.took, Worker: 1})
		if (len(c.violations) == 0) != tt.want {
			t.Errorf("%s: violations %v after %v, allowed is %v", name, c.violations, tt.took, tt.want)
		}
	}
}

// What a worker received when a fault was over, on a connection that the fault had
// cut, comes again: when the worker has its next connection, or later.
func TestWhatComesAgainOnTheNextConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		storm    storm
		connects bool
		want     bool
	}{
		"on the next one after a fault":  {storm{to: time.Minute}, true, true},
		"on the same one after a fault":  {storm{to: time.Minute}, false, false},
		"on the next one, without fault": {storm{}, true, false},
	} {
		w := &life{number: 1}
		c := &checker{record: &record{scenario: &scenario{
			broker: "rabbitmq", served: true, pace: served,
			topics:   []topic{{name: "orders", dead: "orders.dead"}},
			messages: []message{{Message: brokers.Message{ID: "m0", Topic: "orders"}, script: []step{{}}}},
		}}, fates: map[string]*fate{}, workers: map[int]*life{1: w}, deliveries: map[int]*delivery{}, counts: map[kind]int{}, storm: tt.storm, now: time.Second}
		come := func(number int) *event {
			return &event{Kind: received, ID: "m0", Topic: "orders", Worker: 1, Delivery: number}
		}
		for _, e := range []*event{{Kind: sent, ID: "m0", Topic: "orders"}, {Kind: confirmed, ID: "m0", Topic: "orders"}, come(1)} {
			c.take(e)
		}
		if tt.connects {
			c.take(&event{Kind: consuming, Worker: 1})
		}
		c.now = time.Hour
		c.take(come(2))
		if (len(c.violations) == 0) != tt.want {
			t.Errorf("%s: violations %v, allowed is %v", name, c.violations, tt.want)
		}
	}
}

// Messages of a key are in order if they are of one call, or of calls one after
// the other. The driver has several producers.
func TestOrderOfProducers(t *testing.T) {
	type step struct {
		kind kind
		id   string
	}
	for name, tt := range map[string]struct {
		calls [2]int
		steps []step
		want  int
	}{
		"one call":                   {[2]int{1, 1}, []step{{sent, "m0"}, {sent, "m1"}, {confirmed, "m0"}, {confirmed, "m1"}}, 1},
		"one call after the other":   {[2]int{1, 2}, []step{{sent, "m0"}, {confirmed, "m0"}, {sent, "m1"}, {confirmed, "m1"}}, 1},
		"calls at the same time":     {[2]int{1, 2}, []step{{sent, "m0"}, {sent, "m1"}, {confirmed, "m0"}, {confirmed, "m1"}}, 0},
		"the handled one came first": {[2]int{1, 2}, []step{{sent, "m1"}, {confirmed, "m1"}, {sent, "m0"}, {confirmed, "m0"}}, 0},
		"the other one failed":       {[2]int{1, 1}, []step{{sent, "m0"}, {sent, "m1"}, {unsent, "m0"}, {confirmed, "m1"}}, 0},
	} {
		s := &scenario{broker: "sqs", served: true, options: memory.Options{Ordered: true}, topics: []topic{{name: "orders"}}}
		for i, call := range tt.calls {
			s.messages = append(s.messages, message{call: call, Message: brokers.Message{ID: fmt.Sprintf("m%d", i), Key: "k", Topic: "orders"}})
		}
		c := &checker{record: &record{scenario: s}, fates: map[string]*fate{}, keys: map[string][]*fate{}}
		for _, step := range tt.steps {
			c.takePublish(&event{Kind: step.kind, ID: step.id, Topic: "orders"})
		}
		handled := c.fate("m1")
		handled.successes = 1
		c.endLane(&delivery{fate: handled, topic: &s.topics[0]})
		if len(c.violations) != tt.want {
			t.Errorf("%s: m1 is handled and m0 is not: broken %d times, want %d: %v", name, len(c.violations), tt.want, c.violations)
		}
	}
}

// A commit has what was settled when the one before was answered. Of what came
// after that, the checker knows that a commit is not longer on its way than
// commitDelay.
func TestWhatACommitHas(t *testing.T) {
	c := &checker{record: &record{scenario: &scenario{broker: "kafka", served: true}}, workers: map[int]*life{1: {number: 1}}}
	for _, step := range []struct {
		at, took time.Duration
		err      fail
		want     time.Duration // what was settled before that is committed
	}{
		{2 * time.Second, time.Second, fine, -commitDoubt},
		{3 * time.Second, time.Second / 4, fine, 2*time.Second - commitDoubt},
		{4 * time.Second, 0, refused, 2*time.Second - commitDoubt},
		{5 * time.Second, 0, fine, 4*time.Second - commitDoubt},
		{time.Minute, time.Second, fine, time.Minute - time.Second - commitDelay - commitDoubt},
	} {
		c.takeCommitted(&event{Kind: committed, Worker: 1, At: step.at, Delay: step.took, Err: step.err})
		if got := c.workers[1].committed; got != step.want {
			t.Errorf("after the answer at %v: what was settled before %v is committed, want %v", step.at, got, step.want)
		}
	}
}

// A retry on SQS is done when its copy is stored. If the lease was over by then,
// the original is not deleted, and comes again.
func TestWhatALateRetryLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		broker string
		at     time.Duration // of the answer; the lease is until 3s
		want   int
	}{
		"in time":           {"sqs", 2 * time.Second, 1},
		"late":              {"sqs", 4 * time.Second, 2},
		"late, on RabbitMQ": {"rabbitmq", 4 * time.Second, 1},
	} {
		c := &checker{record: &record{scenario: &scenario{
			broker: tt.broker, served: true,
			topics:   []topic{{name: "orders"}},
			messages: []message{{Message: brokers.Message{ID: "m0", Topic: "orders"}, script: []step{{}}}},
		}}, fates: map[string]*fate{}, workers: map[int]*life{1: {number: 1}}, settledBy: map[brokers.Action]int{}, deliveries: map[int]*delivery{}}
		for _, kind := range []kind{sent, confirmed} {
			c.takePublish(&event{Kind: kind, ID: "m0", Topic: "orders"})
		}
		c.takeReceived(&event{Kind: received, ID: "m0", Topic: "orders", Worker: 1, Delivery: 1, Until: 3 * time.Second})
		f, d := c.fate("m0"), c.deliveries[1]
		f.give(token{attempt: 1}) // the copy
		f.asking[brokers.Retry], d.asked, d.askedAt = 1, 1, time.Second
		c.now = tt.at
		c.takeSettled(&event{Kind: settled, At: tt.at, Worker: 1, Delivery: 1, Action: brokers.Retry})
		for number := 2; len(c.violations) == 0 && number < 9; number++ {
			c.takeReceived(&event{Kind: received, At: tt.at, ID: "m0", Topic: "orders", Worker: 1, Delivery: number, Attempt: 1})
		}
		if came := len(c.deliveries) - 2; came != tt.want {
			t.Errorf("%s: m0 may come again %d times, want %d: %v", name, came, tt.want, c.violations)
		}
	}
}
