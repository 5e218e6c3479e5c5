package consumer_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// TestPoison plays messages that are poison, beside good ones, and counts dead
// letters after a time. Of the bodies, "bad" is poison until a faulty deployment is
// mended, and "odd" fails once for another reason before.
func TestPoison(t *testing.T) {
	type sent struct {
		at     time.Duration
		bodies []string
	}
	type dead struct {
		at          time.Duration
		least, most int
	}
	many := func(name string, n int) []string { return numbered(name, n) }
	goodEach := func(every, length time.Duration) (all []sent) {
		for at := every; at <= length; at += every {
			all = append(all, sent{at, many("good", 1)})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		mended time.Duration // zero: never
		sent   []sent
		dead   []dead
		config func(*consumer.Config)
	}{
		{"one, after a success", 0, []sent{{0, many("good", 1)}, {time.Minute, many("bad", 1)}}, []dead{{time.Minute + 4*time.Second, 0, 0}, {time.Minute + 5*time.Second, 1, 1}}, nil},
		{"one, long after a success", 0, []sent{{0, many("good", 1)}, {3 * time.Minute, many("bad", 1)}}, []dead{{3*time.Minute + 4*time.Second, 0, 0}, {3*time.Minute + 5*time.Second, 1, 1}}, nil},
		{"one, before a success", 0, []sent{{0, many("bad", 1)}, {3 * time.Second, many("good", 1)}}, []dead{{2 * time.Second, 0, 0}, {3 * time.Second, 1, 1}}, nil},
		{"four", 0, []sent{{0, many("bad", 4)}}, []dead{{4 * time.Second, 0, 0}, {5 * time.Second, 4, 4}}, nil},
		{"five", 0, []sent{{0, many("bad", 5)}}, []dead{{59 * time.Minute, 0, 0}, {72 * time.Minute, 5, 5}}, nil},
		{"five, then good ones", 0, []sent{{0, many("bad", 5)}, {time.Minute, many("good", 1)}, {2 * time.Minute, many("good", 1)}, {3 * time.Minute, many("good", 1)}, {4 * time.Minute, many("good", 1)}}, []dead{{10 * time.Minute, 4, 5}, {72 * time.Minute, 5, 5}}, nil},
		{"a bad deployment", 50 * time.Minute, []sent{{0, many("bad", 200)}, {20 * time.Minute, many("bad", 200)}}, []dead{{2 * time.Hour, 0, 0}}, nil},
		{"a bad import", 0, []sent{{0, many("bad", 500)}, {10 * time.Second, many("good", 1)}, {30 * time.Minute, many("good", 1)}}, []dead{{2 * time.Hour, 500, 500}}, nil},
		{"one in two", 0, append([]sent{{0, strings.Fields(strings.Repeat("bad good ", 100))}}, goodEach(time.Second, 5*time.Minute)...), []dead{{5 * time.Minute, 100, 100}}, nil},
		{"after another error", 0, []sent{{0, many("odd", 5)}}, []dead{{time.Hour, 0, 0}, {80 * time.Minute, 5, 5}}, nil},
		{"room for one to wait", 0, []sent{{0, many("bad", 2)}}, []dead{{10 * time.Second, 0, 1}, {72 * time.Minute, 2, 2}}, func(c *consumer.Config) { c.MaxHeld = 1 }},
		{"one attempt", 0, []sent{{0, many("bad", 5)}}, []dead{{59 * time.Minute, 0, 0}, {72 * time.Minute, 5, 5}}, func(c *consumer.Config) { c.Retry.MaxAttempts = 1 }},
		{"switched off", 0, []sent{{0, many("bad", 100)}}, []dead{{0, 100, 100}}, func(c *consumer.Config) { c.Guard.Off = true }},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker, began := memory.New(memory.Options{}), time.Now()
			cfg := guarded()
			if tt.config != nil {
				tt.config(&cfg)
			}
			seen := record(&cfg)
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				switch body := string(m.Body); {
				case strings.HasPrefix(body, "odd") && consumer.MetaFrom(ctx).Class == "":
					return errBusy
				case !strings.HasPrefix(body, "good") && (tt.mended == 0 || time.Since(began) < tt.mended):
					return classify.Permanent(errBusy)
				}
				return nil
			}))
			total := 0
			for _, s := range tt.sent {
				sleep(time.Until(began.Add(s.at)))
				publish(t, broker, "orders", s.bodies...)
				total += len(s.bodies)
			}
			for _, d := range tt.dead {
				sleep(time.Until(began.Add(d.at + time.Millisecond)))
				if n := broker.Len("orders.dead"); n < d.least || n > d.most {
					t.Errorf("%d dead after %v, want %d to %d", n, d.at, d.least, d.most)
				}
			}
			w.mustShutdown()
			letters := deadLetters(t, broker, "orders")
			for _, letter := range letters {
				if letter.Reason != "poison" || letter.Meta.Attempt > 2 {
					t.Errorf("%s is dead by %q after %d attempts", letter.Message.Body, letter.Reason, letter.Meta.Attempt)
				}
			}
			if served := len(seen.of(consumer.EventSucceeded)); served+len(letters) != total {
				t.Errorf("%d served and %d dead of %d", served, len(letters), total)
			}
			if len(seen.of(consumer.EventPaused)) != 0 {
				t.Error("the topic paused")
			}
			empty(t, broker, "orders")
		})
	}
}

