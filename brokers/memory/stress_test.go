package memory_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var seed = flag.Uint64("seed", 0, "replay this one seed of the stress test")

// TestStress lets workers do random things to random messages on a broker with
// random faults, and compares every step with a ledger of its own.
func TestStress(t *testing.T) {
	first, last := uint64(1), uint64(12)
	if *seed > 0 {
		first, last = *seed, *seed
	}
	for n := first; n <= last && !t.Failed(); n++ {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed=%d/ordered=%t", n, ordered), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { newStress(t, n, ordered).run() })
			})
		}
	}
}

const (
	stressKeys     = 5
	stressMessages = 30 // of a key
	stressLease    = 20 * time.Second
)

type stress struct {
	*testing.T
	seed    uint64
	ordered bool
	broker  *memory.Broker

	mu      sync.Mutex
	entries map[string]*account // by message id
	keys    map[string][]string // the ids of a key in the order of publication
}

// account is what the ledger knows about one message.
type account struct {
	stored    bool // its Publish was confirmed
	acks      int  // that may have had their effect
	retries   int  // that may have had their effect
	confirmed int  // retries that had
	settledAt time.Time
	due       time.Time
}

func newStress(t *testing.T, seed uint64, ordered bool) *stress {
	s := &stress{T: t, seed: seed, ordered: ordered, entries: map[string]*account{}, keys: map[string][]string{}}
	s.broker = memory.New(memory.Options{Lease: stressLease, Limit: 40, Ordered: ordered, Fault: s.fault})
	return s
}

// fault is a function of the seed and the operation alone.
func (s *stress) fault(op memory.Op) memory.Fault {
	h := fnv.New64a()
	fmt.Fprint(h, s.seed, op)
	r := rand.New(rand.NewPCG(h.Sum64(), s.seed))
	switch r.IntN(40) {
	case 0:
		return memory.Fault{Err: errBadDay}
	case 1:
		return memory.Fault{Err: brokers.ErrUnknownOutcome}
	case 2:
		return memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}
	case 3:
		return memory.Fault{Duplicate: op.Operation == memory.Deliver && !s.ordered}
	case 4:
		return memory.Fault{Lost: true}
	case 5, 6, 7:
		return memory.Fault{Latency: time.Duration(r.Int64N(int64(stressLease)))}
	}
	return memory.Fault{}
}

func (s *stress) run() {
	ctx, cancel := context.WithTimeout(s.Context(), 24*time.Hour)
	defer cancel()
	var publishers, workers sync.WaitGroup
	for key := range stressKeys {
		publishers.Go(func() { s.publish(ctx, strconv.Itoa(key)) })
	}
	for n := range uint64(4) {
		workers.Go(func() { s.work(ctx, rand.New(rand.NewPCG(s.seed, n))) })
	}
	publishers.Wait()
	for s.broker.Len("in") > 0 && ctx.Err() == nil {
		time.Sleep(time.Second)
	}
	cancel()
	workers.Wait()
	s.broker.Close(s.Context())
	if stats := s.broker.Stats("in"); stats != (memory.Stats{}) {
		s.Errorf("seed %d: after a day the topic holds %+v", s.seed, stats)
	}
	for id, a := range s.entries {
		if a.stored && a.acks == 0 {
			s.Errorf("seed %d: message %s is lost", s.seed, id)
		}
	}
}

// publish publishes the messages of a key, each until it is confirmed, with a
// new id every time so that the ledger can tell the copies.
func (s *stress) publish(ctx context.Context, key string) {
	for n := range stressMessages {
		for try := 0; ; try++ {
			id := fmt.Sprintf("%s-%d-%d", key, n, try)
			s.mu.Lock()
			s.entries[id] = &account{}
			s.keys[key] = append(s.keys[key], id)
			s.mu.Unlock()
			err := s.broker.Publish(ctx, "in", brokers.Message{ID: id, Key: key})
			s.mu.Lock()
			s.entries[id].stored = err == nil
			s.mu.Unlock()
			if err == nil || ctx.Err() != nil {
				break
			}
		}
	}
}

