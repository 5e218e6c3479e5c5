package breaker_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
)

var epoch = time.Unix(1_000_000_000, 0)

const ms = time.Millisecond

// world plays calls to one dependency in virtual time. Each comes to one of a
// fleet of breakers, and is dropped if that refuses it.
type world struct {
	fleet   []*breaker.Breaker
	chance  *rand.Rand
	now     time.Time
	out     calls
	started map[int]int // calls in each second since the epoch
	refused map[int]int
	ended   map[flow.Outcome]int
	answer  func(at time.Duration) (flow.Outcome, time.Duration)
}

type call struct {
	by         *breaker.Breaker
	began, end time.Time
	outcome    flow.Outcome
}

type calls []call

func (c calls) Len() int           { return len(c) }
func (c calls) Less(i, j int) bool { return c[i].end.Before(c[j].end) }
func (c calls) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *calls) Push(x any)        { *c = append(*c, x.(call)) }
func (c *calls) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

func newWorld(fleet int) *world {
	w := &world{
		chance: rand.New(rand.NewPCG(1, 2)), now: epoch,
		started: map[int]int{}, refused: map[int]int{}, ended: map[flow.Outcome]int{},
	}
	for range fleet {
		w.fleet = append(w.fleet, breaker.New(breaker.Config{Random: w.chance.Float64}))
	}
	w.answers(flow.Success, 50*ms)
	return w
}

// answers has all calls end so, after so long.
func (w *world) answers(o flow.Outcome, after time.Duration) {
	w.answer = func(time.Duration) (flow.Outcome, time.Duration) { return o, after }
}

// play has so many calls a second come at random, for so long.
func (w *world) play(rate float64, length time.Duration) {
	until, arrives := w.now.Add(length), w.now
	for w.now.Before(until) {
		w.now = arrives
		if len(w.out) > 0 && w.out[0].end.Before(w.now) {
			w.now = w.out[0].end
		}
		for len(w.out) > 0 && !w.out[0].end.After(w.now) {
			c := heap.Pop(&w.out).(call)
			w.ended[c.outcome]++
			c.by.Done(w.now, c.began, 0, c.outcome)
		}
		if !arrives.After(w.now) {
			w.call()
			arrives = arrives.Add(time.Duration(w.chance.ExpFloat64() / rate * float64(time.Second)))
		}
	}
}

func (w *world) call() {
	at, by := w.now.Sub(epoch), w.fleet[w.chance.IntN(len(w.fleet))]
	if ok, _ := by.Start(w.now); !ok {
		w.refused[int(at.Seconds())]++
		return
	}
	w.started[int(at.Seconds())]++
	o, after := w.answer(at)
	heap.Push(&w.out, call{by, w.now, w.now.Add(after), o})
}

// second is the current one.
func (w *world) second() int { return int(w.now.Sub(epoch).Seconds()) }

// between sums up n from one second to another.
func between(n map[int]int, from, to int) (sum int) {
	for s := from; s < to; s++ {
		sum += n[s]
	}
	return sum
}

func (w *world) snapshot() breaker.Snapshot { return w.fleet[0].Snapshot(w.now) }

func TestOutageIsProbedAndRamps(t *testing.T) {
	for fleet, mostProbes := range map[int]int{
		1:  10 * 1800, // a twentieth of 200/s
		10: 10 * 1800, // each one a second
	} {
		w := newWorld(fleet)
		w.play(200, 10*time.Minute)
		if n := between(w.refused, 0, w.second()); n > 0 {
			t.Errorf("%d breakers: %d healthy calls are refused", fleet, n)
		}
		w.answers(flow.Overload, 3*ms)
		began := w.second() + 10
		w.play(200, 30*time.Minute)
		if n := between(w.started, began, w.second()); n > mostProbes || n < mostProbes/2 {
			t.Errorf("%d breakers: %d calls in an outage of 30 min, want about %d", fleet, n, mostProbes)
		}
		w.answers(flow.Success, 50*ms)
		back := w.second() + 1
		w.play(200, time.Minute)
		for s := back; s < back+5; s++ {
			if n := w.started[s]; n > 300 {
				t.Errorf("%d breakers: %d calls in second %d of the ramp, want at most 1.5 times 200", fleet, n, s-back)
			}
		}
		for s := back; s < back+50; s++ {
			if before, n := w.started[s], w.started[s+1]; before > 10 && n > 2*before+10 {
				t.Errorf("%d breakers: %d calls in one second of the ramp and %d in the next, want at most twice as many", fleet, before, n)
			}
		}
		if n := between(w.refused, back+20, back+50); n > 60 {
			t.Errorf("%d breakers: %d of 6,000 calls are refused 20 to 50 s after the outage, want 1 %%", fleet, n)
		}
		if s := w.snapshot(); s.State != breaker.Closed {
			t.Errorf("%d breakers: a minute after the outage: %+v", fleet, s)
		}
	}
}

