package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// TestThrottled has a target answer with 429 and a time: it is obeyed, and each call
// counts.
func TestThrottled(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.store.policies["default"] = Policy{ID: "default", MaxAttempts: 4}.WithDefaults()
		w.targets["shop.example"] = func(context.Context, *http.Request) (*http.Response, error) {
			a := answered(429)
			a.Header.Set("Retry-After", "20")
			return a, nil
		}
		r := w.add("a", "shop.example", 0)
		_, stop := w.start()
		w.within(2*time.Minute, "a", Exhausted, 1)
		stop()
		calls := w.callsOf(r)
		if len(calls) != 4 || w.task(r).AttemptNumber != 4 || calls[3].Sub(calls[0]) < time.Minute {
			t.Errorf("called at %v, %d attempts", calls, w.task(r).AttemptNumber)
		}
	})
}

// TestCalledWhenDue has tasks due at all times: each is called then, to the
// millisecond, if it was stored before or after the service began.
func TestCalledWhenDue(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		due := map[*fakeRow]time.Time{}
		add := func(in time.Duration) *fakeRow {
			r := w.add("a", "shop.example", in)
			due[r] = time.Now().Add(in)
			return r
		}
		for i := range 100 {
			add(time.Duration(i*i) * time.Millisecond)
		}
		s, _ := w.start()
		time.Sleep(3*time.Second + 37*time.Millisecond)
		for i := range 100 {
			r := add(time.Duration(i) * 31 * time.Millisecond)
			must(t, s.Scheduled(w.Context(), Due{r.Row, r.Tenant, r.NextAttemptAt}))
		}
		time.Sleep(time.Minute)
		for r, at := range due {
			if calls := w.callsOf(r); len(calls) != 1 || calls[0].Sub(at).Abs() > time.Millisecond {
				t.Errorf("due at %v, called %v", at, calls)
			}
		}
	})
}

// TestHangingTarget has one target hang: the others go on, and its own tasks cost few
// calls.
func TestHangingTarget(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		var mended atomic.Bool
		w.targets["hangs.example"] = func(ctx context.Context, _ *http.Request) (*http.Response, error) {
			if mended.Load() {
				return answered(200), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w.targets["good.example"] = answers(50*time.Millisecond, always(200))
		for range 500 {
			w.add("a", "hangs.example", 0)
		}
		for range 300 {
			w.add("b", "good.example", 0)
		}
		w.start()
		w.within(5*time.Second, "b", Succeeded, 300)
		for range 20 {
			w.add("b", "good.example", time.Second)
		}
		w.within(10*time.Second, "b", Succeeded, 320)
		time.Sleep(2 * time.Minute)
		if calls := w.made() - 320; calls > 100 {
			t.Errorf("%d calls to a target that hangs for two minutes", calls)
		}
		mended.Store(true)
		w.within(5*time.Minute, "a", Succeeded, 500)
	})
}

// TestHalfOfTheAnswersFail has half of a target's answers be 500: nothing is stopped,
// and nearly all tasks succeed.
func TestHalfOfTheAnswersFail(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["half.example"] = answers(20*time.Millisecond, func(n int) int { return 200 + 300*(n%2) })
		for i := range 1000 {
			w.add("a", "half.example", time.Duration(i)*10*time.Millisecond)
		}
		w.start()
		w.within(10*time.Minute, "a", Pending, 0)
		if n := w.count("a", Succeeded); n < 985 { // one of 1024 fails ten times
			t.Errorf("%d of 1000 tasks succeeded", n)
		}
		if calls := w.made(); calls > 2200 {
			t.Errorf("%d calls for 1000 tasks, want about two for each", calls)
		}
	})
}