func (s *stress) work(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		src, err := s.broker.Open(s.Context(), brokers.Subscription{Topics: []string{"in"}, MaxAttempts: 10})
		if err != nil {
			s.Errorf("seed %d: %v", s.seed, err)
			return
		}
		for r.IntN(30) > 0 && ctx.Err() == nil {
			ds, err := src.Receive(ctx, 1+r.IntN(8))
			if err == nil {
				s.inspect(ds)
				s.handle(src, ds, r)
			}
		}
		if r.IntN(2) == 0 {
			s.broker.Crash(src)
		} else if err := src.Close(s.Context()); err != nil {
			s.Errorf("seed %d: Close: %v", s.seed, err)
		}
	}
}

// inspect compares what was received with the ledger.
func (s *stress) inspect(ds []*brokers.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := map[string]bool{}
	for _, d := range ds {
		id, a := d.Message.ID, s.entries[d.Message.ID]
		settled := a.settledAt.Before(d.ReceivedAt)
		if settled && d.ReceivedAt.Before(a.due) {
			s.Errorf("seed %d: %s came %v early", s.seed, id, a.due.Sub(d.ReceivedAt))
		}
		if settled && d.Meta().Attempt < a.confirmed || d.Meta().Attempt > a.retries {
			s.Errorf("seed %d: %s has Attempt %d after %d confirmed of %d retries", s.seed, id, d.Meta().Attempt, a.confirmed, a.retries)
		}
		if batch[id] {
			continue
		}
		batch[id] = true
		for _, earlier := range s.keys[d.Message.Key] {
			if !s.ordered || earlier == id {
				break
			}
			if e := s.entries[earlier]; e.stored && e.acks == 0 && !batch[earlier] {
				s.Errorf("seed %d: %s came before %s was acked", s.seed, id, earlier)
			}
		}
	}
}

// handle works for a random time, extends now and then, and settles at random.
// After a message of a key that it does not ack, it releases the rest.
func (s *stress) handle(src brokers.Source, ds []*brokers.Delivery, r *rand.Rand) {
	given := map[string]bool{}
	for _, d := range ds {
		time.Sleep(time.Duration(r.Int64N(int64(stressLease / 4))))
		if r.IntN(4) == 0 {
			src.Extend(s.Context(), stressLease, ds)
		}
		st := brokers.Settlement{Delivery: d, Action: brokers.Action(r.IntN(3)), Meta: d.Meta()}
		st.Delay = time.Duration(r.Int64N(int64(3*stressLease))) - stressLease
		st.Meta.Attempt++
		if s.ordered && given[d.Message.Key] {
			st.Action = brokers.Release
		}
		if r.IntN(20) == 0 {
			st.Action, given[d.Message.Key] = brokers.Release, true
			continue // forgets it
		}
		if err := s.settle(src, st); err != nil || st.Action != brokers.Ack {
			given[d.Message.Key] = true
		}
	}
}

// settle tries a few times and keeps the books.
func (s *stress) settle(src brokers.Source, st brokers.Settlement) (err error) {
	s.mu.Lock()
	a := s.entries[st.Delivery.Message.ID]
	switch st.Action {
	case brokers.Ack:
		a.acks++
	case brokers.Retry:
		a.retries = max(a.retries, st.Meta.Attempt)
	}
	s.mu.Unlock()
	for range 3 {
		before := time.Now()
		err = cmp.Or(src.Settle(s.Context(), []brokers.Settlement{st})...)
		if err == nil && st.Action == brokers.Retry {
			s.mu.Lock()
			a.confirmed, a.settledAt, a.due = st.Meta.Attempt, time.Now(), before.Add(st.Delay)
			s.mu.Unlock()
		}
		if err == nil || errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) || errors.Is(err, brokers.ErrClosed) {
			return err
		}
	}
	return err
}
