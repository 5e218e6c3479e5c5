package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
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

// closedUntil is a fault of the dead-letter topic of orders until open is set.
func closedUntil(open *atomic.Bool) func(memory.Op) memory.Fault {
	return func(op memory.Op) memory.Fault {
		if op.Operation == memory.Publish && op.Topic == "orders.dead" && !open.Load() {
			return memory.Fault{Err: errors.New("connection refused")}
		}
		return memory.Fault{}
	}
}

// The incident: thousands of poison messages while the dead-letter topic is down
// for 20 s, on the default Config. Each dead letter has the error of its one run,
// and the good messages between them flow.
func TestLettersThatWaitTellWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const poison, outage = 3000, 20 * time.Second
		var open atomic.Bool
		broker := newTap(memory.Options{Fault: closedUntil(&open)})
		for i := range poison {
			publish(t, broker.Broker, "orders", fmt.Sprint("bad-", i), fmt.Sprint("good-", i))
		}
		var mu sync.Mutex
		runs, sent := map[string]int{}, map[string]time.Time{}
		var good, refunds int
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.Handle("orders", func(_ context.Context, m *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				runs[string(m.Body)]++
				if strings.HasPrefix(string(m.Body), "bad") {
					return classify.Permanent(fmt.Errorf("no article %s: token=s3cr3t", strings.TrimPrefix(string(m.Body), "bad-")))
				}
				good++
				return nil
			})
			c.Handle("refunds", func(_ context.Context, m *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				refunds++
				if wait := time.Since(sent[string(m.Body)]); wait > time.Second {
					t.Errorf("refund %s waited for %v", m.Body, wait)
				}
				return nil
			})
		})
		began := time.Now()
		var last time.Duration
		for n := 0; broker.Len("orders") > 0; n++ {
			if time.Since(began) >= outage {
				open.Store(true)
			}
			body := fmt.Sprint(n)
			mu.Lock()
			sent[body] = time.Now()
			mu.Unlock()
			publish(t, broker.Broker, "refunds", body)
			time.Sleep(100 * time.Millisecond)
			if n > 36_000 {
				t.Fatalf("an hour later %d are not at their end", broker.Len("orders"))
			}
			if broker.Len("orders.dead") == poison && last == 0 {
				last = time.Since(began)
			}
		}
		w.mustShutdown()
		if last > 4*outage+time.Second { // a sender pauses for as long as it has failed at most, a message for as long as it has been dead
			t.Errorf("the last dead letter came after %v, want it at most %v after the topic was back", last, 3*outage)
		}
		if good != poison || refunds < 200 {
			t.Errorf("%d of %d good orders, %d refunds", good, poison, refunds)
		}
		back := 0
		for _, call := range broker.of("retry") {
			if call.meta.Death != nil {
				if back++; call.meta.Attempt != 10 { // so that no worker of an earlier version runs it
					t.Fatalf("a dead message waits with attempt %d, want the limit of 10", call.meta.Attempt)
				}
			}
		}
		if back == 0 {
			t.Error("no dead message had to wait in its queue: this tests nothing")
		}
		letters := deadLetters(t, broker, "orders")
		prints := map[string]int{}
		for _, l := range letters {
			body := string(l.Message.Body)
			want := fmt.Sprintf("no article %s: token=[redacted]", strings.TrimPrefix(body, "bad-"))
			m := l.Meta
			if runs[body] != 1 || l.Reason != "poison" || m.Attempt != 1 || l.ErrorText != want || m.Class != "poison" || len(m.History) != 1 || m.History[0].Attempt != 1 ||
				m.History[0].Fingerprint != l.Fingerprint || !m.DueAt.IsZero() || m.Death != nil || len(l.Truncated) > 0 || l.Rule == "" || l.DeadBy == "" || !l.DeadAt.Equal(m.LastFailedAt) {
				t.Fatalf("after %d runs: %+v", runs[body], l)
			}
			prints[l.Fingerprint]++
		}
		if len(letters) != poison || len(prints) != 1 {
			t.Errorf("%d letters in %d groups, want %d in one", len(letters), len(prints), poison)
		}
	})
}

