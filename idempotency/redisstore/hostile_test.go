package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/redisstore"
	"github.com/redrive-go/redrive/integration/redistest"
)

const (
	claimed  = "*3\r\n$3\r\nown\r\n$0\r\n\r\n:30000\r\n"
	recorded = ":1\r\n"
)

// TestAttackAbsurdAnswers calls each method against a broken or hostile server.
func TestAttackAbsurdAnswers(t *testing.T) {
	claim := idempotency.Claim{Key: "key", Token: "a"}
	for _, tt := range []struct {
		name, good string
		call       func(context.Context, *redisstore.Store) error
	}{
		{"Begin", claimed, func(ctx context.Context, s *redisstore.Store) error {
			_, err := s.Begin(ctx, claim, time.Minute)
			return err
		}},
		{"Complete", recorded, func(ctx context.Context, s *redisstore.Store) error { return s.Complete(ctx, claim, time.Minute) }},
		{"Release", recorded, func(ctx context.Context, s *redisstore.Store) error { return s.Release(ctx, claim) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Hostile(t, map[string]string{"evalsha": tt.good}, func(t *testing.T, client redis.UniversalClient) func() error {
				s, err := redisstore.New(client, "")
				if err != nil {
					t.Fatal(err)
				}
				return func() error { return tt.call(t.Context(), s) }
			})
		})
	}
}

// TestAttackAbsurdAnswersToAnExtension makes the first extension of a claim
// fail. It runs in the goroutine of a timer.
func TestAttackAbsurdAnswersToAnExtension(t *testing.T) {
	redistest.Hostile(t, map[string]string{"evalsha": claimed}, func(t *testing.T, client redis.UniversalClient) func() error {
		s, err := redisstore.New(client, "")
		if err != nil {
			t.Fatal(err)
		}
		once, err := idempotency.Once(s, idempotency.Options{Lease: 15 * time.Second, Retention: time.Hour, Redrive: -1})
		if err != nil {
			t.Fatal(err)
		}
		handle := once(func(ctx context.Context, _ *brokers.Message) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return context.Canceled // the handler fails, so its key is released
			}
		})
		return func() error {
			err := handle(t.Context(), &brokers.Message{ID: "7", Topic: "orders"})
			if err == context.Canceled {
				return nil
			}
			return err
		}
	})
}
