package flow_test

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// world plays runs of a dependency against a Limiter in virtual time.
type world struct {
	*flow.Limiter
	now     time.Time
	running int
	next    uint64 // the next message
	again   bool   // its last run was throttled
	pending runs
	starts  map[int64]int // runs that started in each second
	ended   map[flow.Outcome]int

	// call answers a run of a message: how it ends, and after how long.
	call func(now time.Time, running int, message uint64) (flow.Outcome, time.Duration)
}

type run struct {
	message    uint64
	began, end time.Time
	outcome    flow.Outcome
	again      bool
}

type runs []run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, j int) bool { return r[i].end.Before(r[j].end) }
func (r runs) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(run)) }
func (r *runs) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

var epoch = time.Unix(1_000_000_000, 0)

func newWorld(slots int) *world {
	random := rand.New(rand.NewPCG(1, 2))
	return &world{
		Limiter: flow.New(slots, random.Float64), now: epoch,
		starts: map[int64]int{}, ended: map[flow.Outcome]int{}, call: answers(10 * time.Millisecond),
	}
}

func answers(after time.Duration) func(time.Time, int, uint64) (flow.Outcome, time.Duration) {
	return ends(flow.Success, after)
}

func ends(o flow.Outcome, after time.Duration) func(time.Time, int, uint64) (flow.Outcome, time.Duration) {
	return func(time.Time, int, uint64) (flow.Outcome, time.Duration) { return o, after }
}

// flood has messages wait for every free place, for so long.
func (w *world) flood(length time.Duration) { w.play(length, 0) }

// offer has a message come every so often, for so long. A message waits until it
// may start.
func (w *world) offer(rate float64, length time.Duration) {
	w.play(length, time.Duration(float64(time.Second)/rate))
}

func (w *world) play(length, every time.Duration) {
	until, arrives := w.now.Add(length), w.now
	waiting := 0
	for w.now.Before(until) {
		for every > 0 && !arrives.After(w.now) {
			waiting++
			arrives = arrives.Add(every)
		}
		next := until
		if every > 0 && arrives.Before(next) {
			next = arrives
		}
		for every == 0 || waiting > 0 {
			ok, again := w.Start(w.now)
			if !ok {
				if !again.IsZero() && again.Before(next) {
					next = again
				}
				break
			}
			waiting--
			w.begin()
		}
		if len(w.pending) > 0 && w.pending[0].end.Before(next) {
			next = w.pending[0].end
		}
		w.now = next
		for len(w.pending) > 0 && !w.pending[0].end.After(w.now) {
			r := heap.Pop(&w.pending).(run)
			w.running--
			w.ended[r.outcome]++
			w.Done(w.now, flow.End{Began: r.began, Who: r.message, Outcome: r.outcome, Again: r.again})
		}
	}
}

func (w *world) begin() {
	w.next++
	w.starts[w.now.Unix()]++
	w.again = false
	o, d := w.call(w.now, w.running, w.next)
	w.running++
	heap.Push(&w.pending, run{w.next, w.now, w.now.Add(d), o, w.again})
}

// startsIn is how many runs started from so many seconds after the epoch on.
func (w *world) startsIn(from, to int64) (n int) {
	for s := from; s < to; s++ {
		n += w.starts[epoch.Unix()+s]
	}
	return n
}

func (w *world) limit() float64 { return w.Adjust(w.now, flow.Change{}).Limit }

func TestNewLimiterIsFullAfterThreeSeconds(t *testing.T) {
	w := newWorld(10)
	if got := w.limit(); got != 5 {
		t.Errorf("a new limit is %v, want half of the slots", got)
	}
	w.flood(3 * time.Second)
	if got := w.limit(); got != 10 {
		t.Errorf("after 3 s of successes the limit is %v, want 10", got)
	}
}

// limited serves so many calls in each second of the clock, and throttles the others.
func limited(most int) func(time.Time, int, uint64) (flow.Outcome, time.Duration) {
	var second int64
	served := 0
	return func(now time.Time, _ int, _ uint64) (flow.Outcome, time.Duration) {
		if now.Unix() != second {
			second, served = now.Unix(), 0
		}
		if served++; served > most {
			return flow.Throttled, 3 * time.Millisecond
		}
		return flow.Success, 10 * time.Millisecond
	}
}