// deaths are the ways in which a message of orders dies, with the number of runs
// before.
var deaths = map[string]struct {
	body    string
	reason  string
	runs    int
	text    string
	deliver func(*brokers.Delivery) // edits its first delivery
	cfg     func(*consumer.Config)
}{
	"poison":    {body: "poison", reason: "poison", runs: 1, text: "no such article"},
	"exhausted": {body: "transient", reason: "exhausted", runs: 3, text: "the bank is closed: run 3"},
	"unknown":   {body: "unknown", reason: "unclassified", runs: 3, text: "who knows: run 3"},
	"decode":    {body: "{", reason: "undecodable", runs: 1, text: "decode the body as JSON for map[string]interface {}: unexpected EOF"},
	"panic":     {body: "panic", reason: "panic", runs: 3, text: "panic: index out of range"},
	"ambiguous": {body: "ambiguous", reason: "ambiguous", runs: 1, text: "status 500", cfg: func(c *consumer.Config) { c.NoRepeat = true }},
	"crash-loop": {body: "killer", reason: "crash-loop", text: "5 deliveries ended without a settlement: the message seems to kill its worker",
		deliver: func(d *brokers.Delivery) { d.Abandoned, d.Carried = 4, &brokers.Meta{Crashes: 2} }},
	"unreadable": {body: "torn", reason: "unreadable", text: "its headers are torn",
		deliver: func(d *brokers.Delivery) { d.Unreadable = errors.New("its headers are torn") }},
	"oversize": {body: strings.Repeat("x", 200), reason: "oversize", text: "the body of 200 bytes is over the limit of 100 bytes"},
}

//go:noinline
func outOfRange() { panic("index out of range") } // a site with one name

// fate handles messages as their bodies say.
func fate(runs *atomic.Int32) consumer.Handler {
	return func(_ context.Context, m *brokers.Message) error {
		n := runs.Add(1)
		switch body := string(m.Body); body {
		case "poison":
			return classify.Permanent(errors.New("no such article"))
		case "transient":
			return classify.Transient(fmt.Errorf("the bank is closed: run %d", n))
		case "unknown":
			return fmt.Errorf("who knows: run %d", n)
		case "panic":
			outOfRange()
			return nil
		case "ambiguous":
			return classify.With(errors.New("status 500"), classify.Verdict{Class: classify.ClassTransient, Ambiguous: true})
		default:
			return consumer.JSON(func(context.Context, map[string]any) error { return nil })(context.Background(), m)
		}
	}
}

// mortal is a broker whose last source can be killed.
type mortal struct {
	*tap
	source brokers.Source
}

func (b *mortal) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := b.tap.Broker.Open(ctx, sub)
	b.source = source
	return &tapSource{source, b.tap}, err
}

// earlier returns letter with all of its times moved back by d.
func earlier(letter dlq.Entry, d time.Duration) dlq.Entry {
	for _, at := range []*time.Time{&letter.DeadAt, &letter.Meta.FirstFailedAt, &letter.Meta.LastFailedAt, &letter.Meta.DueAt} {
		if !at.IsZero() {
			*at = at.Add(-d)
		}
	}
	letter.Meta.History = slices.Clone(letter.Meta.History)
	for i := range letter.Meta.History {
		letter.Meta.History[i].At = letter.Meta.History[i].At.Add(-d)
	}
	return letter
}