func TestPartOfTheCallsFails(t *testing.T) {
	for _, share := range []float64{0.05, 1.0 / 3} {
		w := newWorld(1)
		w.answer = func(time.Duration) (flow.Outcome, time.Duration) {
			if w.chance.Float64() < share {
				return flow.Overload, 50 * ms
			}
			return flow.Success, 50 * ms
		}
		w.play(20, 3*time.Hour)
		if n := between(w.refused, 0, w.second()); n > 0 {
			t.Errorf("%.0f %% fail: %d calls are refused", 100*share, n)
		}
	}
}

// 600 calls hang when the first of them times out.
func TestHostHangs(t *testing.T) {
	w := newWorld(1)
	w.play(20, time.Minute)
	w.answers(flow.Timeout, 30*time.Second)
	hangs := w.second()
	w.play(20, 10*time.Minute)
	if n := between(w.started, hangs+40, w.second()); n > 3*600/30 {
		t.Errorf("%d calls start from 10 s after the first timeouts on, want at most 3 in 30 s", n)
	}
	w.answers(flow.Success, 50*ms)
	back := w.second()
	w.play(20, 2*time.Minute)
	if n := between(w.refused, back+60, back+120); n > 0 {
		t.Errorf("%d calls are refused a minute after the end of the hang", n)
	}
}

// The dependency serves 50 calls a second and throttles the others.
func TestThrottlesArePaced(t *testing.T) {
	for _, demand := range []float64{60, 100, 500} {
		w := newWorld(1)
		w.answer = func(at time.Duration) (flow.Outcome, time.Duration) {
			if w.started[int(at.Seconds())] > 50 {
				return flow.Throttled, 3 * ms
			}
			return flow.Success, 50 * ms
		}
		w.play(demand, 10*time.Minute)
		if ok, no := w.ended[flow.Success], w.ended[flow.Throttled]; ok < 0.85*30_000 || no > ok/8 {
			t.Errorf("%v calls a second: %d served and %d throttled in 10 min, want 85 %% of 30,000 and an eighth of that", demand, ok, no)
		}
	}
}

// The dependency is up for 30 s and down for 30 s.
func TestFlapping(t *testing.T) {
	w := newWorld(1)
	w.answer = func(at time.Duration) (flow.Outcome, time.Duration) {
		if at%time.Minute < 30*time.Second {
			return flow.Success, 50 * ms
		}
		return flow.Overload, 3 * ms
	}
	w.play(20, 30*time.Minute)
	if ok, no := w.ended[flow.Success], w.ended[flow.Overload]; ok < 0.8*18_000 || no > 0.2*18_000 {
		t.Errorf("%d calls succeed and %d fail, want 80 %% and 20 %% of 18,000", ok, no)
	}
}

// The dependency bears 20 calls at once. More break it for 30 s.
func TestCollapsesEnd(t *testing.T) {
	w := newWorld(1)
	broken, collapses := time.Duration(-time.Minute), 0
	w.answer = func(at time.Duration) (flow.Outcome, time.Duration) {
		switch {
		case at < broken+30*time.Second:
			return flow.Overload, 3 * ms
		case len(w.out) >= 20:
			broken = at
			collapses++
			return flow.Overload, 3 * ms
		}
		return flow.Success, 100 * ms
	}
	w.play(400, time.Hour)
	if ok := w.ended[flow.Success]; collapses > 15 || ok < 200_000 {
		t.Errorf("%d collapses and %d successes in an hour, want at most 15 and 200,000", collapses, ok)
	}
}

// A first call may fail, and so may the only one in a minute.
func TestFewCalls(t *testing.T) {
	w := newWorld(1)
	w.answers(flow.Overload, 3*ms)
	w.play(1.0/60, time.Hour)
	if n := between(w.refused, 0, w.second()); n > 6 {
		t.Errorf("one call a minute: %d of 60 are refused in an outage", n)
	}
	w.answers(flow.Success, 50*ms)
	w.play(1.0/60, 10*time.Minute)
	if s := w.snapshot(); s.State != breaker.Closed {
		t.Errorf("one call a minute: ten minutes after an outage %+v", s)
	}
	w = newWorld(1)
	w.answers(flow.Overload, 3*ms)
	w.play(20, 200*ms)
	w.answers(flow.Success, 50*ms)
	w.play(20, time.Minute)
	if n := between(w.refused, 10, 60); n > 10 {
		t.Errorf("%d of 1000 calls are refused 10 to 60 s after the first four have failed", n)
	}
}

// fail has n calls fail one after the other, each after a millisecond and for the
// message that of returns.
func fail(b *breaker.Breaker, now time.Time, n int, of func(n int) uint64) time.Time {
	for i := range n {
		if ok, _ := b.Start(now); ok {
			b.Done(now.Add(ms), now, of(i), flow.Overload)
		}
		now = now.Add(ms)
	}
	return now
}

func anonymous(int) uint64 { return 0 }

func TestMessages(t *testing.T) {
	for name, of := range map[string]func(int) uint64{
		"one":   func(int) uint64 { return 7 },
		"two":   func(n int) uint64 { return 7 + uint64(n%2) },
		"three": func(n int) uint64 { return 7 + uint64(n%3) },
		"none":  anonymous,
	} {
		b := breaker.New(breaker.Config{})
		now := fail(b, epoch, 100, of)
		if got, want := b.Snapshot(now).State, name == "three" || name == "none"; (got == breaker.Open) != want {
			t.Errorf("calls of %s messages fail: the breaker is %v", name, got)
		}
	}
}

