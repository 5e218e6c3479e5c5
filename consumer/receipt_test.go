package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// mailbox is a tap whose topic of receipts may fail.
type mailbox struct {
	*tap
	sub brokers.Subscription

	mu   sync.Mutex
	down func(ctx context.Context, n int) error
}

func newMailbox(options memory.Options) *mailbox { return &mailbox{tap: newTap(options)} }

func (b *mailbox) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	b.sub = sub
	return b.tap.Open(ctx, sub)
}

func (b *mailbox) set(down func(ctx context.Context, n int) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

func (b *mailbox) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	b.mu.Lock()
	down := b.down
	b.mu.Unlock()
	if topic == "receipts" && down != nil {
		if err := down(ctx, len(msgs)); err != nil {
			return err
		}
	}
	return b.tap.Publish(ctx, topic, msgs...)
}

// receipts returns those that were published.
func (b *mailbox) receipts(t *testing.T) (all []dlq.Receipt) {
	t.Helper()
	for _, m := range b.Messages("receipts") {
		r, err := dlq.DecodeReceipt(m)
		if err != nil {
			t.Error(err)
		}
		all = append(all, r)
	}
	return all
}

// A worker says once that a message which was sent back failed, and once how it
// ended.
func TestReceipts(t *testing.T) {
	transient := func() []error { return slices.Repeat([]error{classify.Transient(errBusy)}, 9) }
	for _, tt := range []struct {
		name   string
		fails  []error
		change func(*consumer.Config)
		want   []string // outcome, class, reason and attempt
	}{
		{"success", nil, nil, []string{"handled   1"}},
		{"success in the end", []error{classify.Transient(errBusy), errBusy, nil}, nil, []string{"failed transient  1", "handled   3"}},
		{"poison", []error{classify.Permanent(errBusy)}, nil, []string{"failed poison  1", "dead poison poison 1"}},
		{"exhausted", transient(), nil, []string{"failed transient  1", "dead transient exhausted 3"}},
		{"discarded", transient(), func(c *consumer.Config) { c.DeadLetter = dlq.Discard }, []string{"failed transient  1", "dead transient exhausted 3"}},
		{"dropped by its handler", []error{classify.Skip(errBusy)}, nil, []string{"handled   1"}},
		{"put off", []error{classify.Defer(errBusy, time.Second), nil}, nil, []string{"failed transient  1", "handled   1"}}, // which is no attempt
		{"not run", nil, func(c *consumer.Config) { c.MaxBody = 1 }, []string{"dead  oversize 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whereHeld(t, func(t *testing.T, hold time.Duration) {
				broker := newMailbox(memory.Options{})
				cfg := quiet()
				cfg.Receipts, cfg.Group, cfg.Instance = "receipts", "billing", "worker-1"
				cfg.HoldLimit, cfg.Retry = hold, every(time.Second, 3)
				if tt.change != nil {
					tt.change(&cfg)
				}
				fails := tt.fails
				w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
					if len(fails) == 0 {
						return nil
					}
					err := fails[0]
					fails = fails[1:]
					return err
				}))
				began := time.Now()
				sendBack(t, broker, "orders", "one")
				w.stopAfter(time.Hour)
				var got []string
				for _, r := range broker.receipts(t) {
					got = append(got, fmt.Sprint(r.Outcome, " ", r.Class, " ", r.Reason, " ", r.Attempt))
					if r.Send != "1.one" || r.MessageID != "one" || r.Topic != "orders" || r.Group != "billing" || r.By != "worker-1" ||
						r.At.Before(began.Truncate(time.Millisecond)) || r.At.After(began.Add(time.Minute)) || (r.Class == "") != (r.Fingerprint == "") && r.Reason != "oversize" {
						t.Errorf("the receipt is %+v", r)
					}
				}
				if !slices.Equal(got, tt.want) {
					t.Fatalf("receipts %q, want %q", got, tt.want)
				}
				for _, letter := range deadLetters(t, broker, "orders") {
					if last := broker.receipts(t)[len(got)-1]; letter.Meta.Send != "1.one" || letter.Meta.RedriveCount != 1 || letter.Fingerprint != last.Fingerprint {
						t.Errorf("the dead letter has %+v and the fingerprint %s, its receipt %s", letter.Meta, letter.Fingerprint, last.Fingerprint)
					}
				}
				if broker.sub.Receipts != "receipts" {
					t.Errorf("the broker was told of the topic %q", broker.sub.Receipts)
				}
			})
		})
	}
}