// TestWrongPolicy has tasks of a policy that hammers, at a target that is down, and
// some whose policy is nowhere.
func TestWrongPolicy(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.store.policies["hammer"] = Policy{ID: "hammer", Backoff: Fixed, MaxAttempts: 100, InitialDelayMs: 1, JitterType: NoJitter}.WithDefaults()
		w.targets["down.example"] = answers(time.Millisecond, always(503))
		for range 200 {
			w.add("a", "down.example", 0).PolicyID = "hammer"
		}
		w.add("b", "good.example", 0).PolicyID = "nowhere"
		w.add("c", "good.example", 0)
		w.start()
		w.within(time.Minute, "c", Succeeded, 1)
		if calls := w.made(); calls > 400 {
			t.Errorf("%d calls in a minute, for 200 tasks to a target that is down", calls)
		}
		if n := w.count("b", Pending) + w.count("b", InFlight); n != 1 {
			t.Error("a task whose policy is nowhere is lost")
		}
		w.store.mu.Lock()
		w.store.policies["nowhere"] = w.store.policies["default"]
		w.store.mu.Unlock()
		w.within(time.Minute, "b", Succeeded, 1)
	})
}

// TestManyAtOnce has more tasks due at once than a target may have calls, late in the
// budget of a policy whose delays are long: those that are put off come back soon.
func TestManyAtOnce(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.store.policies["slow"] = Policy{ID: "slow", Backoff: Fixed, InitialDelayMs: 600_000, TotalBudgetMs: 900_000, JitterType: NoJitter}.WithDefaults()
		w.targets["shop.example"] = answers(50*time.Millisecond, always(200))
		for range 500 {
			w.add("a", "shop.example", 6*time.Minute).PolicyID = "slow"
		}
		w.start()
		w.within(7*time.Minute, "a", Succeeded, 500)
		w.calledOnce()
	})
}

// TestBudget has tasks whose budget is over before they can be called, and one whose
// call would take longer: nothing is called after the budget, nor beyond its end.
func TestBudget(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Bodies = &rack{do: func(context.Context) (io.Reader, int64, error) {
			time.Sleep(2 * time.Second)
			return strings.NewReader("large"), 5, nil
		}}
		w.store.policies["short"] = Policy{ID: "short", TotalBudgetMs: 10_000, JitterType: NoJitter}.WithDefaults()
		add := func(tenant, host string) *fakeRow {
			r := w.add(tenant, host, 0)
			r.PolicyID = "short"
			return r
		}
		never, again, late := add("a", "shop.example"), add("a", "shop.example"), add("a", "shop.example")
		again.AttemptNumber = 1
		back := add("b", "shop.example")
		time.Sleep(time.Hour) // nobody works
		never.BodyRef, late.BodyRef = "a/1", "a/1"
		back.BudgetSince = time.Now().Add(-9 * time.Second)
		late.BudgetSince = back.BudgetSince
		w.targets["slow.example"] = answers(25*time.Second, always(200))
		slow := add("c", "slow.example")
		w.start()
		w.within(0, "a", Exhausted, 2) // without as much as a look at the body
		w.within(0, "b", Succeeded, 1)
		w.within(10*time.Second, "c", Exhausted, 1)
		for _, r := range []*fakeRow{never, again, late} {
			if got := w.task(r); len(w.callsOf(r)) > 0 || len(got.log) > 0 || got.LastError != "expired: not called: its budget is over" {
				t.Errorf("called %v, %d in the log, %q", w.callsOf(r), len(got.log), got.LastError)
			}
		}
		if log := w.task(slow).log; len(log) != 1 || log[0].Duration != 10*time.Second || !strings.Contains(log[0].Error, "no answer in time, within 10s") {
			t.Errorf("the log is %+v", log)
		}
	})
}

// TestWorkerDies has a task in the hand of a worker that is no more.
func TestWorkerDies(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		r := w.add("a", "shop.example", 0)
		r.VisibilityTimeout = 30 * time.Second
		must(t, errOf(w.store.Claim(t.Context(), []int64{r.Row}, time.Now(), 0)))
		w.start()
		w.within(29*time.Second, "a", InFlight, 1)
		w.within(20*time.Second, "a", Succeeded, 1)
		got := w.task(r)
		if got.AttemptNumber != 2 || len(got.log) != 2 || got.log[0].ResponseStatus != 0 || !strings.Contains(got.log[0].Error, "lease over") {
			t.Errorf("%d attempts: %+v", got.AttemptNumber, got.log)
		}
	})
}

