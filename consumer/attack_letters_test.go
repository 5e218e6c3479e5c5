package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// letterLimit is the size limit of the broker in the attacks below. A hostile
// message fills it, so that no dead letter of it fits.
const letterLimit = 6 << 10

// siege is good traffic, one message a second, beside messages whose dead letters
// the broker refuses for ever.
type siege struct {
	*memory.Broker
	log  bytes.Buffer
	born time.Time
	cfg  consumer.Config

	mu        sync.Mutex
	sent      map[string]time.Time // good ones
	good      int
	late      int
	runs      int // of hostile ones
	publishes int
	rejects   map[string][]time.Duration // when, by ID
	events    map[string]int
	refused   consumer.Event // the last EventDeadLetterRefused
}

// refusing is a broker that refuses the settlements that do.
func refusing(do func(brokers.Action) bool) *siege {
	s := &siege{cfg: quiet(), born: time.Now(),
		sent: map[string]time.Time{}, rejects: map[string][]time.Duration{}, events: map[string]int{}}
	s.Broker = memory.New(memory.Options{MessageLimit: letterLimit, Fault: func(op memory.Op) memory.Fault {
		if op.Operation != memory.Settle {
			return memory.Fault{}
		}
		if op.Action == brokers.Reject {
			s.mu.Lock()
			s.rejects[op.ID] = append(s.rejects[op.ID], time.Since(s.born))
			s.mu.Unlock()
		}
		if do(op.Action) {
			return memory.Fault{Err: fmt.Errorf("not here: %w", brokers.ErrRefused)}
		}
		return memory.Fault{}
	}})
	s.cfg.Logger = slog.New(slog.NewTextHandler(&s.log, nil))
	s.cfg.Observers = []consumer.Observer{s}
	return s
}

// Publish counts dead letters.
func (s *siege) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	s.mu.Lock()
	s.publishes += len(msgs)
	s.mu.Unlock()
	return s.Broker.Publish(ctx, topic, msgs...)
}

func (s *siege) Observe(_ context.Context, e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[kindOf(e)]++
	if e.Kind == consumer.EventDeadLetterRefused {
		s.refused = e
	}
}

func (s *siege) handle(_ context.Context, m *brokers.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.HasPrefix(m.Body, []byte("bad")) {
		s.runs++
		return classify.Permanent(errors.New("no such article"))
	}
	s.good++
	if time.Since(s.sent[m.ID]) > 10*time.Second {
		s.late++
	}
	return nil
}

// giant returns the nth message that fills the limit of the broker.
func giant(n int) string { return fmt.Sprintf("%-*s", letterLimit, fmt.Sprint("bad-", n)) }