// 45,000 messages meet a dependency that serves 50 calls a second and throttles
// the others.
func TestRateLimitIsFoundAndKept(t *testing.T) {
	w := newWorld(10)
	w.call = limited(50)
	w.flood(15 * time.Minute)
	if ok, no := w.ended[flow.Success], w.ended[flow.Throttled]; ok < 0.95*45_000 || no > ok/8 {
		t.Errorf("%d served and %d throttled in 15 min, want 95 %% of 45,000 and at most an eighth of that", ok, no)
	}
}

// Two in five customers are throttled, however few calls there are: that slows nobody
// else. A limit on all calls is found afterwards.
func TestThrottlesOfSomeCustomers(t *testing.T) {
	w := newWorld(10)
	w.offer(100, time.Minute)
	w.call = func(_ time.Time, _ int, message uint64) (flow.Outcome, time.Duration) {
		switch message % 10 {
		case 0, 1, 2: // a new message of such a customer
			return flow.Throttled, 3 * time.Millisecond
		case 3: // it runs again
			w.again = true
			return flow.Throttled, 3 * time.Millisecond
		}
		return flow.Success, 10 * time.Millisecond
	}
	clear(w.ended)
	w.flood(10 * time.Minute)
	if ok := w.ended[flow.Success]; ok < 450_000 {
		t.Errorf("%d served in 10 min, want at least 450,000 of 514,000", ok)
	}
	limit := limited(50)
	w.call = func(now time.Time, running int, message uint64) (o flow.Outcome, after time.Duration) {
		w.again = message%10 == 0
		return limit(now, running, message)
	}
	w.flood(10 * time.Minute)
	clear(w.ended)
	w.flood(10 * time.Minute)
	if ok, no := w.ended[flow.Success], w.ended[flow.Throttled]; ok < 29_500 || no > ok/4 {
		t.Errorf("%d served and %d throttled in 10 min, want 98 %% of 30,000 and at most a quarter of that", ok, no)
	}
}

func TestOutageIsProbedAndRamps(t *testing.T) {
	w := newWorld(10)
	w.offer(20, 10*time.Minute)
	w.call = ends(flow.Overload, 3*time.Millisecond)
	w.flood(time.Hour)
	if n := w.startsIn(660, 4200); n > 3600/20*20 || n < 3600/30 {
		t.Errorf("%d probes in an hour, want one every 30 s at least and a twentieth of the normal rate at most", n)
	}
	if s := w.Adjust(w.now, flow.Change{}); s.Limit >= 1 || s.Interval < time.Second || s.Failing != s.Sampled {
		t.Errorf("in an outage: %+v", s)
	}
	w.call = answers(10 * time.Millisecond)
	recovered := int64(4200)
	w.flood(2 * time.Minute)
	first := recovered
	for w.starts[epoch.Unix()+first] < 2 {
		first++
	}
	for s := first; s < first+5; s++ {
		if n := w.startsIn(s, s+1); n > 40 {
			t.Errorf("%d runs start in second %d of the ramp, want at most twice the normal 20", n, s-first)
		}
	}
	for s := first; s < first+60; s++ {
		if before, n := w.startsIn(s, s+1), w.startsIn(s+1, s+2); before >= 10 && n > 2*before+1 {
			t.Errorf("%d runs start in one second of the ramp and %d in the next, want at most twice as many", before, n)
		}
	}
	if got := w.limit(); got != 10 {
		t.Errorf("two minutes after the outage the limit is %v, want 10", got)
	}
}

// More than 20 calls at once break the dependency for 30 s; then it is cold and
// bears 2 for two minutes.
// A worker of a fleet of a hundred probes and ramps as a hundredth of one worker does,
// but probes every 30 s at least.
// After an outage a run takes ten thousand times as long as usual: the next ones do not
// wait for that.
func TestSlowRunAfterAnOutage(t *testing.T) {
	w := newWorld(10)
	w.call = answers(500 * time.Microsecond)
	w.offer(1, 10*time.Minute)
	w.call = ends(flow.Overload, time.Millisecond)
	w.offer(1, 10*time.Minute)
	w.call = answers(500 * time.Microsecond)
	w.offer(1, 4*time.Second)
	w.call = answers(5 * time.Second)
	w.offer(1, 2*time.Second)
	w.call = answers(500 * time.Microsecond)
	clear(w.ended)
	w.offer(1, time.Minute)
	if n := w.ended[flow.Success]; n < 55 {
		t.Errorf("%d runs in a minute, want 55 of 60", n)
	}
}

