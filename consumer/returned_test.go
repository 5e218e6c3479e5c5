package consumer_test

import (
	"context"
	"errors"
	"fmt"
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
)

// sendBack sends messages with these bodies back to topic, as dead letters of it.
func sendBack(t *testing.T, broker brokers.Broker, topic string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		letter := brokers.Item{Message: &brokers.Message{ID: body, Key: "key-" + body[len(body)-1:], Body: []byte(body)}, Meta: brokers.Meta{Send: "1." + body}}
		if err := broker.SendBack(t.Context(), "", topic, letter); err != nil {
			t.Fatal(err)
		}
	}
}

// numbered returns name-0 to name-(n-1).
func numbered(name string, n int) (bodies []string) {
	for i := range n {
		bodies = append(bodies, fmt.Sprint(name, "-", i))
	}
	return bodies
}

// post is a handler of live messages, which succeed, and of letters that were
// sent back, which meet their fate.
type post struct {
	fate func(ctx context.Context, body string) error

	mu     sync.Mutex
	sent   map[string]time.Time     // live ones
	waited map[string]time.Duration // until they were served
	runs   map[string]int
	under  int // letters that run
}

func newPost(fate func(ctx context.Context, body string) error) *post {
	return &post{fate: fate, sent: map[string]time.Time{}, waited: map[string]time.Duration{}, runs: map[string]int{}}
}

func (p *post) handle(ctx context.Context, m *brokers.Message) error {
	body := string(m.Body)
	p.mu.Lock()
	p.runs[body]++
	p.mu.Unlock()
	if !strings.HasPrefix(body, "live") {
		p.count(1)
		defer p.count(-1)
		return p.fate(ctx, body)
	}
	time.Sleep(10 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waited[body] = time.Since(p.sent[body])
	return nil
}

// count counts letters that run, and returns how many do.
func (p *post) count(change int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under += change
	return p.under
}

// batch fails as a whole if one of its members does.
func (p *post) batch(ctx context.Context, batch []brokers.Item) []error {
	var failed error
	for _, item := range batch {
		failed = errors.Join(failed, p.handle(ctx, item.Message))
	}
	if failed == nil {
		return nil
	}
	return slices.Repeat([]error{failed}, len(batch))
}

// ran returns how often the message with the body was run.
func (p *post) ran(body string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs[body]
}

// live publishes a message every so often, for a time.
func (p *post) live(t *testing.T, broker brokers.Broker, every, length time.Duration) {
	for range int(length / every) {
		p.mu.Lock()
		body := fmt.Sprint("live-", len(p.sent))
		p.sent[body] = time.Now()
		p.mu.Unlock()
		m := brokers.Message{ID: body, Key: "key-" + body[len(body)-1:], Body: []byte(body)}
		send(t, broker, "orders", m)
		time.Sleep(every)
	}
}

// inTime fails the test if a live message waited for longer than most.
func (p *post) inTime(t *testing.T, most time.Duration) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	late, longest := 0, time.Duration(0)
	for body := range p.sent {
		wait, served := p.waited[body]
		if !served || wait > most {
			late++
		}
		longest = max(longest, wait)
	}
	if late > 0 {
		t.Errorf("%d of %d live messages not served within %v, the others within %v", late, len(p.sent), most, longest)
	}
}

// status401 is the error of rejected credentials, which is of class environment.
var status401 = &classify.HTTPError{Status: 401}

// fates are what letters that were sent back may meet.
var fates = map[string]func(ctx context.Context, body string) error{
	"poison":    func(context.Context, string) error { return classify.Permanent(errBusy) },
	"transient": func(context.Context, string) error { return classify.Transient(errBusy) },
	"unknown":   func(context.Context, string) error { return errors.New("no such column") },
	"throttled": func(context.Context, string) error { return classify.Throttled(errBusy, 10*time.Minute) },
	"401":       func(context.Context, string) error { return status401 },
	"hang":      func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
}

