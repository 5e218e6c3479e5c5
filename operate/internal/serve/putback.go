package serve

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/store"
)

// mostBytes is how much of bodies is published at once, unless it is one letter.
const mostBytes = 8 << 20

// PutBack publishes letters as they were to the dead-letter topic of a broker that
// they came from, and discards them when that has confirmed them. It returns how
// many.
func (s *Server) PutBack(ctx context.Context, a store.Actor, broker, source string, letters []int64) (int64, error) {
	b, err := s.Brokers.Open(ctx, broker)
	if err != nil {
		return 0, err
	}
	return s.Store.PutBack(ctx, time.Now(), a, letters, func(ctx context.Context, letters []int64) (confirmed []int64, err error) {
		var batch []brokers.Message
		size := 0
		for i, id := range letters {
			m, _, err := s.Store.Content(ctx, id)
			if err != nil {
				return confirmed, err
			}
			m.Topic = source
			batch, size = append(batch, m), size+len(m.Body)
			if i+1 < len(letters) && size < mostBytes {
				continue
			}
			of := letters[i+1-len(batch) : i+1]
			done, err := publish(ctx, b, source, of, batch)
			confirmed = append(confirmed, done...)
			if err != nil {
				return confirmed, err
			}
			batch, size = nil, 0
		}
		return confirmed, nil
	})
}

// publish returns those letters that the broker has confirmed.
func publish(ctx context.Context, b brokers.Broker, topic string, letters []int64, msgs []brokers.Message) (confirmed []int64, err error) {
	err = b.Publish(ctx, topic, msgs...)
	if err == nil {
		return letters, nil
	}
	if failed, ok := errors.AsType[*brokers.PublishError](err); ok {
		for i, id := range letters {
			if failed.Failed[i] == nil {
				confirmed = append(confirmed, id)
			}
		}
	}
	return confirmed, err
}