// A dead letter that had to wait equals a dead letter that was published at once,
// field for field. This holds for every cause of death, and for every worker that
// held the message meanwhile.
func TestLetterThatWaitedIsTheSame(t *testing.T) {
	const outage = 15 * time.Minute
	type life func(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer), open *atomic.Bool)
	atOnce := func(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer), open *atomic.Bool) {
		open.Store(true)
		w := start(t, broker, cfg, register)
		w.stopAfter(outage)
	}
	crowd := func(t *testing.T, broker *mortal, cfg *consumer.Config) { // takes the room of dead letters that wait in the worker
		cfg.Concurrency, cfg.Prefetch, cfg.MaxHeld = 1, 1, 1
		publish(t, broker.Broker, "orders", strings.Repeat("y", 101), strings.Repeat("y", 101))
	}
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			die := func(t *testing.T, live life) (letter dlq.Entry, waited bool) {
				synctest.Test(t, func(t *testing.T) {
					var open atomic.Bool
					broker := &mortal{tap: newTap(memory.Options{Fault: closedUntil(&open)})}
					var first atomic.Bool
					var late time.Duration // of the first delivery: the crowd may delay it
					broker.deliver = func(d *brokers.Delivery) {
						if d.Message.ID == "m-1" && !first.Swap(true) {
							late = time.Since(broker.born)
							if death.deliver != nil {
								death.deliver(d)
							}
						}
					}
					var runs atomic.Int32
					cfg := quiet()
					cfg.Retry, cfg.MaxBody, cfg.Instance, cfg.Stacks = every(30*time.Second, 3), 100, "worker-1", true
					if death.cfg != nil {
						death.cfg(&cfg)
					}
					register := func(c *consumer.Consumer) {
						m := brokers.Message{ID: "m-1", Key: "customer-7", Body: []byte(death.body), Headers: brokers.Headers{{Name: "traceparent", Value: "00-1"}}, PublishedAt: time.Now().UTC()}
						if !first.Load() && broker.Len("orders") < 3 && runs.Load() == 0 && time.Since(broker.born) == 0 { // behind the crowd
							if err := broker.Broker.Publish(context.Background(), "orders", m); err != nil {
								t.Fatal(err)
							}
						}
						c.Handle("orders", fate(&runs))
					}
					live(t, broker, cfg, register, &open)
					letters := slices.DeleteFunc(deadLetters(t, broker.Broker, "orders"), func(l dlq.Entry) bool { return l.Message.ID != "m-1" })
					if len(letters) != 1 || broker.Len("orders") != 0 || int(runs.Load()) != death.runs {
						t.Fatalf("%d dead letters and %d messages left after %d runs, want 1 and 0 after %d", len(letters), broker.Len("orders"), runs.Load(), death.runs)
					}
					letter = earlier(letters[0], late)
					waited = slices.ContainsFunc(broker.of("retry"), func(c call) bool { return c.id == "m-1" && c.meta.Death != nil })
				})
				return letter, waited
			}
			want, waited := die(t, atOnce)
			if want.Reason != death.reason || want.ErrorText != death.text || want.Meta.Attempt != death.runs || waited {
				t.Fatalf("at once: %+v", want)
			}
			for how, live := range map[string]life{
				"in its queue": func(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer), open *atomic.Bool) {
					crowd(t, broker, &cfg)
					w := start(t, broker, cfg, register)
					time.Sleep(outage)
					open.Store(true)
					w.stopAfter(outage)
				},
				"over restarts": func(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer), open *atomic.Bool) {
					for n := range 4 {
						cfg.Instance, cfg.DrainTimeout = fmt.Sprint("worker-", n+1), time.Second
						open.Store(n == 3)
						w := start(t, broker, cfg, register)
						w.stopAfter(outage)
					}
				},
				"while a worker is killed": func(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer), open *atomic.Bool) {
					crowd(t, broker, &cfg)
					w := start(t, broker, cfg, register)
					for began := time.Now(); !slices.ContainsFunc(broker.of("retry"), func(c call) bool { return c.meta.Death != nil }); time.Sleep(time.Second) {
						if time.Since(began) > outage {
							t.Error("no dead message waits in its queue")
							break
						}
					}
					broker.Crash(broker.source)
					w.shutdown()
					cfg.Instance = "worker-2"
					w = start(t, broker, cfg, register)
					time.Sleep(outage)
					open.Store(true)
					w.stopAfter(outage)
				},
			} {
				t.Run(how, func(t *testing.T) {
					got, waited := die(t, live)
					if !waited {
						t.Error("it has not waited in its queue: this tests nothing")
					}
					if (got.Stack == "") != (want.Stack == "") {
						t.Errorf("stack %q, want %q, or another address", got.Stack, want.Stack)
					}
					want := want
					got.Stack, want.Stack = "", ""
					if !reflect.DeepEqual(got, want) {
						t.Errorf("the letter that waited is\n%+v\nwant\n%+v", got, want)
					}
				})
			}
		})
	}
}

// Handlers may fail faster than a healthy dead-letter topic confirms. The worker
// then receives at the pace of this topic, and no dead message goes back to its
// queue.
func TestLettersOfAHealthyTopicWaitInTheWorker(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "large": 50 << 10} {
		bubble(t, name, func(t *testing.T) {
			const poison = 2500
			broker := newTap(with(memory.Fault{Latency: 100 * time.Millisecond}, deadLettering))
			body := []byte(strings.Repeat("x", size))
			for range poison {
				send(t, broker.Broker, "orders", brokers.Message{Body: body})
			}
			cfg := quiet()
			cfg.Guard = consumer.Guard{Off: true}
			var mu sync.Mutex
			held := 0
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				mu.Lock()
				held = max(held, broker.Stats("orders").InFlight)
				mu.Unlock()
				time.Sleep(50 * time.Microsecond)
				return classify.Permanent(errBusy)
			}))
			began := time.Now()
			for broker.Len("orders.dead") < poison && time.Since(began) < time.Hour {
				time.Sleep(10 * time.Millisecond)
			}
			w.mustShutdown()
			if n := len(broker.of("retry")); n > 0 || held > 1000+20 {
				t.Errorf("%d messages went back to their queue, and up to %d were in the worker; want none, and no more than MaxHeld and the window", n, held)
			}
			if n := len(deadLetters(t, broker, "orders")); n != poison {
				t.Errorf("%d of %d dead letters", n, poison)
			}
		})
	}
}