// run lets n hostile messages come, so many at once with the good ones, one a
// second, that come for as long as it says. Broker is this one, or in front of it.
func (s *siege) run(t *testing.T, broker brokers.Broker, n, atOnce int, length time.Duration) {
	t.Helper()
	w := start(t, broker, s.cfg, orders(s.handle))
	seconds := int(length / time.Second)
	for i := range seconds {
		for bad := i * atOnce; bad < min((i+1)*atOnce, n); bad++ {
			publish(t, s.Broker, "orders", giant(bad))
		}
		id := fmt.Sprint("good-", i)
		s.mu.Lock()
		s.sent[id] = time.Now()
		s.mu.Unlock()
		if err := s.Broker.Publish(t.Context(), "orders", brokers.Message{ID: id, Body: []byte("good")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	w.stopAfter(10 * time.Second)
	t.Attr("innocents_harmed", strconv.Itoa(seconds-s.good+s.late))
	if s.good != seconds || s.late != 0 {
		t.Errorf("%d of %d good messages handled, %d of them late", s.good, seconds, s.late)
	}
	if lines := strings.Count(s.log.String(), "\n"); lines > 60*int(length/time.Minute) {
		t.Errorf("%d lines in the log in %v, want them bounded", lines, length)
	}
}

// letters returns the stubs and the originals in the dead-letter topic, by body.
func (s *siege) letters(t *testing.T) (stubs, originals map[string]int) {
	t.Helper()
	stubs, originals = map[string]int{}, map[string]int{}
	for _, m := range s.Messages("orders.dead") {
		name, _, _ := strings.Cut(string(m.Body), " ")
		switch entry, err := dlq.Decode(m); {
		case err != nil:
			originals[name]++
		case entry.Original == nil || entry.Original.BodyBytes != letterLimit || entry.Reason == "" || entry.Message.Topic != "orders":
			t.Fatalf("reason %q, topic %q, original %+v; want a stub", entry.Reason, entry.Message.Topic, entry.Original)
		default:
			stubs[name]++
		}
	}
	return stubs, originals
}

func each(t *testing.T, what string, got map[string]int, want int) {
	t.Helper()
	if len(got) != want {
		t.Errorf("%s of %d messages, want %d", what, len(got), want)
	}
	for name, n := range got {
		if n != 1 {
			t.Errorf("%s: %s %d times, want once", name, what, n)
		}
	}
}

// A message that fills the size limit of its broker ends: with a stub, and in the
// broker's own dead-lettering. It harms nobody.
func TestAttackRefusedLettersEnd(t *testing.T) {
	for atOnce, length := range map[int]time.Duration{1: 24 * time.Hour, 2000: 4 * time.Hour} {
		bubble(t, fmt.Sprint(atOnce), func(t *testing.T) {
			const n = 2000
			s := refusing(func(brokers.Action) bool { return false })
			if atOnce > 1 {
				s.cfg.MaxBody = letterLimit / 2 // so that the topic does not pause for poison
			}
			s.run(t, s, n, atOnce, length)
			stubs, originals := s.letters(t)
			each(t, "stubs", stubs, n)
			each(t, "originals in the dead-letter topic", originals, n)
			if s.publishes != 3*n || s.events["reject"] != n || s.events[consumer.EventDeadLetterRefused] != 0 {
				t.Errorf("%d publishes for %d messages, want 3 of each; events %v", s.publishes, n, s.events)
			}
			empty(t, s.Broker, "orders")
		})
	}
}

// Where the broker has no dead-lettering of its own, the originals are kept. They
// take neither places nor time of others, and get one stub each.
func TestAttackRefusedLettersAndRejects(t *testing.T) {
	for atOnce, length := range map[int]time.Duration{1: 12 * time.Hour, 2000: 4 * time.Hour} {
		bubble(t, fmt.Sprint(atOnce), func(t *testing.T) {
			const n = 2000
			s := refusing(func(a brokers.Action) bool { return a == brokers.Reject })
			if atOnce > 1 {
				s.cfg.MaxBody = letterLimit / 2
			}
			s.run(t, s, n, atOnce, length)
			stubs, originals := s.letters(t)
			each(t, "stubs", stubs, n)
			each(t, "originals in the dead-letter topic", originals, 0)
			if got := s.Len("orders"); got != n || s.publishes != 3*n {
				t.Errorf("%d messages left and %d publishes, want all %d and 3 of each", got, s.publishes, n)
			}
			for id, at := range s.rejects {
				for i := 1; i < len(at); i++ {
					if gap := at[i] - at[i-1]; gap < time.Minute {
						t.Fatalf("%s was rejected again after %v, want minutes", id, gap)
					}
				}
				if hours := int(length / time.Hour); len(at) < hours || len(at) > 10*hours {
					t.Errorf("%s was rejected %d times in %v, want it some times an hour", id, len(at), length)
				}
			}
			if s.events[consumer.EventDeadLetterRefused] < n || !errors.Is(s.refused.Err, brokers.ErrRefused) || s.refused.DeadLetter.Original == nil {
				t.Errorf("%d events of refused dead letters, the last is %+v; want the cause and the stub", s.events[consumer.EventDeadLetterRefused], s.refused)
			}
			if !strings.Contains(s.log.String(), "dead letter refused, the message is kept") {
				t.Error("the log does not say so")
			}
		})
	}
}

// Where the broker does not even take a message back for later, few are held, and
// the others come back when their leases end.
func TestAttackRefusedLettersRejectsAndRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		s := refusing(func(a brokers.Action) bool { return a == brokers.Reject || a == brokers.Retry })
		s.cfg.MaxBody, s.cfg.MaxHeld = letterLimit/2, 100
		s.run(t, s, n, n, 2*time.Hour)
		stubs, _ := s.letters(t)
		each(t, "stubs", stubs, n)
		if got := s.Len("orders"); got != n {
			t.Errorf("%d messages left, want all %d", got, n)
		}
	})
}

