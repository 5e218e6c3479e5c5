package sqs

import (
	"context"
	"time"
)

const (
	// mostParked is how many messages of a queue may be in flight, of the
	// 120,000 or so that SQS allows, before retries stop to be among them.
	mostParked = 100_000

	weighPace = 15 * time.Second
	fullPause = time.Minute
)

// pressure says whether so much of a queue is in flight that retries must not
// wait there.
type pressure struct {
	weighed time.Time // when the queue was asked last
	heavy   bool
	until   time.Time // heavy in any case
}

func (p *pressure) full(now time.Time) { p.until = now.Add(fullPause) }

func (p *pressure) high(now time.Time) bool { return p.heavy || now.Before(p.until) }

// weigh asks the queue how much is in flight, in the background and from time
// to time. mu is held, and the source is not closed.
func (s *source) weigh(f *feed, now time.Time) {
	if now.Sub(f.pressure.weighed) < weighPace {
		return
	}
	f.pressure.weighed = now
	s.calls.Go(func() {
		attrs, err := s.broker.client.inspect(context.Background(), f.url)
		if err != nil {
			return // as before
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f.pressure.heavy = attrs.inFlight >= mostParked
	})
}