// TestLeases has calls that take all the time they may, and two services that look for
// leases which are over all the time: no task is taken from its worker, if it waited
// for one or not.
func TestLeases(t *testing.T) {
	for visible, limit := range map[time.Duration]time.Duration{
		time.Second: 500 * time.Millisecond, 10 * time.Second: 5 * time.Second, 30 * time.Second: 20 * time.Second, time.Hour: 30 * time.Second,
	} {
		inVirtualTime(t, func(w *world) {
			w.targets["hangs.example"] = func(ctx context.Context, _ *http.Request) (*http.Response, error) {
				began := time.Now()
				<-ctx.Done()
				if took := time.Since(began); took != limit {
					t.Errorf("of %v a call may take %v, want %v", visible, took, limit)
				}
				return nil, ctx.Err()
			}
			w.store.policies["default"] = Policy{ID: "default", MaxAttempts: 3, Backoff: Fixed, JitterType: NoJitter, VisibilityTimeoutMs: visible.Milliseconds()}.WithDefaults()
			w.config.Workers, w.config.PerHost, w.config.Sweep = 2, 2, min(visible/10, 5*time.Second)
			for i := range 12 {
				w.add("a", "hangs.example", time.Duration(i%3)*900*time.Millisecond).VisibilityTimeout = visible
			}
			_, stop := w.start()
			_, stopOther := w.start()
			w.within(time.Hour, "a", Exhausted, 12)
			stop()
			stopOther()
			for _, r := range w.store.rows {
				for _, a := range r.log {
					if !strings.Contains(a.Error, "no answer in time, within") {
						t.Errorf("of %v: %s", visible, a.Error)
					}
				}
				if calls := len(w.calls[r.IdempotencyKey]); calls != 3 || len(r.log) != 3 {
					t.Errorf("of %v: %d calls, %d in the log, want 3", visible, calls, len(r.log))
				}
			}
		})
	}
}

// TestClockSteps sets the clock forth and back while calls are under way.
func TestClockSteps(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["slow.example"] = answers(20*time.Second, always(200))
		slow := w.add("a", "slow.example", 0)
		later := w.add("a", "shop.example", 30*time.Minute)
		w.start()
		time.Sleep(time.Second)
		w.setClock(time.Hour)
		w.within(25*time.Second, "a", Succeeded, 2)
		if calls := w.callsOf(slow); len(calls) != 1 || w.task(slow).AttemptNumber != 1 {
			t.Errorf("the call under way was made %d times", len(calls))
		}
		if calls := w.callsOf(later); len(calls) != 1 || w.task(later).log[0].StartedAt.Before(w.task(later).NextAttemptAt) {
			t.Errorf("what is due by the new clock was called %v", calls)
		}
		soon := w.add("b", "shop.example", 900*time.Millisecond)
		time.Sleep(600 * time.Millisecond)
		w.setClock(-time.Hour)
		now := w.add("c", "shop.example", 0)
		w.within(10*time.Second, "c", Succeeded, 1)
		if calls := w.callsOf(soon); len(calls) > 0 && w.task(soon).Status != Succeeded {
			t.Errorf("%+v was called %v", w.task(soon), calls)
		}
		w.within(time.Hour, "b", Succeeded, 1)
		if n := w.task(soon).AttemptNumber; n != 1 {
			t.Errorf("%d attempts", n)
		}
		if calls := w.callsOf(now); len(calls) != 1 {
			t.Errorf("called %v", calls)
		}
	})
}