// A dead-letter topic that takes nothing at all is no reason to lose anything,
// nor to try all the time.
func TestAttackRefusedStubs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		s := refusing(func(brokers.Action) bool { return false })
		s.run(t, stubless{s}, n, 1, 6*time.Hour)
		if s.Len("orders") != n || len(s.rejects) != 0 {
			t.Errorf("%d messages left, %d rejected without a stub, want all %d kept", s.Len("orders"), len(s.rejects), n)
		}
		if refused := s.events[consumer.EventDeadLetterRefused]; refused < n || refused > n*6*20 {
			t.Errorf("%d refusals in 6 h, want each some", refused)
		}
	})
}

// stubless refuses every dead letter.
type stubless struct{ *siege }

func (b stubless) Publish(_ context.Context, topic string, msgs ...brokers.Message) error {
	failed := map[int]error{}
	for i := range msgs {
		failed[i] = brokers.ErrRefused
	}
	return &brokers.PublishError{Topic: topic, Failed: failed}
}

// A refused dead letter keeps none of the others from being published.
func TestRefusedLetterDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := refusing(func(a brokers.Action) bool { return a == brokers.Reject })
		s.cfg.Guard.Off = true
		w := start(t, s, s.cfg, orders(s.handle))
		for i := range 100 {
			publish(t, s.Broker, "orders", giant(i), fmt.Sprint("bad and small", i))
			synctest.Wait()
			if n := s.Len("orders.dead"); n != 2*(i+1) {
				t.Fatalf("%d dead letters and stubs at once, want %d", n, 2*(i+1))
			}
			time.Sleep(10 * time.Second)
		}
		w.mustShutdown()
	})
}

// A message that comes back unburied is neither run nor published again. It comes
// back ever more rarely, at most after as long as it has been dead. As soon as the
// broker has a place for it, it ends there.
func TestUnburiedMessageComesBackMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var healed atomic.Bool
		s := refusing(func(a brokers.Action) bool { return a == brokers.Reject && !healed.Load() })
		s.cfg.Random = func() float64 { return 1 }
		publish(t, s.Broker, "orders", giant(0))
		w := start(t, s, s.cfg, orders(s.handle))
		time.Sleep(5 * time.Hour)
		var gaps []time.Duration
		s.mu.Lock()
		for _, at := range s.rejects {
			for i := 1; i < len(at); i++ {
				gaps = append(gaps, (at[i] - at[i-1]).Round(time.Minute))
			}
		}
		s.mu.Unlock()
		m := time.Minute
		if want := []time.Duration{2 * m, 2 * m, 4 * m, 8 * m, 16 * m, 32 * m, 60 * m, 60 * m, 60 * m}; !slices.Equal(gaps, want) {
			t.Errorf("rejected after %v, want %v", gaps, want)
		}
		healed.Store(true)
		w.stopAfter(time.Hour)
		if s.publishes != 3 || s.runs != 1 || s.Len("orders.dead") != 2 || s.events["reject"] != 1 {
			t.Errorf("%d publishes, %d runs, %d dead, events %v; want 3, 1, a stub and the original", s.publishes, s.runs, s.Len("orders.dead"), s.events)
		}
		empty(t, s.Broker, "orders")
	})
}
