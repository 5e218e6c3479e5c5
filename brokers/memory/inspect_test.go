package memory_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestInspection(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "gone", "delayed", "in flight", "again", "ready")
		start := time.Now()
		ds := w.expect(w.source, "gone", "delayed", "in flight", "again")
		w.ack(w.source, ds[0])
		w.settle(w.source, brokers.Settlement{
			Delivery: ds[1], Action: brokers.Retry, Delay: time.Hour, Meta: brokers.Meta{Attempt: 4},
		}, nil)
		w.release(w.source, ds[3])
		w.stats("in", memory.Stats{Ready: 2, Delayed: 1, InFlight: 1})
		if got := w.broker.Len("in"); got != 4 {
			w.Errorf("Len = %d, want 4", got)
		}
		want := []string{"delayed", "in flight", "again", "ready"}
		if got := ids(w.broker.Messages("in")); !slices.Equal(got, want) {
			w.Errorf("Messages = %v, want %v", got, want)
		}
		records := w.broker.Records("in")
		if r := records[0]; !r.DueAt.Equal(start.Add(time.Hour)) || !r.LeaseUntil.IsZero() || r.Meta.Attempt != 4 {
			w.Errorf("the record of the delayed message is %+v", r)
		}
		if r := records[1]; !r.LeaseUntil.Equal(ds[2].LeaseUntil) || !r.DueAt.IsZero() || r.Meta.Origin.Get("topic") != "in" {
			w.Errorf("the record of the message in flight is %+v", r)
		}
		if r := records[3]; !r.LeaseUntil.IsZero() || !r.DueAt.IsZero() {
			w.Errorf("the record of the ready message is %+v", r)
		}
		w.pass(time.Minute)
		if r := w.broker.Records("in")[1]; r.Abandoned != 1 || !r.LeaseUntil.IsZero() {
			w.Errorf("after its lease, the record of the message in flight is %+v", r)
		}
	})
}