func TestFleet(t *testing.T) {
	w := newWorld(10)
	w.Adjust(w.now, flow.Change{Workers: 100})
	w.offer(0.2, 10*time.Minute)
	w.call = ends(flow.Overload, 3*time.Millisecond)
	w.flood(5 * time.Minute)
	if n := w.startsIn(660, 900); n < 240/30-1 || n > 240/24+1 {
		t.Errorf("%d probes in 4 min of an outage, want one every 30 s, give or take the jitter of 20 %%", n)
	}
	w.call = answers(10 * time.Millisecond)
	w.flood(time.Minute)
	for s := int64(900); s < 960; s++ {
		if n := w.startsIn(s, s+5); s < 905 && n > 3 {
			t.Errorf("%d runs start in 5 s from %d s after the outage on, want at most 1.5 times the normal rate", n, s-900)
		}
	}
	w.flood(5 * time.Minute)
	if got := w.limit(); got != 10 {
		t.Errorf("six minutes after the outage the limit is %v, want 10", got)
	}
}

func TestCollapsesEnd(t *testing.T) {
	w := newWorld(100)
	broken, collapses := epoch, 0
	w.call = func(now time.Time, running int, _ uint64) (flow.Outcome, time.Duration) {
		bears := 2
		if now.Sub(broken) > 150*time.Second {
			bears = 20
		}
		switch {
		case now.Before(broken.Add(30 * time.Second)):
			return flow.Overload, 3 * time.Millisecond
		case running >= bears:
			broken = now
			collapses++
			return flow.Overload, 3 * time.Millisecond
		}
		return flow.Success, 10 * time.Millisecond
	}
	w.flood(20 * time.Minute)
	if before := w.ended[flow.Success]; collapses > 10 || before < 100_000 {
		t.Errorf("%d collapses and %d successes in 20 min, want at most 10 and 100,000", collapses, before)
	}
}

