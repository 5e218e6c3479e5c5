package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/service"
)

// world is a store with processes of the service, which are killed, and callers that
// give them tasks.
type world struct {
	*testing.T
	setup
	target *target
	own    *service.Store // beside those of the processes
	client *http.Client

	processes []atomic.Pointer[breaktest.Process]
	supervise sync.WaitGroup
	callers   sync.WaitGroup
	kills     int
	full      atomic.Bool // a process that has ended said that its disk is full

	mu    sync.Mutex
	tasks []*task
}

// task is one that a caller sends.
type task struct {
	key, path, policy string
	lines             int // of the body
	delay             time.Duration
	id                string    // as it was answered
	cancelled         time.Time // when that was answered
}

// policies have short delays, and leases that end soon after a kill.
var policies = map[string]int{"patient": 30, "short": 3} // attempts

func newWorld(t *testing.T, s setup, processes int) *world {
	t.Helper()
	w := &world{T: t, setup: s, target: newTarget(t), client: &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{}}}
	w.bodies, w.letters = t.TempDir(), w.target.urls[0]+"/letters/"
	w.processes = make([]atomic.Pointer[breaktest.Process], processes)
	t.Cleanup(w.client.CloseIdleConnections)
	var err error
	if w.own, err = service.Open(t.Context(), s.store); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.own.Close() })
	return w
}

// keep keeps a process running, as a supervisor does, until ctx ends. It ends when it
// is killed, and when it begins while its store is down.
func (w *world) keep(ctx context.Context, slot int) {
	for ctx.Err() == nil {
		p := w.start()
		w.processes[slot].Store(p)
		select {
		case <-p.Done():
			pause(ctx, 50*time.Millisecond)
		case <-ctx.Done():
			if err := p.Stop(); err != nil {
				w.Errorf("%v:\n%s", err, tail(p.Log()))
			}
		}
		if strings.Contains(p.Log(), diskFull) {
			w.full.Store(true)
		}
		for _, fault := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
			if strings.Contains(p.Log(), fault) {
				w.Errorf("a process has a bug:\n%s", tail(p.Log()))
			}
		}
	}
}

const diskFull = "disk is full" // as SQLite has it

func tail(log string) string { return log[max(0, len(log)-4000):] }

// live has the processes run while something happens.
func (w *world) live(ctx context.Context, happens func(ctx context.Context)) {
	running, stop := context.WithCancel(ctx)
	for slot := range w.processes {
		w.supervise.Go(func() { w.keep(running, slot) })
	}
	for name, attempts := range policies {
		w.must(ctx, http.MethodPost, "/retry-policies", map[string]any{
			"policyId": name, "maxAttempts": attempts, "initialDelayMs": 50, "maxDelayMs": 500, "visibilityTimeoutMs": 4000,
		}, nil)
	}
	happens(ctx)
	w.callers.Wait()
	stop()
	w.supervise.Wait()
}

// feed has n callers send a task each.
func (w *world) feed(ctx context.Context, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		t := &task{key: fmt.Sprintf("key-%d", len(w.tasks)), policy: "patient", lines: 3}
		switch rand.IntN(30) {
		case 0:
			t.path = "/hang/1"
		case 1, 2:
			t.path = "/reset/2"
		case 3, 4:
			t.path = "/429/1"
		case 5, 6, 7, 8:
			t.path = fmt.Sprintf("/503/%d", rand.IntN(6))
		case 9:
			t.path = "/400/99"
		case 10:
			t.path = "/422/99"
		case 11:
			t.path, t.policy = "/503/99", "short"
		case 12, 13:
			t.path, t.delay = "/200/0", time.Duration(1000+rand.IntN(4000))*time.Millisecond
		case 14:
			t.path, t.lines = "/503/1", 10_000 // kept outside of the task
		default:
			t.path = "/200/0"
		}
		t.path = w.target.urls[rand.IntN(addresses)] + t.path
		w.tasks = append(w.tasks, t)
		w.callers.Go(func() { w.call(ctx, t) })
	}
}