func TestShutdown(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["slow.example"] = answers(10*time.Second, always(200))
		w.targets["hangs.example"] = func(ctx context.Context, _ *http.Request) (*http.Response, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		slow, hangs := w.add("a", "slow.example", 0), w.add("b", "hangs.example", time.Second)
		for range 30 { // more than may go to one host: some wait for a slot
			w.add("c", "slow.example", time.Second)
		}
		_, stop := w.start()
		time.Sleep(1500 * time.Millisecond)
		soon := w.add("d", "shop.example", 800*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 25*time.Second {
			t.Errorf("it took %v to stop, want the 25 s of Drain", took)
		}
		if got := w.task(slow); got.Status != Succeeded {
			t.Errorf("the call under way: %+v", got.Task)
		}
		if got := w.task(hangs); got.Status != Pending || got.AttemptNumber != 1 || !strings.Contains(got.LastError, "cut off as the service stops") {
			t.Errorf("the call that hangs: %+v", got.Task)
		}
		if got := w.task(soon); got.Status != Pending || got.AttemptNumber != 0 || len(w.callsOf(soon)) > 0 {
			t.Errorf("what has not begun: %+v", got.Task)
		}
		if n := w.count("c", InFlight); n > 0 {
			t.Errorf("%d tasks are in nobody's hand", n)
		}
		for _, r := range w.store.rows {
			if r.Tenant == "c" && len(w.calls[r.IdempotencyKey]) != r.AttemptNumber {
				t.Errorf("%d calls, %d attempts: %+v", len(w.calls[r.IdempotencyKey]), r.AttemptNumber, r.Task)
			}
		}
	})
}

// TestStoreFails has the store be away for a while: what became of calls is stored
// when it is back, and nothing is called twice.
func TestStoreFails(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["slow.example"] = answers(2*time.Second, always(200))
		for range 10 {
			w.add("a", "slow.example", 0)
			w.add("a", "shop.example", 3*time.Second)
		}
		set := func(err error) {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			w.store.down = err
		}
		_, stop := w.start()
		time.Sleep(time.Second)
		set(errors.New("the disk is full"))
		time.Sleep(20 * time.Second)
		set(nil)
		w.within(10*time.Second, "a", Succeeded, 20)
		stop()
		w.calledOnce()
		for _, text := range []string{"cannot store what became of tasks", "the disk is full", "can store what became of tasks again", "can claim tasks again"} {
			if !strings.Contains(w.log.String(), text) {
				t.Errorf("the log has no %q", text)
			}
		}
		if n := strings.Count(w.log.String(), "cannot claim tasks"); n != 1 {
			t.Errorf("the log says %d times that tasks cannot be claimed", n)
		}
	})
}

// broken is a schedule that is away.
type broken struct{ Schedule }

func (broken) Add(context.Context, ...Due) error { return errors.New("connection refused") }
func (broken) Take(context.Context, time.Time, int) ([]Due, time.Time, error) {
	return nil, time.Time{}, errors.New("connection refused")
}

// TestScheduleHearsNothing has the schedule be empty.
func TestScheduleHearsNothing(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.start()
		time.Sleep(time.Second)
		for i := range 3000 { // which the schedule never hears of
			w.add("a", "shop.example", time.Duration(i)*time.Millisecond)
		}
		w.within(3*time.Second+6*time.Second, "a", Succeeded, 3000)
	})
}

// hanging is a schedule that does not answer.
type hanging struct{ Schedule }

func (hanging) Add(ctx context.Context, _ ...Due) error { <-ctx.Done(); return ctx.Err() }
func (hanging) Take(ctx context.Context, _ time.Time, _ int) ([]Due, time.Time, error) {
	<-ctx.Done()
	return nil, time.Time{}, ctx.Err()
}

// TestScheduleHangs has the schedule hang while much waits: tasks are called all the
// same, those of a worker that died come back, and who adds one does not wait.
func TestScheduleHangs(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Schedule = hanging{}
		for i := range 300 {
			w.add("a", "shop.example", time.Duration(i)*30*time.Millisecond)
		}
		for range 2 * pageSize {
			w.add("waits", "shop.example", time.Hour)
		}
		died := w.add("b", "shop.example", 0)
		must(t, errOf(w.store.Claim(t.Context(), []int64{died.Row}, time.Now(), 0)))
		s, _ := w.start()
		w.within(12*time.Second, "a", Succeeded, 300)
		began := time.Now()
		if err := s.Scheduled(w.Context(), Due{died.Row, died.Tenant, died.NextAttemptAt}); err == nil || time.Since(began) != addTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		w.within(time.Minute, "b", Succeeded, 1)
	})
}