func TestEvidence(t *testing.T) {
	for _, tt := range []struct {
		name string
		call func(n uint64) (flow.Outcome, uint64) // of the nth run, and of which message
		want func(s flow.Status) bool
	}{
		{"one message that fails again and again", func(n uint64) (flow.Outcome, uint64) {
			if n%2 == 0 {
				return flow.Overload, 7
			}
			return flow.Success, n
		}, flow.Status.Full},
		{"a third of the messages", func(n uint64) (flow.Outcome, uint64) {
			if n%3 == 0 {
				return flow.Overload, n
			}
			return flow.Success, n
		}, flow.Status.Full},
		{"one throttled customer of a hundred", func(n uint64) (flow.Outcome, uint64) {
			if n%100 == 0 {
				return flow.Throttled, n
			}
			return flow.Success, n
		}, flow.Status.Full},
		{"nothing but poison", func(n uint64) (flow.Outcome, uint64) { return flow.Poison, n },
			func(s flow.Status) bool { return s.Limit == 5 && s.Poisoned }},
		{"nothing but unknown errors", func(n uint64) (flow.Outcome, uint64) { return flow.Unknown, n },
			func(s flow.Status) bool { return s.Limit == 1 }},
		{"nothing but timeouts", func(n uint64) (flow.Outcome, uint64) { return flow.Timeout, n },
			func(s flow.Status) bool { return s.Limit < 0.2 }},
		{"runs that say nothing", func(n uint64) (flow.Outcome, uint64) { return flow.Neutral, n },
			func(s flow.Status) bool { return s.Limit == 5 && s.Sampled == 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, now := flow.New(10, rand.New(rand.NewPCG(1, 2)).Float64), epoch
			for n := range uint64(5000) {
				for {
					ok, next := l.Start(now)
					if ok {
						break
					}
					now = next
				}
				began := now
				now = now.Add(10 * time.Millisecond)
				l.Adjust(now, flow.Change{Waits: true})
				o, who := tt.call(n)
				l.Done(now, flow.End{Began: began, Who: who, Outcome: o})
			}
			if s := l.Adjust(now, flow.Change{}); !tt.want(s) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A probe that hangs lets the next one start, but not a fourth.
func TestHungProbes(t *testing.T) {
	w := newWorld(10)
	w.offer(20, time.Minute)
	w.call = ends(flow.Overload, 3*time.Millisecond)
	w.flood(time.Minute)
	w.call = ends(flow.Timeout, 24*time.Hour)
	w.flood(time.Hour)
	if w.running != 3 {
		t.Errorf("%d probes hang, want 3", w.running)
	}
}

func TestPauseByHand(t *testing.T) {
	w := newWorld(10)
	w.offer(20, time.Minute)
	w.Adjust(w.now, flow.Change{Pause: "maintenance"})
	if ok, next := w.Start(w.now); ok || !next.IsZero() {
		t.Errorf("a run may start in a pause: %v, %v", ok, next)
	}
	if s := w.Adjust(w.now, flow.Change{}); s.Paused != "maintenance" {
		t.Errorf("paused for %q", s.Paused)
	}
	w.Adjust(w.now, flow.Change{Resume: true})
	if got := w.limit(); got >= 1 {
		t.Errorf("after a pause the limit is %v, want a ramp", got)
	}
	w.flood(30 * time.Second)
	if got := w.limit(); got != 10 {
		t.Errorf("30 s after a pause the limit is %v, want 10", got)
	}
}

func TestUnbounded(t *testing.T) {
	calls := func() *world {
		w := newWorld(1)
		w.Limiter = flow.Unbounded(rand.New(rand.NewPCG(1, 2)).Float64)
		w.offer(20, time.Minute)
		return w
	}
	down := func(w *world) {
		w.call = ends(flow.Overload, 3*time.Millisecond)
		w.offer(20, 10*time.Second)
		w.call = answers(10 * time.Millisecond)
	}
	t.Run("has no limit at first", func(t *testing.T) {
		w := calls()
		for n := range 10_000 {
			if ok, _ := w.Start(w.now); !ok {
				t.Fatalf("call %d may not start", n)
			}
		}
	})
	t.Run("is cut to twice the usual, whatever is out", func(t *testing.T) {
		w := calls()
		w.call = ends(flow.Timeout, 10*time.Second)
		w.offer(20, 10*time.Second+4*time.Second) // the first 64 time out
		if s := w.Adjust(w.now, flow.Change{}); s.Full() || s.Limit > 2*20*0.01 || s.Running < 100 {
			t.Errorf("after the first timeouts: %+v", s)
		}
	})
	t.Run("ends when it refuses nothing for 10 s", func(t *testing.T) {
		w := calls()
		down(w)
		w.offer(0.5, 8*time.Second)
		if s := w.Adjust(w.now, flow.Change{}); s.Full() {
			t.Errorf("8 s after an outage: %+v", s)
		}
		w.offer(0.5, 10*time.Second)
		if s := w.Adjust(w.now, flow.Change{}); !s.Full() {
			t.Errorf("18 s after an outage: %+v", s)
		}
	})
	t.Run("a lost call delays the next for 30 s", func(t *testing.T) {
		w := calls()
		down(w)
		lost := 0
		for range 10 {
			if ok, next := w.Start(w.now); ok {
				lost++
			} else if wait := next.Sub(w.now); next.IsZero() || wait > 31*time.Second {
				t.Fatalf("%d calls are lost: the next in %v", lost, wait)
			} else {
				w.now = next
			}
		}
		if lost < 4 {
			t.Errorf("%d calls started", lost)
		}
	})
	t.Run("lets as many start in a burst as the limit", func(t *testing.T) {
		w := calls()
		down(w)
		w.flood(12 * time.Second)
		w.offer(0.1, 5*time.Second)
		burst := 0
		for ok := true; ok; burst++ {
			ok, _ = w.Start(w.now)
		}
		if s := w.Adjust(w.now, flow.Change{}); s.Limit < 2 || burst-1 < int(s.Limit) || burst-1 > int(s.Limit)+1 {
			t.Errorf("%d start at once with a limit of %v", burst-1, s.Limit)
		}
	})
}

// Absurd times and numbers neither stop the limiter nor open it.
func TestAbsurdInput(t *testing.T) {
	for _, slots := range []int{-1, 0, 1, 1 << 20} {
		l := flow.New(slots, func() float64 { return 0 })
		for n := range uint64(1000) {
			now := epoch.Add(time.Duration(n%7-3) * time.Hour)
			if ok, next := l.Start(now); !ok && !next.IsZero() {
				if ok, _ := l.Start(next); !ok {
					t.Fatalf("%d slots: nothing may start at the time that Start named", slots)
				}
			}
			l.Done(now, flow.End{Began: now.Add(time.Hour), Who: n, Outcome: flow.Outcome(n % 7)}) // it ends before it begins
		}
		s := l.Adjust(epoch, flow.Change{})
		if !(s.Limit > 0) || s.Limit > float64(max(slots, 1)) {
			t.Errorf("%d slots: %+v", slots, s)
		}
	}
}

// A clock that steps, forward or back, neither stops the limiter nor opens it.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-6 * 7 * 24 * time.Hour, -time.Hour, -time.Second, time.Second, time.Hour, 6 * 7 * 24 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			w := newWorld(10)
			w.offer(20, 10*time.Minute)
			w.step(step)
			healthy := w.ended[flow.Success]
			if w.offer(20, time.Minute); w.ended[flow.Success]-healthy < 1190 {
				t.Errorf("%d of 1,200 runs in the minute after the step", w.ended[flow.Success]-healthy)
			}
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.flood(20 * time.Minute)
			w.step(step)
			failed := w.ended[flow.Overload]
			w.flood(10 * time.Minute)
			if n := w.ended[flow.Overload] - failed; n < 20 || n > 1200 {
				t.Errorf("%d probes in 10 minutes of outage after the step", n)
			}
			w.call = answers(10 * time.Millisecond)
			if w.flood(2 * time.Minute); w.limit() != 10 {
				t.Errorf("two minutes after the outage the limit is %v, want 10", w.limit())
			}
		})
	}
}

