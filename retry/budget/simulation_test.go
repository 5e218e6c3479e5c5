package budget

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	second  = time.Second
	minute  = time.Minute
	hour    = time.Hour
	longest = 15 * minute // delay, as the default policy has it

	tick = 10 * time.Millisecond // in which the world moves
)

// world is a worker and a dependency in virtual time. A message's run that
// fails is retried after a backoff with full jitter, 1 s doubling to 15 min,
// and then as soon as the budget has a token for it.
type world struct {
	budget *Budget
	takes  time.Duration // a run
	rng    *rand.Rand
	fails  func(m *message, at time.Duration) bool

	now    time.Duration
	ahead  [longest/tick + 2]*message // what a message does next, by tick
	spread time.Duration              // arrivals are this far apart; 0 means none
	until  time.Duration              // arrivals end

	result
}

// result is what came of a simulation.
type result struct {
	perSecond      []int // runs
	retries        []int // runs that are retries, in each second
	messages, open int
	runs           int
	asks, grants   int
	waited         time.Duration // longest, from the first delivery to the success
	done           time.Duration // when the last of the messages that had failed was served
}

type message struct {
	id      int
	since   time.Duration
	runs    int
	running bool     // it ends next, or else asks
	next    *message // in the same tick
}

func newWorld(t testing.TB, perSecond int, fails func(m *message, at time.Duration) bool) *world {
	w := &world{budget: newBudget(t, Queue()), takes: 50 * time.Millisecond, rng: rand.New(rand.NewPCG(1, 2)), fails: fails}
	if perSecond > 0 {
		w.spread = second / time.Duration(perSecond)
	}
	return w
}

// after has m do what it does next, in the tick in which the time has passed.
func (w *world) after(d time.Duration, m *message) {
	at := (w.now + max(d, tick) + tick - 1) / tick % time.Duration(len(w.ahead))
	m.next, w.ahead[at] = w.ahead[at], m
}

func (w *world) clock() time.Time { return noon.Add(w.now) }

// run passes time until end.
func (w *world) run(end time.Duration) {
	for ; w.now < end; w.now += tick {
		if w.spread > 0 && w.now%w.spread == 0 && (w.until == 0 || w.now < w.until) {
			w.arrive()
		}
		at := w.now / tick % time.Duration(len(w.ahead))
		m := w.ahead[at]
		w.ahead[at] = nil
		for m != nil {
			next := m.next
			if m.running {
				w.end(m)
			} else {
				w.ask(m)
			}
			m = next
		}
	}
}

func (w *world) arrive() {
	w.messages++
	w.open++
	w.budget.Deposit(w.clock(), 1)
	w.start(&message{id: w.messages, since: w.now})
}

func (w *world) start(m *message) {
	for int(w.now/second) >= len(w.perSecond) {
		w.perSecond, w.retries = append(w.perSecond, 0), append(w.retries, 0)
	}
	w.perSecond[w.now/second]++
	if m.runs > 0 {
		w.retries[w.now/second]++
	}
	w.runs++
	m.runs++
	m.running = true
	w.after(w.takes, m)
}

func (w *world) end(m *message) {
	m.running = false
	if w.fails(m, w.now) {
		envelope := longest
		if m.runs <= 10 {
			envelope = min(envelope, second<<(m.runs-1))
		}
		w.after(time.Duration(w.rng.Float64()*float64(envelope)), m)
		return
	}
	w.open--
	w.waited = max(w.waited, w.now-m.since)
	if m.runs > 1 {
		w.budget.Refund(w.clock())
		w.done = w.now
	}
}

func (w *world) ask(m *message) {
	w.asks++
	wait, ok := w.budget.Withdraw(w.clock(), longest, w.rng.Float64())
	if ok {
		w.grants++
		w.start(m)
		return
	}
	w.after(wait, m)
}

