package main

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
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
