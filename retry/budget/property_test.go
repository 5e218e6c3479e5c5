package budget

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// ledger follows a Budget in the simplest way: it keeps every delivery and
// every reservation.
type ledger struct {
	*testing.T
	config    Config
	budget    *Budget
	origin    time.Time
	delivered []time.Time
	retries   []retry
	perSlot   map[int64]int
}

type retry struct {
	start time.Time
	limit int // as the deliveries allowed when it was reserved
}

func newLedger(t *testing.T, c Config) *ledger {
	return &ledger{T: t, config: c, budget: newBudget(t, c), origin: noon, perSlot: map[int64]int{}}
}

func (l *ledger) slot(t time.Time) int64 { return int64(t.Sub(l.origin) / l.budget.width) }

func (l *ledger) deliver(now time.Time, n int) {
	l.budget.Delivered(now, n)
	for range n {
		l.delivered = append(l.delivered, now)
	}
}

// allowed counts what the promise allows at now, from the deliveries alone.
func (l *ledger) allowed(now time.Time) int {
	current := l.slot(now)
	var whole, latest int
	for i := len(l.delivered) - 1; i >= 0; i-- {
		age := current - l.slot(l.delivered[i])
		if age > perWindow {
			break
		}
		if age >= 1 {
			whole++
		}
		if age < perWindow {
			latest++
		}
	}
	return int(l.config.Share*float64(max(whole, latest)) + l.config.Floor*l.config.Window.Seconds())
}

// reserve checks that the retry got the first slot with room, if that is among
// the slots counted in full detail.
func (l *ledger) reserve(now, due time.Time) time.Time {
	got := l.budget.Reserve(now, due)
	allowed := l.allowed(now)
	if limit := int(l.budget.limit); limit > allowed {
		l.Fatalf("limit %d at %v, deliveries allow %d", limit, now.Sub(noon), allowed)
	}
	wanted := due
	if wanted.Before(now) {
		wanted = now
	}
	first, end := l.slot(wanted), l.budget.nearEnd()
	for first < end && l.perSlot[first] >= int(l.budget.room(first)) {
		first++
	}
	switch slot := l.slot(got); {
	case first >= end:
		if slot < end {
			l.Fatalf("slot %d: the first with room is beyond %d", slot, end)
		}
	case first == l.slot(wanted):
		if !got.Equal(due) {
			l.Fatalf("slot %d has room, but a retry was moved by %v", first, got.Sub(due))
		}
	case slot != first:
		l.Fatalf("at %v, a retry due in slot %d got slot %d, want %d", now.Sub(noon), l.slot(wanted), slot, first)
	}
	if got.Before(due) {
		l.Fatalf("%v is before the due time %v", got, due)
	}
	start := got
	if start.Before(now) {
		start = now
	}
	l.perSlot[l.slot(start)]++
	l.retries = append(l.retries, retry{start, allowed})
	return start
}

func (l *ledger) refund(now time.Time, i int) {
	start := l.retries[i].start
	if l.slot(start) >= l.budget.nearEnd() || start.Before(now) {
		return
	}
	l.budget.Refund(now, start)
	l.perSlot[l.slot(start)]--
	l.retries = slices.Delete(l.retries, i, i+1)
}

// checkWindows holds every window against the highest limit that its retries
// were reserved under.
func (l *ledger) checkWindows() {
	slices.SortFunc(l.retries, func(a, b retry) int { return a.start.Compare(b.start) })
	for i, first := range l.retries {
		limit := 0
		for j := i; j < len(l.retries) && l.retries[j].start.Sub(first.start) < l.config.Window; j++ {
			limit = max(limit, l.retries[j].limit)
			if n := j - i + 1; n > limit {
				l.Fatalf("%d retries within %v from %v, want at most %d", n, l.retries[j].start.Sub(first.start), first.start.Sub(noon), limit)
			}
		}
	}
}

func TestEveryWindowKeepsTheLimit(t *testing.T) {
	configs := []Config{Queue(), Mesh(), {Share: 1, Floor: 7, Window: time.Second}, {Share: 0.03, Floor: 0.07, Window: 3 * time.Minute}}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := generator(t, seed)
			l := newLedger(t, configs[seed%4])
			run(l, rng)
			l.checkWindows()
		})
	}
}

// run is a few minutes of deliveries and failures: bursts, lulls, short delays
// and long ones, refunds.
func run(l *ledger, rng *rand.Rand) {
	now := noon
	l.budget.Delivered(now, 0)
	l.budget.Snapshot(now) // fixes the origin
	step := l.config.Window / 50
	busy, far := rng.IntN(8), rng.IntN(3) == 0
	for range 1200 {
		switch rng.IntN(40) {
		case 0:
			now = now.Add(upTo(rng, l.config.Window*2))
		case 1:
			busy = rng.IntN(30)
		case 2:
			l.deliver(now, 300)
		}
		now = now.Add(upTo(rng, step))
		l.deliver(now, rng.IntN(busy+1))
		for range rng.IntN(3) {
			delay := upTo(rng, l.config.Window)
			switch rng.IntN(10) {
			case 0:
				delay = 0
			case 1:
				delay = upTo(rng, 100*l.config.Window)
			case 2:
				if far {
					delay = upTo(rng, length*l.budget.width*5/4)
				}
			}
			l.reserve(now, now.Add(delay))
		}
		if len(l.retries) > 0 && rng.IntN(10) == 0 {
			l.refund(now, rng.IntN(len(l.retries)))
		}
	}
}