// The end of a call from before the limit fell does not lower it again.
func TestLateFailures(t *testing.T) {
	b := breaker.New(breaker.Config{})
	for range 100 {
		b.Start(epoch)
	}
	now := fail(b, epoch, 10, anonymous)
	before := b.Snapshot(now).Limit
	for range 100 {
		b.Done(now, epoch, 0, flow.Overload)
	}
	if got := b.Snapshot(now).Limit; got != before {
		t.Errorf("the limit falls from %v to %v", before, got)
	}
}

func TestSnapshot(t *testing.T) {
	b := breaker.New(breaker.Config{Random: func() float64 { return 0.5 }})
	check := func(now time.Time, want breaker.Snapshot) {
		t.Helper()
		got := b.Snapshot(now)
		if (got.Limit < 1) != (want.State != breaker.Closed) || math.IsInf(got.Limit, 1) != (want.State == breaker.Closed) {
			t.Errorf("%v with a limit of %v", got.State, got.Limit)
		}
		if got.Limit = 0; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check(epoch, breaker.Snapshot{})
	now := fail(b, epoch, 3000, anonymous)
	const reason = "6 of the last 6 messages failed"
	next := b.Snapshot(now).Next
	if d := next.Sub(now); d <= 0 || d > time.Second {
		t.Errorf("the next call may start in %v, want a second at most", d)
	}
	check(now, breaker.Snapshot{State: breaker.Open, Reason: reason, Next: next, Wait: 1499500 * time.Microsecond, Messages: 6, Failures: 6})
	if ok, at := b.Start(now); ok || !at.Equal(next) {
		t.Errorf("Start = %v, %v, want a refusal until %v", ok, at, next)
	}
	check(next, breaker.Snapshot{State: breaker.HalfOpen, Reason: reason, Messages: 6, Failures: 6})

	later := now.Add(time.Hour)
	if ok, _ := b.Start(later); !ok {
		t.Error("no call may start an hour later")
	}
	b.Done(later.Add(ms), later, 0, flow.Overload)
	if got := b.Snapshot(later.Add(ms)).Wait; got != 30*time.Second {
		t.Errorf("an hour without a success: wait for %v, want 30s", got)
	}

	b.Isolate("moving the database")
	check(later.Add(time.Hour), breaker.Snapshot{State: breaker.Isolated, Reason: "moving the database", Wait: 30 * time.Second})
	if ok, next := b.Start(later.Add(time.Hour)); ok || !next.IsZero() {
		t.Errorf("isolated: Start = %v, %v", ok, next)
	}
	b.Restore(later.Add(time.Hour))
	check(later.Add(2*time.Hour), breaker.Snapshot{State: breaker.HalfOpen, Reason: "it serves again, and calls come back slowly"})
	b.Isolate("")
	if got := b.Snapshot(later); got.State != breaker.Isolated || got.Reason == "" {
		t.Errorf("isolated without a reason: %+v", got)
	}
}

// A healthy dependency that was isolated ramps up.
func TestRestoreRamps(t *testing.T) {
	w := newWorld(1)
	w.play(200, 10*time.Minute)
	w.fleet[0].Isolate("moving the database")
	began := w.second() + 1
	w.play(200, 10*time.Minute)
	if n := between(w.started, began, w.second()); n > 0 {
		t.Errorf("%d calls start while the breaker is isolated", n)
	}
	w.fleet[0].Restore(w.now)
	back := w.second()
	w.play(200, time.Minute)
	if first, n := w.started[back+1], between(w.refused, back+20, back+50); first > 100 || n > 60 {
		t.Errorf("%d calls in the first second, and %d of 6,000 refused after 20 s, want at most 100 and 60", first, n)
	}
}

func TestStateNames(t *testing.T) {
	var got []string
	for s := breaker.Closed; s <= breaker.Isolated+1; s++ {
		got = append(got, s.String())
	}
	if want := []string{"closed", "open", "half-open", "isolated", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("states are %q, want %q", got, want)
	}
}

func TestConcurrentUse(t *testing.T) {
	b := breaker.New(breaker.Config{})
	var group sync.WaitGroup
	for g := range uint64(8) {
		group.Go(func() {
			for n := range uint64(2000) {
				now := epoch.Add(time.Duration(n) * ms)
				if ok, _ := b.Start(now); ok {
					b.Done(now.Add(ms), now, n%5, flow.Outcome((n+g)%7))
				}
				b.Snapshot(now)
				if n%500 == 0 {
					b.Isolate("test")
					b.Restore(now)
				}
			}
		})
	}
	group.Wait()
	now := epoch.Add(time.Hour)
	if s := b.Snapshot(now); s.State == breaker.Open || s.State == breaker.Isolated {
		t.Errorf("an hour after all calls have ended: %+v", s)
	}
}