// busiest returns the most of counts in ten seconds in a row, from from on.
func busiest(counts []int, from time.Duration) (most int) {
	sum := 0
	for i, n := range counts {
		sum += n
		if i >= 10 {
			sum -= counts[i-10]
		}
		if time.Duration(i-9)*second >= from {
			most = max(most, sum)
		}
	}
	return most
}

// part is a third of all messages.
func part(m *message) bool { return m.id%3 == 0 }

func TestThirdOfTheKeysIsDown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		outage, recovery time.Duration
	}{
		{hour, 20 * minute},
		{20 * minute, 12 * minute},
		{5 * minute, 5 * minute},
		{minute, 90 * second},
		{10 * second, 30 * second},
	} {
		t.Run(tt.outage.String(), func(t *testing.T) {
			t.Parallel()
			const before = 5 * minute
			w := newWorld(t, 100, func(m *message, at time.Duration) bool {
				return part(m) && at > before && at < before+tt.outage
			})
			w.run(before)
			base := w.result
			w.run(before + tt.outage)
			down := w.result
			w.run(before + tt.outage + tt.recovery + 2*minute)
			back := w.result
			amplification := float64(down.runs-base.runs) / float64(down.messages-base.messages)
			t.Logf("outage: amplification %.3f, %d asks for %d retries; done %v after; at most %d runs in 10 s; %d asks for %d retries",
				amplification, down.asks, down.grants, back.done-before-tt.outage, busiest(back.perSecond, 0), back.asks-down.asks, back.grants-down.grants)
			if limit := 1.11 + 56/float64(down.messages-base.messages); amplification > limit { // what was saved comes once
				t.Errorf("amplification %.3f in the outage, want at most %.3f", amplification, limit)
			}
			if got := back.done - before - tt.outage; got > tt.recovery {
				t.Errorf("done %v after the outage, want %v", got, tt.recovery)
			}
			if got := busiest(back.perSecond, 0); got > 2100 {
				t.Errorf("%d runs in 10 s, want at most twice the 1000 of the traffic, and some", got)
			}
			if got := busiest(back.retries, 0); got > 1100 {
				t.Errorf("%d retries in 10 s, want about the 1000 of the traffic", got)
			}
			if asks, grants := back.asks-down.asks, back.grants-down.grants; tt.outage > minute && asks > 2*grants {
				t.Errorf("%d asks for %d retries after the outage", asks, grants)
			}
		})
	}
}

func TestEveryFifthRunFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100, nil)
	w.fails = func(*message, time.Duration) bool { return w.rng.IntN(5) == 0 }
	w.until = hour / 2
	w.run(hour)
	t.Logf("%d runs of %d messages, %d asks for %d retries, longest wait %v", w.runs, w.messages, w.asks, w.grants, w.waited)
	if w.open != 0 || w.waited > 10*minute {
		t.Errorf("%d messages are left, the longest wait is %v, want none and at most 10 min", w.open, w.waited)
	}
	if w.asks > w.grants*101/100 {
		t.Errorf("%d asks for %d retries, want practically no deferrals", w.asks, w.grants)
	}
}

// TestUpAndDown has 30 s of health and 30 s without for an hour.
func TestUpAndDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50, func(_ *message, at time.Duration) bool {
		return at < hour && at/(30*second)%2 == 1
	})
	w.run(hour)
	down := w.result
	w.run(hour + 8*minute)
	t.Logf("amplification %.3f, %d asks for %d retries, done %v after, longest wait %v, at most %d runs in 10 s",
		float64(down.runs)/float64(down.messages), w.asks, w.grants, w.done-hour, w.waited, busiest(w.perSecond, 0))
	if w.done-hour > 6*minute {
		t.Errorf("done %v after the last outage, want 6 min", w.done-hour)
	}
	if got := busiest(w.perSecond, 0); got > 1050 {
		t.Errorf("%d runs in 10 s, want at most twice the 500 of the traffic, and some", got)
	}
}

func TestTotalOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100, func(_ *message, at time.Duration) bool { return at > minute && at < 11*minute })
	w.run(11 * minute)
	down := w.result
	w.run(28 * minute)
	t.Logf("amplification %.3f, %d asks; done %v after, %d runs in 10 s", float64(down.runs)/float64(down.messages), down.asks, w.done-11*minute, busiest(w.perSecond, 0))
	if limit := 1.11 * float64(down.messages); float64(down.runs) > limit+120 {
		t.Errorf("%d runs of %d messages in the outage", down.runs, down.messages)
	}
	if got := busiest(w.perSecond, 0); got > 2100 {
		t.Errorf("%d runs in 10 s", got)
	}
	if got := w.done - 11*minute; got > 15*minute {
		t.Errorf("done %v after the outage", got)
	}
}

// TestOnlyRetriesAreLeft has an idle topic, whose 1,000 retries come due at once
// or over a minute.
func TestOnlyRetriesAreLeft(t *testing.T) {
	for _, within := range []time.Duration{0, minute} {
		for _, idle := range []time.Duration{0, hour} {
			w := newWorld(t, 0, func(*message, time.Duration) bool { return false })
			w.budget.Deposit(w.clock(), 1)
			w.run(idle)
			for range 1000 {
				w.after(time.Duration(w.rng.Float64()*float64(within)), &message{runs: 1, since: idle})
			}
			w.run(idle + hour)
			t.Logf("within %v, idle %v: %d asks for %d retries, done after %v", within, idle, w.asks, w.grants, w.done-idle)
			if got := w.done - idle; w.grants != 1000 || got > 4*minute {
				t.Errorf("%d retries granted, the last after %v, want 1000 and 4 min", w.grants, got)
			}
			if w.asks > 3000 {
				t.Errorf("%d asks for %d retries, want 3 for each at most", w.asks, w.grants)
			}
		}
	}
}

// TestLineThatNeverEnds has a share of messages that never succeed: the line
// grows to thousands, and must not ask all the time.
func TestLineThatNeverEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 25, func(m *message, at time.Duration) bool { return m.id%5 == 0 })
	w.run(3 * hour)
	first := w.result
	w.run(4 * hour)
	t.Logf("%d waiting, %d asks and %d retries in the last hour, amplification %.3f", w.budget.Snapshot(w.clock()).Waiting, w.asks-first.asks, w.grants-first.grants, float64(w.runs)/float64(w.messages))
	if perSecond := (w.asks - first.asks) / 3600; perSecond > 120 {
		t.Errorf("%d asks a second, want about 107: 72,000 that wait for 11 min", perSecond)
	}
}

// TestSlowHandlers has runs whose success is known long after their start.
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	for takes, limit := range map[time.Duration]time.Duration{second: 6 * minute, 10 * second: 8 * minute, minute: 12 * minute} {
		w := newWorld(t, 100, func(m *message, at time.Duration) bool { return part(m) && at > 5*minute && at < 15*minute })
		w.takes = takes
		w.run(15*minute + limit + 2*minute)
		t.Logf("a run takes %v: done %v after 10 min of outage", takes, w.done-15*minute)
		if got := w.done - 15*minute; got > limit {
			t.Errorf("a run takes %v: done %v after, want %v", takes, got, limit)
		}
	}
}

// TestDependencyWithoutRoom has one that fails while it gets more than 140 runs
// a second: retries must not keep it there.
func TestDependencyWithoutRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100, nil)
	w.fails = func(m *message, at time.Duration) bool {
		if at > minute && at < 3*minute {
			return true
		}
		last := int(at/second) - 1
		return last >= 0 && last < len(w.perSecond) && w.perSecond[last] > 140
	}
	w.run(30 * minute)
	fails := w.runs - w.messages
	t.Logf("done %v after 2 min of outage, %d failures", w.done-3*minute, fails)
	if w.open > 100 || w.done-3*minute > 20*minute {
		t.Errorf("%d open, done %v after the outage", w.open, w.done-3*minute)
	}
}