// TestScheduleBack has a schedule take nothing for a while: all that waits gets there.
func TestScheduleBack(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		full := &fullFor{Heap: NewHeap(), until: time.Now().Add(time.Minute)}
		w.config.Schedule = full
		for i := range 3 * pageSize {
			w.add("a", "shop.example", time.Hour+time.Duration(i)*10*time.Millisecond)
		}
		w.start()
		time.Sleep(65 * time.Second)
		full.mu.Lock()
		defer full.mu.Unlock()
		if n := len(full.rows); n != 3*pageSize || full.refused > 60 {
			t.Errorf("%d of %d tasks are scheduled, after %d vain attempts", n, 3*pageSize, full.refused)
		}
	})
}

// TestOverdueStops has a schedule take nothing while much is overdue: it is asked once,
// and the next sweep goes on from there.
func TestOverdueStops(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		full := &fullFor{Heap: NewHeap(), until: time.Now().Add(time.Hour)}
		w.config.Schedule = full
		for range 3 * pageSize {
			w.add("a", "shop.example", -time.Minute)
		}
		s, err := New(w.config)
		must(t, err)
		if after := s.overdue(w.Context(), Due{}); full.refused != 1 || after != (Due{}) {
			t.Errorf("asked %d times, and goes on from %v", full.refused, after)
		}
		full.until = time.Time{}
		if s.overdue(w.Context(), Due{}); len(full.rows) != 3*pageSize {
			t.Errorf("%d of %d are scheduled", len(full.rows), 3*pageSize)
		}
	})
}

// fullFor is a Heap that takes nothing until then.
type fullFor struct {
	*Heap
	until   time.Time
	refused int
}

func (f *fullFor) Add(ctx context.Context, tasks ...Due) error {
	if time.Now().Before(f.until) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.refused++
		return errors.New("no memory")
	}
	return f.Heap.Add(ctx, tasks...)
}

func TestDeadLetters(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["bad.example"] = answers(time.Millisecond, always(404))
		var mu sync.Mutex
		letters, connected := map[string]int{}, false
		w.config.Bury = func(_ context.Context, t Task) error {
			mu.Lock()
			defer mu.Unlock()
			if !connected {
				return errors.New("no broker")
			}
			letters[t.ID]++
			mu.Unlock()
			time.Sleep(10 * time.Millisecond) // while the other process looks for letters, too
			mu.Lock()
			return nil
		}
		expect := func(want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			connected = true
			if len(letters) != want {
				t.Errorf("%d letters, want %d", len(letters), want)
			}
			for id, n := range letters {
				if n != 1 {
					t.Errorf("%d letters of %s", n, id)
				}
			}
		}
		for range 250 {
			w.add("a", "bad.example", 0)
		}
		_, stop := w.start()
		_, stopOther := w.start()
		w.within(30*time.Second, "a", Exhausted, 250)
		expect(0)
		time.Sleep(36 * time.Second)
		expect(250)
		w.add("a", "bad.example", 0)
		time.Sleep(12 * time.Second)
		stop()
		stopOther()
		expect(251)
	})
}

// TestRefusedLetters has the broker refuse some letters for ever, and hang with one: all
// others are published.
func TestRefusedLetters(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.targets["bad.example"] = answers(time.Millisecond, always(404))
		letters := map[string]bool{}
		w.config.Bury = func(ctx context.Context, t Task) error {
			switch t.ID {
			case "task-1", "task-2", "task-3":
				return errors.New("refused")
			case "task-4":
				<-ctx.Done()
				return ctx.Err()
			}
			letters[t.ID] = true
			return nil
		}
		for range 50 {
			w.add("a", "bad.example", 0)
		}
		_, stop := w.start()
		time.Sleep(time.Hour)
		stop()
		if len(letters) != 46 {
			t.Errorf("%d letters, want 46", len(letters))
		}
	})
}