// Whatever becomes of letters that are sent back, live traffic on their topic is
// neither paused nor delayed.
func TestReturnedLettersHarmNobody(t *testing.T) {
	for shape, register := range map[string]func(*consumer.Consumer, *post){
		"single": func(c *consumer.Consumer, p *post) { c.Handle("orders", p.handle) },
		"batch": func(c *consumer.Consumer, p *post) {
			c.HandleBatch("orders", p.batch, consumer.TopicConfig{BatchSize: 10})
		},
		"of one tenant": func(c *consumer.Consumer, p *post) {
			c.HandleWith("orders", p.handle, consumer.TopicConfig{DependencyOf: func(*brokers.Message) string { return "acme" }})
		},
		"batch of one tenant": func(c *consumer.Consumer, p *post) {
			c.HandleBatch("orders", p.batch, consumer.TopicConfig{BatchSize: 10, DependencyOf: func(*brokers.Message) string { return "acme" }})
		},
		"ordered": func(c *consumer.Consumer, p *post) { c.Handle("orders", p.handle) },
	} {
		for name, fate := range fates {
			if shape == "ordered" && name == "hang" { // the live messages of its key have to wait
				continue
			}
			bubble(t, shape+", "+name, func(t *testing.T) {
				broker, p := memory.New(memory.Options{}), newPost(func(ctx context.Context, body string) error {
					if body == "odd" {
						return status401
					}
					return fate(ctx, body)
				})
				cfg := guarded()
				cfg.OrderByKey = shape == "ordered"
				seen := record(&cfg, consumer.EventPaused)
				w := start(t, broker, cfg, func(c *consumer.Consumer) { register(c, p) })
				p.live(t, broker, 100*time.Millisecond, time.Second)
				sendBack(t, broker, "orders", append(numbered("back", 100), "odd")...)
				if name == "hang" {
					p.live(t, broker, time.Second, 11*time.Minute)
				} else {
					p.live(t, broker, 100*time.Millisecond, 90*time.Second)
				}
				time.Sleep(time.Second)
				if len(seen.events) != 0 {
					t.Errorf("paused: %v", seen.events[0].Err)
				}
				p.inTime(t, 200*time.Millisecond) // a batch waits for half of that
				if name == "poison" {
					for _, body := range numbered("back", 100) {
						if shape == "batch" || shape == "batch of one tenant" {
							continue // they run again in parts, down to alone
						}
						if n := p.ran(body); n != 1 {
							t.Errorf("%s ran %d times, want once", body, n)
						}
					}
					if n := len(deadLetters(t, broker, "orders")); n != 100 {
						t.Errorf("%d of 100 are dead again", n)
					}
				}
				w.mustShutdown()
			})
		}
	}
}

// Thousands of letters that fail again spend no token of the live traffic, and
// end all the same.
func TestReturnedRetriesSpendNoTokenOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const letters, each, length = 500, 250 * time.Millisecond, 20 * time.Minute
		broker, p := memory.New(memory.Options{}), newPost(fates["transient"])
		b := newLedgered()
		cfg := guarded()
		cfg.Guard.Budget = b
		failed := 0
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			body := string(m.Body)
			if strings.HasPrefix(body, "live") && strings.HasSuffix(body, "0") && consumer.MetaFrom(ctx).Class == "" {
				p.mu.Lock()
				failed++
				p.mu.Unlock()
				return classify.Transient(errBusy)
			}
			return p.handle(ctx, m)
		}))
		sendBack(t, broker, "orders", numbered("back", letters)...)
		p.live(t, broker, each, length)
		time.Sleep(time.Minute)
		p.inTime(t, 2*time.Second) // the first retry is within one
		if live := len(p.sent); b.deposited != live || failed == 0 || b.granted != failed || b.given != failed {
			t.Errorf("%d of %d deliveries earned, %d tokens spent and %d given back on %d live retries", b.deposited, live, b.granted, b.given, failed)
		}
		retries := 0
		for _, body := range numbered("back", letters) {
			retries += max(0, p.ran(body)-1)
		}
		if rate := float64(retries) / length.Seconds(); rate < 0.9 || rate > 1.1 {
			t.Errorf("%v retries a second of what was sent back, want about the one of the budget", rate)
		}
		time.Sleep(10 * time.Hour)
		if n := broker.Len("orders.dead"); n != letters {
			t.Errorf("%d of %d are dead again", n, letters)
		}
		w.mustShutdown()
		empty(t, broker, "orders")
	})
}

// Where a dependency is down and there is nothing but what was sent back, nothing
// pauses for it, and what has not died of it is served when it is up again.
func TestReturnedAloneWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := memory.New(memory.Options{}), &dependency{down: unavailable}
		cfg := guarded()
		seen := record(&cfg, consumer.EventPaused)
		w := start(t, broker, cfg, d.register("orders"))
		sendBack(t, broker, "orders", numbered("back", 100)...)
		time.Sleep(time.Minute)
		d.set(nil)
		w.stopAfter(time.Hour)
		if len(seen.events) != 0 || d.done() != 100 {
			t.Errorf("%d of 100 served, paused %d times, want all and never", d.done(), len(seen.events))
		}
	})
}

