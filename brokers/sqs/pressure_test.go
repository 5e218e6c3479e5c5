package sqs

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPressure asks the queue how much is in flight, and copies while that is
// too much.
func TestPressure(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		asked := s.server.Count("GetQueueAttributes")
		s.publish(fill("%d", 40)...)
		ds := s.receive(src, 40)
		for _, d := range ds[:20] {
			s.settle(src, again(d, time.Hour))
		}
		synctest.Wait()
		s.demand("GetQueueAttributes", asked+1)
		time.Sleep(weighPace)
		s.settle(src, again(ds[20], time.Hour))
		synctest.Wait()
		s.demand("GetQueueAttributes", asked+2)
		time.Sleep(weighPace / 2)
		s.settle(src, ack(ds[21]), release(ds[22]))
		synctest.Wait()
		s.demand("GetQueueAttributes", asked+2)
	})
}

// TestPressureOfTheQueue has the queue tell how much is in flight: at 100,000 the
// next retry is a copy, until it is less. FIFO queues have no other way.
func TestPressureOfTheQueue(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		play(t, topic, Options{}, func(s *scene) {
			var inFlight atomic.Int32
			b := s.answer(".GetQueueAttributes", func() string {
				if n := inFlight.Load(); n > 0 {
					return fmt.Sprintf(`{"Attributes":{"ApproximateNumberOfMessagesNotVisible":"%d"}}`, n)
				}
				return ""
			})
			src := s.openOn(b)
			s.publish("a/0", "b/0", "c/0", "d/0", "e/0", "f/0")
			ds := s.receive(src, 6)
			for i, tt := range []struct {
				inFlight int32
				copies   int
			}{{99_999, 0}, {100_000, 0}, {100_000, 1}, {99_999, 1}, {99_999, 0}} {
				inFlight.Store(tt.inFlight)
				copies := s.count(sendBatch, func() { s.settle(src, again(ds[i], time.Hour)) }) // and asks the queue
				synctest.Wait()
				if src.Capabilities().Ordered {
					tt.copies = 0
				}
				if copies != tt.copies {
					s.Errorf("%s: retry %d was copied %d times, want %d", topic, i, copies, tt.copies)
				}
				time.Sleep(1500 * time.Millisecond)
				src.mu.Lock()
				src.feeds[0].weighed = time.Time{}
				src.mu.Unlock()
			}
		})
	}
}