// call sends a task until it is answered, now and then once more, and may cancel it.
func (w *world) call(ctx context.Context, t *task) {
	request := map[string]any{
		"policyId": t.policy, "idempotencyKey": t.key, "targetUrl": t.path, "body": bodyOf(t.key, t.lines),
		"headers": map[string]string{"X-Lines": fmt.Sprint(t.lines)}, "delayMs": t.delay.Milliseconds(),
	}
	for range 1 + rand.IntN(2) {
		var doc struct{ TaskID string }
		w.must(ctx, http.MethodPost, "/retry-tasks", request, &doc)
		if t.id != "" && doc.TaskID != t.id {
			w.Errorf("%s is task %s, and then %s", t.key, t.id, doc.TaskID)
		}
		t.id = doc.TaskID
	}
	if t.delay > 0 && rand.IntN(2) == 0 {
		pause(ctx, time.Duration(rand.Int64N(int64(t.delay))))
		status, err := 0, errNobody
		for (err != nil || status >= 500) && pause(ctx, 20*time.Millisecond) {
			status, err = w.ask(ctx, http.MethodDelete, "/retry-tasks/"+t.id, nil, nil)
		}
		if status == http.StatusOK { // otherwise it is called, or an answer was lost
			t.cancelled = time.Now()
		}
	}
}

// must asks one process after the other until one has done it.
func (w *world) must(ctx context.Context, method, path string, body, into any) {
	for {
		status, err := w.ask(ctx, method, path, body, into)
		if err == nil && status < 300 {
			return
		}
		if err == nil && status < 500 {
			w.Errorf("%s %s is refused: %d, of %.300v", method, path, status, body)
			return
		}
		if !pause(ctx, 100*time.Millisecond) {
			return
		}
	}
}

var errNobody = errors.New("no process listens")

// ask makes a request to one of the processes.
func (w *world) ask(ctx context.Context, method, path string, body, into any) (status int, err error) {
	address := ""
	if p := w.processes[rand.IntN(len(w.processes))].Load(); p != nil && !p.Ended() {
		address = addressOf(p)
	}
	if address == "" {
		return 0, errNobody
	}
	return ask(ctx, w.client, method, address+path, body, into)
}

// ask makes a request.
func ask(ctx context.Context, client *http.Client, method, url string, body, into any) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(answer.Body); err == nil && into != nil && answer.StatusCode < 300 {
		err = json.Unmarshal(text, into)
	}
	return answer.StatusCode, err
}

// until waits until something is so, and reports whether it is.
func until(ctx context.Context, so func() bool) bool {
	for !so() {
		if !pause(ctx, 3*time.Millisecond) {
			return false
		}
	}
	return true
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// killing kills a process, so many times, at some moment while tasks are sent and
// called. Each tenth time one is also stopped in good order.
func (w *world) killing(ctx context.Context, n int) {
	const busy = 20 * time.Second // for what is to happen before
	for end := w.kills + n; w.kills < end && ctx.Err() == nil; {
		w.feed(ctx, 25)
		slot := &w.processes[rand.IntN(len(w.processes))]
		until(ctx, func() bool { return slot.Load() != nil })
		before, calls := slot.Load(), w.target.made.Load()+rand.Int64N(20)
		within, cancel := context.WithTimeout(ctx, busy)
		if rand.IntN(8) > 0 { // the others are killed while they begin
			until(within, func() bool { return before.Ended() || addressOf(before) != "" && w.target.made.Load() >= calls })
		}
		cancel()
		pause(ctx, time.Duration(rand.Int64N(int64(20*time.Millisecond))))
		switch {
		case rand.IntN(10) == 0:
			if err := before.Stop(); err != nil {
				w.Errorf("%v:\n%s", err, tail(before.Log()))
			}
		case before.Kill():
			w.kills++
		}
		until(ctx, func() bool { return slot.Load() != before })
	}
}

// settle waits until every task has ended, and every letter is there.
func (w *world) settle(ctx context.Context) {
	w.callers.Wait()
	for {
		stats, err := w.own.Stats(ctx)
		open, exhausted := int64(0), int64(0)
		for _, p := range stats.Policies {
			open += p.Pending + p.InFlight
			exhausted += p.Exhausted
		}
		letters := w.target.buried()
		if err == nil && open == 0 && exhausted <= letters {
			return
		}
		if !pause(ctx, 200*time.Millisecond) {
			w.Errorf("there is no end: %d tasks have not ended, and %d exhausted ones have %d letters, %v", open, exhausted, letters, err)
			for i := range w.processes {
				w.Logf("a process says:\n%s", tail(w.processes[i].Load().Log()))
			}
			return
		}
	}
}