// Messages that were sent back pass while others are put aside as poison, and
// their success says that the others are at fault themselves.
func TestReturnedPassBesidePoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, p := memory.New(memory.Options{}), newPost(func(context.Context, string) error { return nil })
		cfg := guarded()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if strings.HasPrefix(string(m.Body), "bad") {
				return classify.Permanent(errBusy)
			}
			return p.handle(ctx, m)
		}))
		publish(t, broker, "orders", numbered("bad", 20)...)
		time.Sleep(time.Minute)
		if n := broker.Len("orders.dead"); n != 0 {
			t.Errorf("%d are dead after a minute in which all were poison", n)
		}
		sendBack(t, broker, "orders", numbered("back", 20)...)
		time.Sleep(time.Second)
		for _, body := range numbered("back", 20) {
			if p.ran(body) != 1 {
				t.Errorf("%s waits", body)
			}
		}
		w.stopAfter(time.Hour + 10*time.Minute)
		if n := broker.Len("orders.dead"); n != 20 {
			t.Errorf("%d of the 20 poison messages are dead in the end", n)
		}
		empty(t, broker, "orders")
	})
}

// Half of the slots and of the room are for others, however many letters there
// are; and these cost the broker little while they wait.
func TestReturnedUseHalfOfTheSlots(t *testing.T) {
	for name, batch := range map[string]int{"single": 0, "batch": 10, "of all topics": 0} {
		bubble(t, name, func(t *testing.T) {
			const letters = 1200
			broker, p := newTap(memory.Options{}), newPost(nil)
			d := &dependency{takes: time.Second}
			p.fate = func(ctx context.Context, body string) error {
				return d.handle(ctx, &brokers.Message{Body: []byte(body)})
			}
			cfg := guarded()
			if name == "of all topics" {
				cfg.Concurrency, cfg.MaxConcurrency = 100, 10
			}
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				if batch == 0 {
					c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
						_ = p.handle(ctx, m)
						if string(m.Body) == "live-now" && consumer.MetaFrom(ctx).Attempt == 1 {
							return classify.Transient(errBusy)
						}
						return nil
					})
					return
				}
				c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
					_ = p.handle(ctx, batch[0].Message) // one call for all
					return nil
				}, consumer.TopicConfig{BatchSize: batch})
			})
			sendBack(t, broker, "orders", numbered("back", letters)...)
			time.Sleep(500 * time.Millisecond)
			publish(t, broker.Broker, "orders", "live-now")
			time.Sleep(200 * time.Millisecond)
			if p.ran("live-now") == 0 {
				t.Error("a live message waits behind letters that were sent back")
			}
			if moved := broker.of("retry"); slices.ContainsFunc(moved, func(c call) bool { return c.body == "live-now" }) {
				t.Error("a live message finds no room for its retry")
			}
			w.stopAfter(20 * time.Minute)
			if d.most > 5 || broker.Len("orders") != 0 {
				t.Errorf("%d at once, %d left, want up to 5 of the 10 slots and none", d.most, broker.Len("orders"))
			}
			if moved := len(broker.of("retry")); moved > 25*letters {
				t.Errorf("the broker was asked to keep them for later %d times", moved)
			}
		})
	}
}

// No batch holds both.
func TestReturnedRunInBatchesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := memory.New(memory.Options{}), newDiary()
		w := start(t, broker, guarded(), batches(d, consumer.TopicConfig{BatchSize: 2, BatchWait: time.Second}, allDone))
		publish(t, broker, "orders", "live-1")
		sendBack(t, broker, "orders", "back-1")
		publish(t, broker, "orders", "live-2")
		time.Sleep(500 * time.Millisecond)
		sendBack(t, broker, "orders", "back-2", "back-3")
		w.stopAfter(time.Minute)
		d.expect(t, "0s live-1+live-2", "500ms back-1+back-2", "1.5s back-3")
	})
}

// The live messages of a key wait for a letter that was sent back while it runs,
// and not while it waits.
func TestReturnedLettersHoldNoKey(t *testing.T) {
	for name, fate := range map[string]func(context.Context, string) error{
		"for its time": fates["transient"],
		"for a slot": func(ctx context.Context, body string) error {
			if strings.HasPrefix(body, "busy") {
				time.Sleep(time.Minute)
			}
			return nil
		},
	} {
		bubble(t, name, func(t *testing.T) {
			broker, p := memory.New(memory.Options{}), newPost(fate)
			cfg := guarded()
			cfg.OrderByKey, cfg.Retry = true, every(time.Second, 9)
			w := start(t, broker, cfg, orders(p.handle))
			sendBack(t, broker, "orders", "busy-1", "busy-2", "busy-3", "busy-4", "busy-5", "back-0")
			p.mu.Lock()
			p.sent["live-0"] = time.Now()
			p.mu.Unlock()
			send(t, broker, "orders", brokers.Message{Key: "key-0", Body: []byte("live-0")})
			time.Sleep(30 * time.Second)
			p.inTime(t, 100*time.Millisecond)
			w.stopAfter(time.Hour)
			empty(t, broker, "orders")
		})
	}
}