// Who did not ask gets none, and the message does not say where they go.
func TestNoReceipt(t *testing.T) {
	for name, receipts := range map[string]string{"not asked for": "receipts", "not configured": ""} {
		bubble(t, name, func(t *testing.T) {
			broker := newMailbox(memory.Options{})
			cfg := quiet()
			cfg.Receipts = receipts
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Permanent(errBusy) }))
			if receipts == "" {
				sendBack(t, broker, "orders", "one")
			} else {
				publish(t, broker, "orders", "one")
			}
			w.stopAfter(time.Minute)
			if got := broker.of("publish"); len(got) == 0 || got[len(got)-1].topic != "orders.dead" || broker.Len("receipts") != 0 {
				t.Errorf("published %+v, want the dead letter and no receipt", got)
			}
		})
	}
}

// A receipt says that a message has ended only when it has.
func TestReceiptComesAfterTheEnd(t *testing.T) {
	for name, fail := range map[string]error{"handled": nil, "dead": classify.Permanent(errBusy)} {
		bubble(t, name, func(t *testing.T) {
			broker := newMailbox(memory.Options{Fault: on(memory.Settle, 2, memory.Fault{Err: errBusy})})
			cfg := quiet()
			cfg.Receipts = "receipts"
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return fail }))
			sendBack(t, broker, "orders", "one")
			w.stopAfter(time.Minute)
			ended := false
			for _, c := range broker.of("ack", "publish") {
				ended = ended || c.what == "ack" && !c.failed
				if r, err := dlq.DecodeReceipt(brokers.Message{Body: []byte(c.body)}); err == nil && r.Outcome == name && !ended {
					t.Errorf("it is %s before the original is gone: %+v", name, broker.of("ack", "publish"))
				}
			}
			if got := broker.receipts(t); len(got) == 0 || got[len(got)-1].Outcome != name {
				t.Errorf("receipts %+v, want it to be %s", got, name)
			}
		})
	}
}

// Where somebody else has the message, nothing is said of its end.
func TestNoReceiptForALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newMailbox(memory.Options{})
		broker.settle = func(batch []brokers.Settlement, _ []error) []error {
			return slices.Repeat([]error{brokers.ErrLeaseLost}, len(batch))
		}
		cfg := quiet()
		cfg.Receipts = "receipts"
		w := start(t, broker, cfg, orders(done))
		sendBack(t, broker, "orders", "one")
		w.stopAfter(time.Second)
		if got := broker.receipts(t); len(got) != 0 {
			t.Errorf("receipts %+v of a message that somebody else has", got)
		}
	})
}

// A topic of receipts that is down, or hangs, holds up no message and no log, and
// takes bounded memory. What waits is published when it is up again.
func TestReceiptsTopicThatIsDown(t *testing.T) {
	for name, down := range map[string]func(context.Context, int) error{
		"down":  func(context.Context, int) error { return errBusy },
		"hangs": func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() },
	} {
		bubble(t, name, func(t *testing.T) {
			const letters = 3000
			broker := newMailbox(memory.Options{})
			broker.set(down)
			var log strings.Builder
			cfg := quiet()
			cfg.Receipts, cfg.Logger = "receipts", slog.New(slog.NewTextHandler(&log, nil))
			seen := record(&cfg, consumer.EventReceiptDropped)
			w := start(t, broker, cfg, orders(done))
			sendBack(t, broker, "orders", numbered("back", letters)...)
			time.Sleep(time.Second)
			publish(t, broker.Broker, "orders", "live")
			synctest.Wait()
			empty(t, broker.Broker, "orders", "orders.dead")
			time.Sleep(10 * time.Minute)
			if n := len(seen.events); n < letters-1100 || n > letters-1000 {
				t.Errorf("%d of %d receipts dropped, want all but 1000", n, letters)
			}
			broker.set(nil)
			time.Sleep(time.Minute)
			if n := len(broker.receipts(t)); n+len(seen.events) != letters {
				t.Errorf("%d receipts published after the topic is back, and %d dropped", n, len(seen.events))
			}
			w.mustShutdown()
			if lines := strings.Count(log.String(), "\n"); lines > 130 || !strings.Contains(log.String(), "operation=receipt") {
				t.Errorf("%d lines in the log in ten minutes: %s", lines, log.String())
			}
		})
	}
}

