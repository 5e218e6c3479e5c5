package sqs

import (
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
	now := time.Now()
	var p pressure
	if p.high(now) {
		t.Error("the pressure is high from the start")
	}
	if p.full(now); !p.high(now.Add(fullPause-1)) || p.high(now.Add(fullPause)) {
		t.Error("after OverLimit, the pressure is to be high for a minute")
	}
}