// A dead-letter topic that hangs keeps the good messages of its topic waiting for
// a second, not for as long as a call may take.
func TestLettersThatHangStopNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(with(memory.Fault{Latency: time.Hour}, deadLettering))
		cfg := quiet()
		cfg.Guard = consumer.Guard{Off: true}
		cfg.MaxHeld = 50
		sent := map[string]time.Time{}
		var mu sync.Mutex
		var longest time.Duration
		good := 0
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(string(m.Body), "bad") {
				return classify.Permanent(errBusy)
			}
			good++
			longest = max(longest, time.Since(sent[string(m.Body)]))
			return nil
		}))
		for i := range 3000 {
			body := fmt.Sprint("good-", i)
			mu.Lock()
			sent[body] = time.Now()
			mu.Unlock()
			publish(t, broker.Broker, "orders", fmt.Sprint("bad-", i), body)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		w.shutdown() // the hanging call is reported
		if good != 3000 || longest > 3*time.Second/2 {
			t.Errorf("%d of 3000 good messages, one of them after %v; want all, and none after more than a second and a half", good, longest)
		}
	})
}

// Some brokers, such as RabbitMQ, cannot extend a lease. A dead message then goes
// back to its queue before its lease ends, and no worker runs it again.
func TestLettersOutlastTheirLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		broker := newTap(memory.Options{Lease: 30 * time.Minute, MaxLease: 30 * time.Minute, Fault: closedUntil(&open)})
		publish(t, broker.Broker, "orders", "one", "two", "three")
		var runs atomic.Int32
		w := start(t, broker, quiet(), poisonous(&runs))
		time.Sleep(6 * time.Hour)
		open.Store(true)
		w.stopAfter(10 * time.Minute)
		letters := deadLetters(t, broker.Broker, "orders")
		for _, l := range letters {
			if l.Meta.Attempt != 1 || l.ErrorText != "no such article" || l.Abandoned != 0 {
				t.Errorf("%+v", l)
			}
		}
		if len(letters) != 3 || runs.Load() != 3 {
			t.Errorf("%d letters after %d runs, want 3 after 3", len(letters), runs.Load())
		}
	})
}

// narrow is a broker that refuses a Retry whose error text is longer than limit.
type narrow struct {
	*tap
	limit   int
	refused atomic.Int32
}

func (b *narrow) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := b.tap.Open(ctx, sub)
	return &narrowSource{source, b}, err
}

type narrowSource struct {
	brokers.Source
	b *narrow
}

func (s *narrowSource) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	errs := make([]error, len(batch))
	for i, st := range batch {
		if st.Action == brokers.Retry && st.Meta.Death != nil && len(st.Meta.Death.ErrorText) > s.b.limit {
			s.b.refused.Add(1)
			errs[i] = fmt.Errorf("too large: %w", brokers.ErrRefused)
		} else if one := s.Source.Settle(ctx, batch[i:i+1]); one != nil {
			errs[i] = one[0]
		}
	}
	return errs
}

// If the broker has no room for a message with its whole Death, the message waits
// with a shortened Death, which names the missing parts. If the broker refuses that,
// too, the message waits in the worker. Reason, fingerprint and attempts stay.
func TestDeathThatTheBrokerRefusesIsShortened(t *testing.T) {
	story := strings.Repeat("the article is sold out, ", 60)
	for name, test := range map[string]struct {
		limit     int
		truncated []string
	}{
		"enough room": {1 << 20, nil}, "some room": {300, []string{"error-message", "history"}}, "no room": {10, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			var open atomic.Bool
			broker := &narrow{tap: newTap(memory.Options{Fault: closedUntil(&open)}), limit: test.limit}
			flood(t, broker.Broker, "orders", 9)
			cfg := quiet()
			cfg.Concurrency, cfg.Prefetch, cfg.MaxHeld = 1, 1, 1
			var runs atomic.Int32
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				runs.Add(1)
				return classify.Permanent(errors.New(story))
			}))
			time.Sleep(10 * time.Minute)
			open.Store(true)
			w.stopAfter(20 * time.Minute)
			letters := deadLetters(t, broker.Broker, "orders")
			cut := 0
			for _, l := range letters {
				whole := strings.TrimSpace(l.ErrorText) == strings.TrimSpace(story)
				if !whole {
					cut++
				}
				if l.Reason != "poison" || l.Meta.Attempt != 1 || l.Fingerprint != letters[0].Fingerprint || l.ErrorText == "" || !strings.HasPrefix(story, strings.TrimSuffix(l.ErrorText, "…")) ||
					whole != (len(l.Truncated) == 0) || !whole && !slices.Equal(l.Truncated, test.truncated) {
					t.Errorf("%+v", l)
				}
			}
			if len(letters) != 9 || runs.Load() != 9 || (cut > 0) != (test.truncated != nil) || (broker.refused.Load() > 0) != (test.limit < len(story)) {
				t.Errorf("%d letters, %d of them cut, after %d runs and %d refusals", len(letters), cut, runs.Load(), broker.refused.Load())
			}
		})
	}
}

