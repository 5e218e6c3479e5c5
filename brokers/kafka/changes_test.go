package kafka

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// A retry that waits in a topic that the policy does not need any more still
// comes.
func TestRetriesOfALongerPolicyAreRead(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.write(s.topic, "waiting")
		w := s.open(func(sub *brokers.Subscription) { sub.MaxDelay = 10 * time.Minute })
		ds, _ := w.receive(1)
		meta := ds[0].Meta
		meta.Attempt++
		meta.DueAt = time.Now().Add(time.Second)
		if errs := w.Settle(withinTime(t), []brokers.Settlement{{Delivery: ds[0], Action: brokers.Retry, Delay: 2 * time.Minute, Meta: meta}}); errs != nil {
			t.Fatal(errs)
		}
		w.close()
		again := s.open() // of delays up to a minute
		ds, _ = again.receive(1)
		s.sameBodies("after the policy became shorter", ds, []string{"waiting"})
		if want := "redrive.delay.v1." + s.group + ".15m"; ds[0].Token.(*token).reader.partition.topic != want {
			t.Errorf("it came from %s, want %s", ds[0].Token.(*token).reader.partition, want)
		}
		again.settle(brokers.Ack, ds...)
	})
}

// A worker that could not commit at the end of a generation goes on where it
// was, unless somebody else has committed since.
func TestAReaderGoesOnWithWhatItKept(t *testing.T) {
	last := commitment{5, ownerOpen}
	for name, tt := range map[string]struct {
		stored commitment
		low    int64
		wary   bool
	}{
		"nobody else":   {last, 8, false},
		"somebody else": {commitment{6, ownerOpen}, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := readerOn(t, newStub(t), first, last, span{0, 10}, usualLimits)
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			f.progress.done(5)
			f.progress.done(6)
			f.progress.done(7)
			f.generation.source.kept = map[partition]kept{first: {last, f.progress}}
			r, err := newReader(f.generation, first, tt.stored, span{0, 10})
			if err != nil || r.progress.lowWater() != tt.low || r.next != tt.low || r.wary.IsZero() == tt.wary {
				t.Errorf("low %d, next %d, wary %v, error %v; want %+v", r.progress.lowWater(), r.next, r.wary, err, tt)
			}
		})
	}
}
