package job_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
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
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// world is a worker of orders on its default configuration, whose dead letters are
// collected and whose receipts are read, beside live traffic.
type world struct {
	t      *testing.T
	broker *memory.Broker
	url    string
	s      *store.Store
	work   sync.WaitGroup
	reader *job.Receipts
	deaf   func() // ends the reading of receipts
	dead   int

	mu     sync.Mutex
	fate   func(body string) error
	runs   []string // bodies of letters that were sent back, in the order of their runs
	served map[string]int
	sends  map[string]string // their tokens
	live   map[string]time.Time
	late   time.Duration // the longest that a live message waited
	paused []string
}

var targets = job.Targets{{Broker: "memory", Topic: "orders", Dead: []string{"orders.dead"}}}

var operator = store.Actor{Who: "anna", Command: "redrive dlq send", Reason: "fixed"}

var errPoison = classify.Permanent(errors.New("no such product"))

// pass lets so much of the virtual time pass.
func (w *world) pass(d time.Duration) { time.Sleep(d) }

// inWorld runs a test in virtual time. The worker and live traffic go on until it
// returns. Returning says what goes wrong when a letter is sent back; it may be nil.
func inWorld(t *testing.T, returning func(memory.Op, *memory.Fault), test func(t *testing.T, w *world)) {
	t.Helper()
	fault := func(op memory.Op) (f memory.Fault) {
		if op.Operation == memory.SendBack && returning != nil {
			returning(op, &f)
		}
		return f
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, broker: memory.New(memory.Options{Fault: fault}), url: filepath.Join(t.TempDir(), "letters.db"), served: map[string]int{}, sends: map[string]string{}, live: map[string]time.Time{}}
		w.s = w.open()
		ctx, stop := context.WithCancel(t.Context())
		defer func() {
			stop()
			w.work.Wait()
			t.Attr("pauses_caused", strconv.Itoa(len(w.paused)))
			if len(w.paused) > 0 || w.late > 100*time.Millisecond {
				t.Errorf("live traffic was paused %q, and waited for up to %v", w.paused, w.late)
			}
			if err := errors.Join(w.broker.Close(context.WithoutCancel(ctx)), w.s.Close()); err != nil {
				t.Error(err)
			}
		}()
		w.startWorker(ctx)
		w.collect(ctx)
		hearing, deaf := context.WithCancel(ctx)
		w.deaf = deaf
		w.readReceipts(hearing)
		w.traffic(ctx)
		test(t, w)
	})
}