// A worker that stops gives its receipts what is left of the drain, and no more.
func TestDrainOfReceipts(t *testing.T) {
	for _, tt := range []struct {
		name           string
		down           func(context.Context, int) error
		drain          time.Duration
		least, most    time.Duration
		sent, notified int
	}{
		{"up", nil, 0, 0, 0, 20, 0},
		{"slow", func(context.Context, int) error { time.Sleep(5 * time.Second); return nil }, 0, 5 * time.Second, 10 * time.Second, 20, 0},
		{"down", func(context.Context, int) error { return errBusy }, 0, 26 * time.Second, 26 * time.Second, 0, 20},
		{"hangs", func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }, 0, 26 * time.Second, 26 * time.Second, 0, 20},
		{"no time", func(context.Context, int) error { return errBusy }, -1, time.Second, time.Second, 0, 20},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := newMailbox(memory.Options{})
			cfg := quiet()
			cfg.Receipts, cfg.DrainTimeout = "receipts", tt.drain
			seen := record(&cfg, consumer.EventReceiptDropped)
			began := make(chan time.Time, 20)
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				began <- time.Now()
				return nil
			}))
			broker.set(tt.down)
			sendBack(t, broker, "orders", numbered("back", 20)...)
			for range 20 {
				<-began
			}
			synctest.Wait()
			stopped := time.Now()
			w.mustShutdown()
			if took := time.Since(stopped); took < tt.least || took > tt.most {
				t.Errorf("it took %v to stop, want %v to %v", took, tt.least, tt.most)
			}
			if sent := len(broker.receipts(t)); sent != tt.sent || len(seen.events) != tt.notified {
				t.Errorf("%d receipts sent and %d dropped, want %d and %d", sent, len(seen.events), tt.sent, tt.notified)
			}
		})
	}
}

// A receipt that the broker refuses is dropped, and the others are not.
func TestRefusedReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newMailbox(memory.Options{})
		calls := 0
		broker.set(func(_ context.Context, n int) error {
			if calls++; calls > 1 {
				return nil
			}
			failed := map[int]error{0: fmt.Errorf("not that one: %w", brokers.ErrRefused)}
			for i := 1; i < n; i++ {
				failed[i] = errBusy
			}
			return &brokers.PublishError{Topic: "receipts", Failed: failed}
		})
		cfg := quiet()
		cfg.Receipts = "receipts"
		seen := record(&cfg, consumer.EventReceiptDropped)
		w := start(t, broker, cfg, orders(done))
		sendBack(t, broker, "orders", numbered("back", 10)...)
		w.stopAfter(time.Minute)
		if n := len(broker.receipts(t)); n != 9 || len(seen.events) != 1 || !errors.Is(seen.events[0].Err, brokers.ErrRefused) || seen.events[0].Message != nil {
			t.Errorf("%d of 9 published, dropped %+v", n, seen.events)
		}
	})
}

// A batch that fails as a whole is no failure of its members: each of them says
// only what became of itself.
func TestReceiptsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newMailbox(memory.Options{})
		cfg := quiet()
		cfg.Receipts = "receipts"
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(_ context.Context, batch []brokers.Item) []error {
				for _, item := range batch {
					if string(item.Message.Body) == "back-3" {
						return slices.Repeat([]error{classify.Permanent(errBusy)}, len(batch))
					}
				}
				return nil
			}, consumer.TopicConfig{BatchSize: 8})
		})
		sendBack(t, broker, "orders", numbered("back", 8)...)
		w.stopAfter(time.Minute)
		var got []string
		for _, r := range broker.receipts(t) {
			if r.Outcome != "handled" {
				got = append(got, r.MessageID+" "+r.Outcome)
			}
		}
		if want := []string{"back-3 failed", "back-3 dead"}; len(broker.receipts(t)) != 9 || !slices.Equal(got, want) {
			t.Errorf("receipts %+v, want 7 handled, and %q", broker.receipts(t), want)
		}
	})
}