// A worker stops while the verdict on a message is in doubt: it holds if another
// message has succeeded lately, or does so before the worker has stopped. Otherwise
// the message stays in the topic.
func TestPoisonInDoubtWhenTheWorkerStops(t *testing.T) {
	for _, success := range []string{"none", "before", "meanwhile"} {
		bubble(t, "success "+success, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			mended := false
			begin := func() *worker {
				return start(t, broker, guarded(), orders(func(_ context.Context, m *brokers.Message) error {
					if strings.HasPrefix(string(m.Body), "bad") && !mended {
						return classify.Permanent(errBusy)
					}
					if string(m.Body) == "slow" {
						sleep(4 * time.Second)
					}
					return nil
				}))
			}
			w := begin()
			want := 3
			switch success {
			case "before":
				publish(t, broker, "orders", "good")
				sleep(time.Minute)
				want = 0
			case "meanwhile":
				publish(t, broker, "orders", "slow")
				want = 0
			}
			publish(t, broker, "orders", numbered("bad", 3)...)
			w.stopAfter(3 * time.Second)
			if n, dead := broker.Len("orders"), broker.Len("orders.dead"); n != want || dead != 3-want {
				t.Errorf("%d of 3 are in the topic and %d are dead, want %d and %d", n, dead, want, 3-want)
			}
			mended = true
			w = begin()
			w.stopAfter(time.Minute)
			empty(t, broker, "orders")
		})
	}
}

// A message that was in doubt and is put aside waits for its new time only: when the
// doubt would have ended it runs already, and must not run beside itself.
func TestPoisonPutAsideRunsOnce(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		broker := memory.New(memory.Options{})
		var mu sync.Mutex
		under, runs := map[string]int{}, map[string]int{}
		w := start(t, broker, guarded(), orders(func(_ context.Context, m *brokers.Message) error {
			mu.Lock()
			body := string(m.Body)
			runs[body]++
			if under[body]++; under[body] > 1 {
				t.Errorf("%s runs %d times at once", body, under[body])
			}
			slow := runs[body] > 1
			mu.Unlock()
			if slow {
				sleep(10 * time.Second)
			}
			mu.Lock()
			under[body]--
			mu.Unlock()
			return classify.Permanent(errBusy)
		}))
		publish(t, broker, "orders", numbered("bad", 4)...)
		sleep(time.Second)
		publish(t, broker, "orders", "last") // the fifth in a row
		sleep(12 * time.Second)
		mu.Lock()
		for body, n := range runs {
			if n != 2 {
				t.Errorf("%s ran %d times in 13 s, want twice", body, n)
			}
		}
		mu.Unlock()
		w.mustShutdown()
	})
}
