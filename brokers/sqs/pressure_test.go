package sqs

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPressure has the queue tell how much is in flight, when it is asked from time to
// time: at 100,000 the next retry is a copy, until it is less. FIFO queues have no
// other way.
func TestPressure(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		play(t, topic, Options{}, func(s *scene) {
			var inFlight, asked atomic.Int32
			b := s.answer(".GetQueueAttributes", func() string {
				asked.Add(1)
				if n := inFlight.Load(); n > 0 {
					return fmt.Sprintf(`{"Attributes":{"ApproximateNumberOfMessagesNotVisible":"%d"}}`, n)
				}
				return ""
			})
			src := s.openOn(b)
			asked.Store(0)
			s.publish("a/0", "b/0", "c/0", "d/0", "e/0", "f/0")
			ds := s.receive(src, 6)
			for i, tt := range []struct {
				inFlight int32
				copies   int
			}{{99_999, 0}, {100_000, 0}, {100_000, 1}, {99_999, 1}, {99_999, 0}} {
				inFlight.Store(tt.inFlight)
				copies := s.count(sendBatch, func() { s.settle(src, again(ds[i], time.Hour)) }) // and asks the queue
				synctest.Wait()
				if i == 0 {
					s.settle(src, again(ds[5], time.Hour)) // too soon to ask again
				}
				want := int32(1)
				if src.Capabilities().Ordered {
					tt.copies, want = 0, 0
				}
				if n := asked.Swap(0); copies != tt.copies || n != want {
					s.Errorf("%s: retry %d was copied %d times, and %d looks taken; want %d and %d", topic, i, copies, n, tt.copies, want)
				}
				time.Sleep(1500 * time.Millisecond)
				src.mu.Lock()
				src.feeds[0].weighed = time.Time{}
				src.mu.Unlock()
			}
		})
	}
}