// TestRetention keeps tasks that have ended for their time, and others for ever.
func TestRetention(t *testing.T) {
	for _, letters := range []bool{false, true} {
		inVirtualTime(t, func(w *world) {
			w.config.Retention = 2 * time.Hour
			if letters {
				w.config.Bury = func(context.Context, Task) error { return errors.New("no broker") }
			}
			w.targets["bad.example"] = answers(time.Millisecond, always(404))
			for range 3 * mostForgotten {
				w.add("a", "shop.example", 0)
			}
			w.add("b", "shop.example", time.Hour)
			w.add("c", "shop.example", 4*time.Hour)
			w.add("d", "bad.example", 0)
			w.start()
			w.within(2*time.Hour-time.Minute, "a", Succeeded, 3*mostForgotten)
			w.within(3*time.Minute, "a", Succeeded, 0)
			w.within(0, "b", Succeeded, 1)
			w.within(0, "c", Pending, 1)
			w.within(0, "d", Exhausted, map[bool]int{true: 1}[letters])
		})
	}
}

func TestForbiddenTargets(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Guard = newTestGuard(t, Targets{Hosts: []string{"good.example"}})
		bad, good := w.add("a", "evil.example", 0), w.add("a", "good.example", 0)
		_, stop := w.start()
		time.Sleep(time.Second)
		stop()
		if got := w.task(bad); got.Status != Exhausted || len(w.callsOf(bad)) > 0 || !strings.Contains(got.LastError, "not among the hosts that are allowed") {
			t.Errorf("%+v", got.Task)
		}
		if got := w.task(good); got.Status != Succeeded {
			t.Errorf("%+v", got.Task)
		}
	})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := New(Config{Workers: -1, PerHost: -1, Sweep: -1, Drain: -1, Retention: -1})
	for _, field := range []string{"Store", "Workers", "PerHost", "Sweep", "Drain", "Retention"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Metrics = NewMetrics()
		w.targets["shop.example"] = answers(20*time.Millisecond, func(n int) int {
			if n <= 3 {
				return 503
			}
			return 200
		})
		w.targets["bad.example"] = answers(0, always(404))
		w.add("a", "shop.example", 0)
		for i := range 150 {
			name := fmt.Sprint("policy-", i)
			w.store.policies[name] = w.store.policies["default"]
			w.add("b", "bad.example", 20*time.Second+time.Duration(i)*100*time.Millisecond).PolicyID = name
		}
		_, stop := w.start()
		time.Sleep(time.Minute)
		stop()
		registry := prometheus.NewRegistry()
		registry.MustRegister(w.config.Metrics)
		families, err := registry.Gather()
		must(t, err)
		got, ages := map[string]float64{}, uint64(0)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch f.GetName() {
				case "retry_attempts_total":
					got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] += m.GetCounter().GetValue()
				case "retry_task_age_seconds":
					ages += m.GetHistogram().GetSampleCount()
				}
			}
		}
		for series, want := range map[string]float64{"retry default": 3, "success default": 1, "dead_letter other": 51} {
			if got[series] != want {
				t.Errorf("%s is %v, want %v", series, got[series], want)
			}
		}
		delete(got, "defer default") // after three failures the target may be taken for down: by chance
		if len(got) != 2+99+1 || ages != 154 {
			t.Errorf("%d series, and %d ages, want 102 and 154", len(got), ages)
		}
	})
}

// TestBodies has the store of bodies be away: the task waits, uncounted.
func TestBodies(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		began := time.Now()
		w.config.Bodies = &rack{do: func(context.Context) (io.Reader, int64, error) {
			if time.Since(began) < time.Minute {
				return nil, 0, errors.New("no connection")
			}
			return strings.NewReader("large"), 5, nil
		}}
		r := w.add("a", "shop.example", 0)
		r.BodyRef = "a/1"
		w.start()
		w.within(59*time.Second, "a", Succeeded, 0)
		w.within(time.Minute, "a", Succeeded, 1)
		if got := w.task(r); got.AttemptNumber != 1 || len(got.log) != 1 || w.sent != "large" {
			t.Errorf("%d attempts, sent %q", got.AttemptNumber, w.sent)
		}
	})
}