// The receipt of a message that was sent back and had to wait for its dead letter
// has the true number of runs.
func TestReceiptOfALetterThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		broker := newTap(memory.Options{Fault: closedUntil(&open)})
		publish(t, broker.Broker, "orders", "one", "two")
		if err := broker.Broker.SendBack(t.Context(), "", "orders", brokers.Item{Message: &brokers.Message{ID: "m-1", Body: []byte("three")}, Meta: brokers.Meta{Send: "7.1.c0ffee"}}); err != nil {
			t.Fatal(err)
		}
		cfg := quiet()
		cfg.Receipts, cfg.Concurrency, cfg.Prefetch, cfg.MaxHeld = "receipts", 1, 1, 1
		var runs atomic.Int32
		w := start(t, broker, cfg, poisonous(&runs))
		time.Sleep(10 * time.Minute)
		open.Store(true)
		w.stopAfter(20 * time.Minute)
		if !slices.ContainsFunc(broker.of("retry"), func(c call) bool { return c.id == "m-1" && c.meta.Death != nil }) {
			t.Error("it has not waited in its queue: this tests nothing")
		}
		var ends []dlq.Receipt
		for _, m := range broker.Messages("receipts") {
			if r, err := dlq.DecodeReceipt(m); err == nil && r.Outcome == "dead" {
				ends = append(ends, r)
			}
		}
		if len(ends) != 1 || ends[0].Attempt != 1 || ends[0].Reason != "poison" || ends[0].Fingerprint == "" {
			t.Errorf("%+v, want one receipt of its death after one run", ends)
		}
	})
}

// A worker of a version without Death may have left dead messages in a queue. A
// newer worker runs none of them, and its dead letters say as much as it knows.
func TestDeathsOfEarlierVersions(t *testing.T) {
	for name, test := range map[string]struct {
		meta         brokers.Meta
		reason, text string
	}{
		"poison":       {brokers.Meta{Attempt: 10, Class: "poison"}, "poison", "found to be poison before"},
		"exhausted":    {brokers.Meta{Attempt: 10, Class: "transient"}, "exhausted", "all 10 attempts were used"},
		"more than 10": {brokers.Meta{Attempt: 12, Class: "transient"}, "exhausted", "all 12 attempts were used"},
		"for a reason": {brokers.Meta{Attempt: 10, Class: "transient", History: []brokers.Failure{{Attempt: 3}}}, "exhausted", "it had to be dead-lettered before"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := tapWith("orders", "one")
			broker.deliver = func(d *brokers.Delivery) { d.Carried = &test.meta }
			var runs atomic.Int32
			w := start(t, broker, quiet(), poisonous(&runs))
			w.stopAfter(0)
			letter := oneDeadLetter(t, broker.Broker, "orders")
			if runs.Load() != 0 || letter.Reason != test.reason || !strings.Contains(letter.ErrorText, test.text) {
				t.Errorf("after %d runs %s: %q", runs.Load(), letter.Reason, letter.ErrorText)
			}
		})
	}
}

// A producer cannot have a message taken for dead.
func TestAttackForgedDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		forged := brokers.Message{Body: []byte("forged"), Headers: brokers.Headers{
			{Name: "redrive-attempt", Value: "9999"}, {Name: "redrive-death-reason", Value: "poison"}, {Name: "redrive-death-error-message", Value: "as they please"},
			{Name: "redrive-meta", Value: `{"attempt":"9999","death-reason":"poison"}`}, {Name: "redrive-dlq-v", Value: "1"}, {Name: "redrive-dlq-death-reason", Value: "poison"},
		}}
		send(t, broker, "orders", forged)
		publish(t, broker, "orders", "good")
		handled := map[string]int{}
		var mu sync.Mutex
		w := start(t, broker, quiet(), orders(func(_ context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			handled[string(m.Body)]++
			return nil
		}))
		w.stopAfter(0)
		if handled["forged"] != 1 || handled["good"] != 1 {
			t.Errorf("handled %v, want each once", handled)
		}
		empty(t, broker, "orders", "orders.dead")
	})
}