// Reservations in groups of slots become reservations in slots as they come
// near, and later ones find exactly the room that is left.
func TestGroupsUnfold(t *testing.T) {
	rng := generator(t, 7)
	l := newLedger(t, Mesh())
	l.budget.Snapshot(noon)
	for round := range 20 {
		now := noon.Add(time.Duration(round) * 10 * time.Minute)
		for range 400 {
			l.reserve(now, now.Add(2*time.Hour+upTo(rng, 2*time.Minute)))
		}
		for range 800 {
			l.reserve(now, now.Add(time.Hour+upTo(rng, 2*time.Minute)))
		}
	}
	l.checkWindows()
}

func TestSevenSlotsHoldTheLimit(t *testing.T) {
	b := newBudget(t, Queue())
	for limit := int64(touched); limit < 100; limit++ {
		for slot := range int64(touched) {
			b.limit = limit
			room := b.room(slot)
			var sum int64
			for i := range int64(touched) {
				sum += int64(b.room(slot + i))
			}
			if sum != limit {
				t.Fatalf("seven slots from %d hold %d, want %d", slot, sum, limit)
			}
			b.limit++
			if b.room(slot) < room {
				t.Fatalf("slot %d holds %d at limit %d but %d at %d", slot, room, limit, b.room(slot), limit+1)
			}
		}
	}
}

func TestWheelFindsTheFirst(t *testing.T) {
	rng := generator(t, 3)
	for range 300 {
		var w wheel
		base := rng.Int64N(1 << 40)
		marked := map[int64]bool{}
		filled := rng.Float64() * 1.02
		for s := base; s < base+length; s++ {
			if rng.Float64() < filled {
				w.mark(s)
				marked[s] = true
			}
		}
		for range 20 {
			from := base + rng.Int64N(length)
			limit := base + rng.Int64N(length+1)
			want := from
			for want < limit && marked[want] {
				want++
			}
			if got := w.next(from, limit); got != max(want, min(from, limit)) && got != limit {
				t.Fatalf("next(%d, %d) = %d, want %d", from-base, limit-base, got-base, want-base)
			} else if from < limit && got != want {
				t.Fatalf("next(%d, %d) = %d, want %d", from-base, limit-base, got-base, want-base)
			}
			s := base + rng.Int64N(length)
			w.unmark(s)
			delete(marked, s)
		}
	}
}

// FuzzBudget takes a budget through arbitrary times and numbers. What it
// returns is never early, and its counts stay sound.
func FuzzBudget(f *testing.F) {
	f.Add(0.1, 1.0, int64(10*time.Second), []byte("reserve, refund, jump"))
	f.Add(1.0, 7.0, int64(time.Second), []byte{0, 255, 1, 255, 2, 255, 3, 255, 0, 0, 1, 0, 2, 0, 3, 128})
	f.Add(1e-300, math.MaxFloat64, int64(24*time.Hour), []byte{3, 3, 3, 62, 0, 62, 63, 62, 191, 62})
	f.Fuzz(func(t *testing.T, share, floor float64, window int64, script []byte) {
		b, err := New(Config{Share: share, Floor: floor, Window: time.Duration(window)})
		if err != nil {
			return
		}
		now, slot := noon, noon
		for len(script) >= 2 && len(script) < 4096 {
			op, size := script[0], script[1]
			script = script[2:]
			d := time.Duration(1) << (size % 64)
			if size >= 128 {
				d = -d
			}
			switch op % 4 {
			case 0:
				due := now.Add(d)
				slot = b.Reserve(now, due)
				if slot.Before(due) {
					t.Fatalf("Reserve(%v, %v) = %v, before it was due", now, due, slot)
				}
			case 1:
				b.Refund(now, slot.Add(d))
			case 2:
				b.Delivered(now, int(d))
			case 3:
				now = now.Add(d)
			}
			checkCounts(t, b, now)
		}
	})
}

func checkCounts(t *testing.T, b *Budget, now time.Time) {
	t.Helper()
	s := b.Snapshot(now)
	if s.Limit < touched || s.Used < 0 || s.Added < 0 || math.IsNaN(s.Added) || !s.Furthest.IsZero() && s.Furthest.Before(now) {
		t.Fatalf("snapshot %+v at %v", s, now)
	}
	var total int64
	for _, n := range b.recent {
		total += n
	}
	if total != b.total || total < 0 || b.current < 0 {
		t.Fatalf("total %d, want %d; slot %d", b.total, total, b.current)
	}
	for word, full := range b.near.full {
		if solid := b.near.solid>>word&1 == 1; solid != (full == math.MaxUint64) {
			t.Fatalf("word %d is %x, solid %v", word, full, solid)
		}
	}
}
