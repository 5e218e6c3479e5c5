package collect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

const dead = "orders.dead"

var (
	errDown    = errors.New("connection refused")
	errStrange = errors.New("value out of range")
)

// world is a memory broker with dead letters, and a store on a file that can fail.
type world struct {
	*testing.T
	broker *memory.Broker
	file   *store.Store
	store  *fallible
	log    *journal
	counts counter
}

// counter counts what the broker was asked for.
type counter struct {
	mu  sync.Mutex
	ops map[string]int
}

func (c *counter) add(op memory.Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := string(op.Operation)
	if op.Operation == memory.Settle {
		name = op.Action.String()
	}
	c.ops[name]++
}

func (c *counter) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ops[name]
}

// fallible is a store that fails when it is told to.
type fallible struct {
	*store.Store
	collect func(ctx context.Context, letters []store.Collected, do func() (int, error)) (int, error) // nil: does it
	probe   func(bytes int64) error                                                                   // likewise
	disk    func() (free, size int64, err error)                                                      // nil: unknown
}

func (f *fallible) Collect(ctx context.Context, now time.Time, letters []store.Collected) (int, error) {
	do := func() (int, error) { return f.Store.Collect(ctx, now, letters) }
	if f.collect != nil {
		return f.collect(ctx, letters, do)
	}
	return do()
}

func (f *fallible) Probe(ctx context.Context, bytes int64) error {
	if f.probe != nil {
		return f.probe(bytes)
	}
	return f.Store.Probe(ctx, bytes)
}

func (f *fallible) Disk() (free, size int64, err error) {
	if f.disk != nil {
		return f.disk()
	}
	return 0, 0, nil // that of the machine may be full
}

// fails has the store do nothing but fail for as long as down says.
func (f *fallible) fails(down func() bool) {
	f.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
		if down() {
			return 0, errDown
		}
		return do()
	}
	f.probe = func(int64) error {
		if down() {
			return errDown
		}
		return nil
	}
}

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) count(part string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), part)
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, fault func(memory.Op) memory.Fault, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t, fault)) })
}

func newWorld(t *testing.T, fault func(memory.Op) memory.Fault) *world {
	w := &world{T: t, log: &journal{}, counts: counter{ops: map[string]int{}}}
	w.broker = memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault {
		w.counts.add(op)
		if fault == nil {
			return memory.Fault{}
		}
		return fault(op)
	}})
	worker, err := w.broker.Open(t.Context(), brokers.Subscription{Topics: []string{"orders"}, DeadLetters: map[string]string{"orders": dead}})
	if err == nil {
		err = worker.Close(t.Context()) // the topics stay
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	w.file, w.store = s, &fallible{Store: s}
	t.Cleanup(func() {
		if err := errors.Join(w.broker.Close(context.Background()), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) source() brokers.Source {
	w.Helper()
	s, err := w.broker.Open(w.Context(), collect.Subscription(collect.Group, dead))
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) collector(cfg collect.Config) *collect.Collector {
	w.Helper()
	if cfg.Source == nil {
		cfg.Source = w.source()
	}
	if cfg.Store == nil {
		cfg.Store = w.store
	}
	cfg.Broker, cfg.Logger = "main", slog.New(slog.NewTextHandler(w.log, nil))
	c, err := collect.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// collect collects all that there is.
func (w *world) collect(cfg collect.Config) collect.Result {
	w.Helper()
	result, err := w.collector(cfg).Run(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return result
}

// follow collects in the background until stop is called.
func (w *world) follow(cfg collect.Config) (c *collect.Collector, stop func() collect.Result) {
	w.Helper()
	cfg.Follow = true
	c = w.collector(cfg)
	ctx, cancel := context.WithCancel(w.Context())
	var result collect.Result
	var err error
	var running sync.WaitGroup
	running.Go(func() { result, err = c.Run(ctx) })
	return c, func() collect.Result {
		w.Helper()
		cancel()
		if running.Wait(); err != nil {
			w.Errorf("Run = %v, want nil when it is stopped", err)
		}
		return result
	}
}

// letter is the n-th dead message, as a consumer leaves it.
func letter(n int) brokers.Message {
	died := time.Date(1999, 12, 31, 0, 0, n, 0, time.UTC) // before the clock of a bubble begins
	return dlq.Entry{
		Message: brokers.Message{ID: fmt.Sprint("message-", n), Topic: "orders", Body: fmt.Append(nil, "body ", n)},
		Reason:  "exhausted", ErrorText: "no route to host", Fingerprint: "f", DeadAt: died,
	}.Encode(0)
}

func letters(from, to int) (list []brokers.Message) {
	for n := from; n < to; n++ {
		list = append(list, letter(n))
	}
	return list
}

func (w *world) publish(msgs ...brokers.Message) {
	w.Helper()
	if err := w.broker.Publish(w.Context(), dead, msgs...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) stored() (list []store.Letter) {
	w.Helper()
	for page := (store.Page{Limit: 1000}); ; {
		l, err := w.file.Letters(w.Context(), store.Filter{}, page)
		if err != nil {
			w.Fatal(err)
		}
		list = append(list, l.Letters...)
		if page.After = l.Next; page.After == "" {
			return list
		}
	}
}

// once makes sure that the store has each of n letters once, and the broker none.
func (w *world) once(n int) {
	w.Helper()
	w.split(n, 0)
}

// split makes sure that each of n letters is once in the store or in the broker,
// left of them there.
func (w *world) split(n, left int) {
	w.Helper()
	seen := map[string]int{}
	for _, l := range w.stored() {
		seen[l.MessageID]++
	}
	inStore := len(seen)
	for _, m := range w.broker.Messages(dead) {
		seen[m.ID]++
	}
	if got := w.broker.Len(dead); got != left || inStore != n-left {
		w.Errorf("%d letters in the store and %d in the broker, want %d and %d", inStore, got, n-left, left)
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if seen[id] != 1 {
			w.Errorf("%s is there %d times", id, seen[id])
		}
	}
	if len(seen) != n {
		w.Errorf("%d letters, want %d", len(seen), n)
	}
}