// step sets the clock while runs are under way.
func (w *world) step(by time.Duration) {
	w.now = w.now.Add(by)
	for i := range w.pending {
		w.pending[i].end = w.pending[i].end.Add(by)
	}
}

// A batch is one run, however many of its messages are reported.
func TestBatchesAreRuns(t *testing.T) {
	l, now := flow.New(10, func() float64 { return 0.5 }), epoch
	for n := range uint64(600) { // two batches of a hundred a second
		if ok, _ := l.Start(now); !ok {
			t.Fatal("a healthy run may not start")
		}
		began := now
		now = now.Add(500 * time.Millisecond)
		l.Done(now, flow.End{Began: began, Who: 100 * n, Outcome: flow.Success})
		for i := range uint64(99) {
			l.Done(now, flow.End{Began: began, Who: 100*n + i + 1, Outcome: flow.Success, More: true})
		}
	}
	runs := 0
	for end := now.Add(10 * time.Minute); now.Before(end); {
		ok, next := l.Start(now)
		if !ok {
			now = next
			continue
		}
		runs++
		l.Done(now.Add(time.Millisecond), flow.End{Began: now, Who: uint64(runs), Outcome: flow.Overload})
		now = now.Add(time.Millisecond)
	}
	if runs > 700 {
		t.Errorf("%d runs in ten minutes of outage, want one a second at most, and a round until it was seen", runs)
	}
}

func TestConcurrentUse(t *testing.T) {
	l := flow.New(10, rand.Float64)
	var group sync.WaitGroup
	for g := range uint64(8) {
		group.Go(func() {
			for n := range uint64(2000) {
				now := epoch.Add(time.Duration(n) * time.Millisecond)
				if ok, _ := l.Start(now); ok {
					l.Done(now.Add(time.Millisecond), flow.End{Began: now, Who: g<<32 | n, Outcome: flow.Outcome(n % 7)})
				}
				l.Adjust(now, flow.Change{})
				l.Adjust(now, flow.Change{Waits: true})
			}
		})
	}
	group.Wait()
	if s := l.Adjust(epoch.Add(time.Hour), flow.Change{}); s.Running != 0 {
		t.Errorf("%d runs are counted after all have ended", s.Running)
	}
}

func BenchmarkStartDone(b *testing.B) {
	l, now := flow.New(10, rand.Float64), epoch
	var n uint64
	b.ReportAllocs()
	for b.Loop() {
		n++
		began := now
		now = now.Add(time.Millisecond)
		l.Start(began)
		l.Done(now, flow.End{Began: began, Who: n, Outcome: flow.Success})
	}
}

// A change may be told before the first run and without a time.
func TestAdjustWithoutTime(t *testing.T) {
	l := flow.New(2, func() float64 { return 0 })
	l.Adjust(time.Time{}, flow.Change{Workers: 2})
	for n := range uint64(100) { // an outage
		l.Start(epoch)
		l.Done(epoch, flow.End{Began: epoch, Who: n, Outcome: flow.Overload})
	}
	before := l.Adjust(epoch.Add(time.Minute), flow.Change{})
	after := l.Adjust(time.Time{}, flow.Change{Workers: 2})
	again := l.Adjust(epoch.Add(time.Minute), flow.Change{})
	if before.Silence != time.Minute || after != before || again != before {
		t.Errorf("a minute after the outage the status is %+v, without a time %+v, and then %+v", before, after, again)
	}
}