func (w *world) open() *store.Store {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), w.url)
	w.must(err)
	return s
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) startWorker(ctx context.Context) {
	c, err := consumer.New(w.broker, consumer.Config{
		DeadLetter: "*.dead", Receipts: "receipts", Logger: slog.New(slog.DiscardHandler),
		Observers: []consumer.Observer{pauses{w}},
	})
	w.must(err)
	c.Handle("orders", w.handle)
	w.work.Go(func() {
		if err := c.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) handle(ctx context.Context, m *brokers.Message) error {
	body := string(m.Body)
	if strings.HasPrefix(body, "live") {
		time.Sleep(10 * time.Millisecond)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.late = max(w.late, time.Since(w.live[body])-10*time.Millisecond)
		delete(w.live, body)
		return nil
	}
	w.mu.Lock()
	w.runs = append(w.runs, body)
	w.sends[body] = consumer.MetaFrom(ctx).Send
	fate := w.fate
	w.mu.Unlock()
	if err := fate(body); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served[body]++
	return nil
}

// pauses notes when a topic is paused.
type pauses struct{ *world }

func (p pauses) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventPaused {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.paused = append(p.paused, fmt.Sprint(e.Topic, " ", e.Err))
	}
}

// letters says what becomes of those that are sent back from now on.
func (w *world) letters(fate func(body string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = fate
}

// ran returns the runs of letters so far.
func (w *world) ran() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

// doubles returns how many letters were served more than once.
func (w *world) doubles() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, times := range w.served {
		n += times - 1
	}
	return n
}

// servedOnce fails the test if a letter was served more than once.
func (w *world) servedOnce() {
	w.t.Helper()
	if n := w.doubles(); n != 0 {
		w.t.Errorf("%d letters were served more than once", n)
	}
}

// collect takes dead letters into the store.
func (w *world) collect(ctx context.Context) {
	w.receive(ctx, "orders.dead", func(source brokers.Source) {
		for {
			batch, err := source.Receive(ctx, 500)
			if err != nil {
				return
			}
			var letters []store.Collected
			var acks []brokers.Settlement
			for _, d := range batch {
				entry, err := dlq.Decode(d.Message)
				w.must(err)
				letters = append(letters, store.Collected{Broker: "memory", Source: "orders.dead", Format: "redrive", Raw: d.Message, Entry: entry})
				acks = append(acks, brokers.Settlement{Delivery: d, Action: brokers.Ack})
			}
			if _, err := w.s.Collect(context.WithoutCancel(ctx), time.Now(), letters); err != nil {
				w.t.Error(err)
			}
			if errs := source.Settle(ctx, acks); errs != nil {
				w.t.Error(errs)
			}
		}
	})
}

func (w *world) readReceipts(ctx context.Context) {
	w.receive(ctx, "receipts", func(source brokers.Source) {
		w.reader = &job.Receipts{Store: w.s}
		if err := w.reader.Run(ctx, source, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
}

func (w *world) receive(ctx context.Context, topic string, work func(brokers.Source)) {
	source, err := w.broker.Open(ctx, brokers.Subscription{Topics: []string{topic}, InFlight: 1000, MaxAttempts: 1}) // who only reads makes no topic
	w.must(err)
	w.work.Go(func() {
		work(source)
		if err := source.Close(context.WithoutCancel(ctx)); err != nil {
			w.t.Error(err)
		}
	})
}

// traffic publishes ten live messages a second.
func (w *world) traffic(ctx context.Context) {
	w.work.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			body := fmt.Sprint("live-", n)
			w.mu.Lock()
			w.live[body] = time.Now()
			w.mu.Unlock()
			if err := w.broker.Publish(ctx, "orders", brokers.Message{Body: []byte(body)}); err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// die adds n dead orders, a second apart, and waits until they are in the store.
func (w *world) die(n int) {
	w.t.Helper()
	var letters []brokers.Message
	for range n {
		id := fmt.Sprintf("order-%d", w.dead)
		e := dlq.Entry{Message: brokers.Message{ID: id, Topic: "orders", Key: "key", Body: []byte(id)}, Reason: "poison", Meta: brokers.Meta{Attempt: 1, Class: "poison"}, DeadAt: time.Now().Add(time.Duration(w.dead-10_000) * time.Second)}
		letters = append(letters, e.Encode(0))
		w.dead++
	}
	last := func() int64 {
		id, err := w.s.Last(w.t.Context())
		w.must(err)
		return max(id, 0)
	}
	before := last()
	w.must(w.broker.Publish(w.t.Context(), "orders.dead", letters...))
	for last() < before+int64(n) {
		time.Sleep(time.Second)
	}
}

// count returns all letters by state.
func (w *world) count() (c store.Counts) {
	w.t.Helper()
	stats, err := w.s.Stats(w.t.Context(), time.Now())
	w.must(err)
	for _, topic := range stats.Topics {
		c = topic.Counts
	}
	return c
}

func (w *world) runner() *job.Runner { return w.runnerOn(w.s, w.broker) }

func (w *world) runnerOn(s *store.Store, broker brokers.Broker) *job.Runner {
	return &job.Runner{
		Store: s, Targets: targets, Owner: "anna@host", Logger: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string) (brokers.Broker, error) { return broker, nil },
	}
}

func (w *world) plan(spec job.Spec, f store.Filter) job.Plan {
	w.t.Helper()
	p, err := job.NewPlan(w.t.Context(), w.s, time.Now(), targets, spec, f)
	w.must(err)
	return p
}

func (w *world) create(spec job.Spec, f store.Filter) store.Job {
	w.t.Helper()
	j, err := w.plan(spec, f).Create(w.t.Context(), w.s, time.Now(), operator)
	w.must(err)
	return j
}

// run works on a job for up to 2 hours.
func (w *world) run(id int64) store.Job {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Hour)
	defer cancel()
	j, err := w.runner().Run(ctx, id)
	w.must(err)
	return j
}

// set changes a job as another process does.
func (w *world) set(id int64, state store.JobState) {
	w.t.Helper()
	w.must(w.s.SetJob(w.t.Context(), time.Now(), operator, id, state, "by hand"))
}

func (w *world) job(id int64) store.Job {
	w.t.Helper()
	j, err := w.s.Job(w.t.Context(), id)
	w.must(err)
	return j
}

// ends fails the test unless a job ended so, and with so many letters in each state.
func (w *world) ends(j store.Job, state store.JobState, want store.Counts) {
	w.t.Helper()
	if j.State != state || j.Tally.Counts != want {
		w.t.Errorf("job %d is %s (%s) with %+v\nwant %s with %+v", j.ID, j.State, j.Note, j.Tally.Counts, state, want)
	}
}

// prove has a letter sent back and handled, so that a receipt was seen.
func (w *world) prove() {
	w.t.Helper()
	w.die(1)
	w.letters(good)
	if j := w.run(w.create(job.Spec{}, store.Filter{}).ID); j.State != store.JobDone || j.Tally.Confirmed != 1 {
		w.t.Fatalf("the first letter: %+v", j)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = nil
}

func good(string) error   { return nil }
func poison(string) error { return errPoison }