// rack opens bodies as its function says, and counts what is not closed.
type rack struct {
	do   func(ctx context.Context) (io.Reader, int64, error)
	open atomic.Int64
}

type racked struct {
	io.Reader
	close func()
}

func (r racked) Close() error { r.close(); return nil }

func (r *rack) Open(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
	body, size, err := r.do(ctx)
	if err != nil {
		return nil, 0, err
	}
	r.open.Add(1)
	return racked{body, func() { r.open.Add(-1) }}, size, nil
}

// TestBodiesThatHang hold up no task that has none.
func TestBodiesThatHang(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Workers = 1
		w.config.Bodies = &rack{do: func(ctx context.Context) (io.Reader, int64, error) {
			<-ctx.Done()
			return nil, 0, ctx.Err()
		}}
		for range 20 {
			w.add("a", "shop.example", 0).BodyRef = "a/1"
		}
		w.add("b", "shop.example", 500*time.Millisecond)
		w.start()
		w.within(2*time.Second, "b", Succeeded, 1)
		w.within(time.Minute, "a", Succeeded, 0)
		for _, r := range w.store.rows {
			if got := w.task(r); got.BodyRef != "" && got.AttemptNumber != 0 {
				t.Errorf("%s counts: %s", got.ID, got.LastError)
			}
		}
	})
}

// TestBodiesThatBreak count as attempts, for as long as they break, and the breaker of
// the target hears nothing of it.
func TestBodiesThatBreak(t *testing.T) {
	for _, fault := range []error{io.ErrUnexpectedEOF, context.Canceled, classify.Permanent(errors.New("no")), syscall.EMFILE} {
		inVirtualTime(t, func(w *world) {
			opened := 0
			shelf := &rack{do: func(context.Context) (io.Reader, int64, error) {
				if opened++; opened > 2 {
					return strings.NewReader("large"), 5, nil
				}
				return io.MultiReader(strings.NewReader("la"), iotest.ErrReader(fault)), 5, nil
			}}
			w.config.Bodies = shelf
			r := w.add("a", "shop.example", 0)
			r.BodyRef = "a/1"
			s, _ := w.start()
			w.within(5*time.Minute, "a", Succeeded, 1)
			got := w.task(r)
			if got.AttemptNumber != 3 || len(w.callsOf(r)) != 1 || w.sent != "large" {
				t.Errorf("%v: attempts %+v, %d arrived, the latest %q", fault, got.log, len(w.callsOf(r)), w.sent)
			}
			if len(got.log) > 0 && !strings.Contains(got.log[0].Error, "body could not be read to its end: "+fault.Error()) {
				t.Errorf("the log has %q", got.log[0].Error)
			}
			if shelf.open.Load() != 0 || s.open.left() != 64 {
				t.Errorf("%d bodies were left open", shelf.open.Load())
			}
			to, _ := s.targets.of("a", &url.URL{Scheme: "https", Host: "shop.example"})
			if snap := to.breaker.Snapshot(time.Now()); snap.Failures > 0 {
				t.Errorf("the breaker has heard %+v", snap)
			}
		})
	}
}

// TestBodiesThatAreTooLarge end the task at once.
func TestBodiesThatAreTooLarge(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Bodies = &rack{do: func(context.Context) (io.Reader, int64, error) { return nil, 0, bodies.ErrTooLarge }}
		r := w.add("a", "shop.example", 0)
		r.BodyRef = "a/1"
		w.start()
		w.within(time.Second, "a", Exhausted, 1)
		if got := w.task(r); !strings.HasPrefix(got.LastError, "poison: ") || !strings.Contains(got.LastError, "16777216") || w.made() > 0 {
			t.Errorf("%+v after %d calls", got, w.made())
		}
	})
}
