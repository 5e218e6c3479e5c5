package brokertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var brokenPausing = []broken{
	{name: "a pause is ignored", fails: "pause-holds",
		hooks: onPause(func(*faultySource, []string) {})},
	{name: "a pause takes its time", fails: "pause-holds",
		hooks: onPause(func(s *faultySource, topics []string) {
			time.Sleep(time.Second) // the bug
			s.inner.Pause(topics...)
		})},
	{name: "a retry that is due ends the pause of its topic", fails: "pause-holds-retries",
		hooks: resumingRetries},
	{name: "a pause stops all topics", fails: "pause-lets-others",
		hooks: onPause(func(s *faultySource, topics []string) {
			if len(topics) > 0 {
				topics = s.sub.Topics
			}
			s.inner.Pause(topics...)
		})},
	{name: "a due retry of a paused topic holds up the others", fails: "pause-lets-others",
		hooks: blockingRetries},
	{name: "a pause never ends", fails: "pause-ends",
		hooks: addingPauses(func([]string) bool { return false })},
	{name: "a pause adds to the one before", fails: "pause-ends",
		hooks: addingPauses(func(topics []string) bool { return len(topics) == 0 })},
	{name: "an unknown topic voids a pause", fails: "pause-unknown",
		hooks: onPause(func(s *faultySource, topics []string) {
			if s.unknown(topics) {
				topics = nil
			}
			s.inner.Pause(topics...)
		})},
	{name: "a pause of an unknown topic stops all", fails: "pause-unknown",
		hooks: onPause(func(s *faultySource, topics []string) {
			if s.unknown(topics) {
				topics = s.sub.Topics
			}
			s.inner.Pause(topics...)
		})},
	{name: "a pause drops what is fetched", fails: "pause-loses-nothing",
		hooks: onPause(func(s *faultySource, topics []string) {
			for _, d := range s.fetch(topics) {
				s.settle(context.Background(), brokers.Settlement{Delivery: d, Action: brokers.Ack})
			}
			s.inner.Pause(topics...)
		})},
	{name: "a pause lets the leases of what is fetched run out", fails: "pause-not-counted",
		hooks: hoardingPauses},
	{name: "each pause counts as a delivery", fails: "pause-not-counted",
		hooks: countedPauses},
	{name: "messages come in any order", fails: "order-published",
		hooks: reversed(func() bool { return true })},
	{name: "what a pause holds up comes in any order", fails: "pause-keeps-order",
		hooks: reversedByPauses},
	{name: "the same where the broker keeps order", fails: "pause-keeps-order",
		hooks:   reversedByPauses,
		options: memory.Options{Ordered: true}},
}

func onPause(pause func(s *faultySource, topics []string)) func() hooks {
	return func() hooks { return hooks{pause: pause} }
}

func (s *faultySource) unknown(topics []string) bool {
	return slices.ContainsFunc(topics, func(topic string) bool { return !slices.Contains(s.sub.Topics, topic) })
}

// fetch takes what there is of topics.
func (s *faultySource) fetch(topics []string) []*brokers.Delivery {
	others := slices.DeleteFunc(slices.Clone(s.sub.Topics), func(topic string) bool { return slices.Contains(topics, topic) })
	s.inner.Pause(others...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	ds, _ := s.take(ctx, 10)
	return ds
}

// addingPauses keeps what was paused before unless ends says otherwise.
func addingPauses(ends func(topics []string) bool) func() hooks {
	return func() hooks {
		paused := make(map[*faultySource][]string)
		return hooks{pause: func(s *faultySource, topics []string) {
			if ends(topics) {
				paused[s] = nil
			}
			paused[s] = append(paused[s], topics...)
			s.inner.Pause(paused[s]...)
		}}
	}
}

// resumingRetries looks again and again, as a Receive that waits does not notice
// the end of a pause.
func resumingRetries() hooks {
	h := onRetry(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
		time.AfterFunc(st.Delay, func() { s.inner.Pause() })
		return nil
	})()
	h.receive = func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
		for {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			ds, err := s.take(short, max)
			cancel()
			switch {
			case err == nil || !errors.Is(err, context.DeadlineExceeded):
				return ds, err
			case ctx.Err() != nil: // at the same instant
				return nil, context.Cause(ctx)
			}
		}
	}
	return h
}

func blockingRetries() hooks {
	var mu sync.Mutex
	paused := make(map[*faultySource][]string)
	h := onRetry(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
		topic := st.Delivery.Message.Topic
		time.AfterFunc(st.Delay, func() {
			mu.Lock()
			defer mu.Unlock()
			if slices.Contains(paused[s], topic) {
				s.inner.Pause(s.sub.Topics...)
			}
		})
		return nil
	})()
	h.pause = func(s *faultySource, topics []string) {
		mu.Lock()
		defer mu.Unlock()
		paused[s] = topics
		s.inner.Pause(topics...)
	}
	return h
}

// hoardingPauses keeps for a source what a pause finds, and hands it out after
// the pause however old it is.
func hoardingPauses() hooks {
	hoards := make(map[*faultySource][]*brokers.Delivery)
	paused := make(map[*faultySource]bool)
	return hooks{
		pause: func(s *faultySource, topics []string) {
			paused[s] = len(topics) > 0
			hoards[s] = append(hoards[s], s.fetch(topics)...)
			s.inner.Pause(topics...)
		},
		receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			if paused[s] || len(hoards[s]) == 0 {
				return s.take(ctx, max)
			}
			n := min(max, len(hoards[s]))
			ds := hoards[s][:n]
			hoards[s] = hoards[s][n:]
			return ds, nil
		},
	}
}

func countedPauses() hooks {
	pauses := make(map[*faultySource]int)
	h := onDelivery(func(s *faultySource, d *brokers.Delivery) { d.Abandoned += pauses[s] / 20 })()
	h.pause = func(s *faultySource, topics []string) {
		if len(topics) > 0 {
			pauses[s]++
		}
		s.inner.Pause(topics...)
	}
	return h
}

// reversed turns what Receive returns round when it is told to.
func reversed(when func() bool) func() hooks {
	return func() hooks {
		return hooks{receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if when() {
				slices.Reverse(ds)
			}
			return ds, err
		}}
	}
}

func reversedByPauses() hooks {
	paused := false
	h := reversed(func() bool { return paused })()
	h.pause = func(s *faultySource, topics []string) {
		paused = true
		s.inner.Pause(topics...)
	}
	return h
}
