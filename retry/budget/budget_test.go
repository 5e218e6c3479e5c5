package budget

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newBudget(t testing.TB, c Config) *Budget {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func generator(t testing.TB, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func TestNewReportsAllFaults(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		name   string
		config Config
		want   []string // fields, in order
	}{
		{"queue", Queue(), nil},
		{"mesh", Mesh(), nil},
		{"default window", Config{Share: 0.1, Floor: 1}, nil},
		{"limits", Config{Share: 1, Floor: 7, Window: time.Second}, nil},
		{"slow", Config{Share: 1e-9, Floor: 7.0 / (24 * 3600), Window: 24 * time.Hour}, nil},
		{"huge floor", Config{Share: 1, Floor: math.MaxFloat64, Window: 24 * time.Hour}, nil},
		{"zero", Config{}, []string{"Share", "Floor"}},
		{"negative", Config{Share: -0.1, Floor: -1, Window: -1}, []string{"Share", "Floor", "Window"}},
		{"not numbers", Config{Share: nan, Floor: nan}, []string{"Share", "Floor"}},
		{"infinite", Config{Share: inf, Floor: inf}, []string{"Share", "Floor"}},
		{"negatively infinite", Config{Share: -inf, Floor: -inf}, []string{"Share", "Floor"}},
		{"share in percent", Config{Share: 10, Floor: 1}, []string{"Share"}},
		{"share just above 1", Config{Share: math.Nextafter(1, 2), Floor: 1}, []string{"Share"}},
		{"window too short", Config{Share: 0.1, Floor: 100, Window: time.Second - 1}, []string{"Window"}},
		{"window too long", Config{Share: 0.1, Floor: 100, Window: 24*time.Hour + 1}, []string{"Window"}},
		{"window too short for the floor", Config{Share: 0.1, Floor: 0.05}, []string{"Window"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := New(tt.config)
			if (err != nil) != (tt.want != nil) || (b == nil) != (err != nil) {
				t.Fatalf("New(%+v) = %v, %v, want faults in %q", tt.config, b != nil, err, tt.want)
			}
			if err == nil {
				return
			}
			var got []string
			for _, fault := range err.(interface{ Unwrap() []error }).Unwrap() {
				e, ok := errors.AsType[*ConfigError](fault)
				if !ok {
					t.Fatalf("fault %v is a %T, want *ConfigError", fault, fault)
				}
				got = append(got, e.Field)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("faults in %q, want %q: %v", got, tt.want, err)
			}
		})
	}
}

func TestConfigErrorSaysWhatToDo(t *testing.T) {
	_, err := New(Config{Share: 0.1, Floor: 0.05})
	const want = "budget: Config.Window is 10s: too short for a Floor of 0.05 per second: use a Window of at least 7s/Floor, or a Floor of at least 0.7"
	if err == nil || err.Error() != want {
		t.Errorf("error\n%v, want\n%s", err, want)
	}
	if _, err := New(Config{}); !strings.Contains(err.Error(), "once traffic stops") {
		t.Errorf("error %q does not say why a floor is needed", err)
	}
}

func TestRoomKeepsItsTime(t *testing.T) {
	b := newBudget(t, Queue())
	for _, delay := range []time.Duration{0, 1, 2 * time.Second, 17 * time.Second, time.Minute + 1, 15 * time.Minute, time.Hour} {
		due := noon.Add(delay)
		if got := b.Reserve(noon, due); !got.Equal(due) {
			t.Errorf("a retry due in %v on an idle budget was moved by %v", delay, got.Sub(due))
		}
	}
	past := noon.Add(-time.Hour)
	if got := b.Reserve(noon.Add(20*time.Second), past); !got.Equal(past) {
		t.Errorf("a retry that is overdue got %v, want its own time %v", got, past)
	}
	if s := b.Snapshot(noon); s.Moved != 0 || s.Added != 0 {
		t.Errorf("snapshot %+v, want nothing moved", s)
	}
}

func TestLimitFollowsDeliveries(t *testing.T) {
	b := newBudget(t, Queue())
	at := func(after time.Duration, want int) {
		t.Helper()
		if got := b.Snapshot(noon.Add(after)).Limit; got != want {
			t.Errorf("limit after %v = %d, want %d", after, got, want)
		}
	}
	at(0, 10)
	b.Delivered(noon, 0)
	b.Delivered(noon, -5)
	b.Delivered(noon, 20)
	at(0, 12)
	b.Delivered(noon, 10) // less than a quarter: waits for the next slot
	at(0, 12)
	b.Delivered(noon, 70)
	at(0, 20)
	at(5*time.Second, 20)
	b.Delivered(noon.Add(9*time.Second), 1000)
	at(9*time.Second, 120)
	at(10*time.Second+1, 120)
	at(11700*time.Millisecond, 110)
	at(19900*time.Millisecond, 110)
	at(20*time.Second, 10)
	at(5*time.Hour, 10)
	b.Delivered(noon.Add(5*time.Hour), math.MaxInt)
	b.Delivered(noon.Add(5*time.Hour), math.MaxInt)
	at(5*time.Hour, maxLimit)
}

// A window of steady traffic allows its full share, whatever the slot boundary.
func TestLimitIsSteady(t *testing.T) {
	b := newBudget(t, Queue())
	for i := range 60_000 {
		now := noon.Add(time.Duration(i) * time.Millisecond)
		b.Delivered(now, 1)
		if limit := b.Snapshot(now).Limit; i > 12_000 && (limit < 1009 || limit > 1010) {
			t.Fatalf("limit %d after %d ms of 1000 deliveries a second, want 1010", limit, i)
		}
	}
}

// A retry due soon gets its time, however many wait for times far ahead; and
// those ahead lose nothing to the many that are due soon.
func TestFarReservationsDoNotHoldUpNearOnes(t *testing.T) {
	for _, ahead := range []time.Duration{time.Minute, time.Hour, 3 * time.Hour, 24 * time.Hour, 10 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			b := newBudget(t, Queue())
			for range 50_000 {
				b.Reserve(noon, noon.Add(ahead))
			}
			for i := range 30 {
				due := noon.Add(time.Duration(i+1) * 1700 * time.Millisecond)
				if got := b.Reserve(noon, due); !got.Equal(due) {
					t.Fatalf("behind 50,000 reservations %v ahead, a retry due in %v was moved by %v", ahead, due.Sub(noon), got.Sub(due))
				}
			}
		})
	}
	b := newBudget(t, Queue())
	for range 1000 {
		b.Reserve(noon, noon)
	}
	due := noon.Add(time.Hour)
	if got := b.Reserve(noon, due); !got.Equal(due) {
		t.Errorf("behind 1000 retries due now, a retry due in an hour was moved by %v", got.Sub(due))
	}
}

// While demand exceeds the budget, all of the rate that the promise leaves is
// used: six sevenths of the limit.
func TestFloodUsesTheWholeRate(t *testing.T) {
	for _, tt := range []struct {
		config  Config
		retries int
		rate    float64 // retries per second
	}{
		{Queue(), 5_000, 6. / 7},
		{Mesh(), 50_000, 60. / 7},
		{Config{Share: 0.5, Floor: 0.07, Window: 100 * time.Second}, 2_000, 0.06},
	} {
		b := newBudget(t, tt.config)
		var last time.Time
		for range tt.retries {
			last = b.Reserve(noon, noon)
		}
		want := time.Duration(float64(tt.retries) / tt.rate * float64(time.Second))
		if got := last.Sub(noon); got < want*99/100 || got > want*101/100+tt.config.Window {
			t.Errorf("%+v: %d retries at once end after %v, want about %v", tt.config, tt.retries, got, want)
		}
	}
}

func TestFloodBeyondTheHorizon(t *testing.T) {
	b := newBudget(t, Queue())
	end := noon.Add(horizon * b.width)
	last := noon
	var unpaced int
	for i := range 350_000 {
		got := b.Reserve(noon, noon)
		if got.After(end.Add(b.width)) {
			t.Fatalf("reservation %d lies %v ahead, beyond the horizon of %v", i, got.Sub(noon), end.Sub(noon))
		}
		if got.Sub(last) > 3*group*b.width {
			t.Fatalf("reservation %d leaves a gap of %v", i, got.Sub(last))
		}
		last = got
	}
	s := b.Snapshot(noon)
	unpaced = int(s.Unpaced)
	if paced := 350_000 - unpaced; paced < 250_000 || paced > 300_000 {
		t.Errorf("%d reservations were paced, want 4096 × 65 slots of 1", paced)
	}
	if s.Furthest.Before(noon.Add(120 * time.Hour)) {
		t.Errorf("furthest %v, want 5 days ahead", s.Furthest)
	}
	// All of it is over one day, and the budget as new.
	later := noon.Add(7 * 24 * time.Hour)
	if got := b.Reserve(later, later); !got.Equal(later) {
		t.Errorf("a week later a retry was moved by %v", got.Sub(later))
	}
}

func TestDueBeyondTheHorizonIsUnpaced(t *testing.T) {
	b := newBudget(t, Queue())
	for _, due := range []time.Time{noon.AddDate(0, 1, 0), noon.AddDate(9000, 0, 0)} {
		if got := b.Reserve(noon, due); !got.Equal(due) {
			t.Errorf("Reserve(%v) = %v, want it unchanged", due, got)
		}
	}
	if got := b.Snapshot(noon).Unpaced; got != 2 {
		t.Errorf("unpaced = %d, want 2", got)
	}
}

func TestRefund(t *testing.T) {
	b := newBudget(t, Queue())
	var slots []time.Time
	for range 30 {
		slots = append(slots, b.Reserve(noon, noon))
	}
	for i, slot := range slots {
		b.Refund(noon, slot)
		again := b.Reserve(noon, noon)
		if same := again.Sub(slot).Abs() < b.width; !same {
			t.Fatalf("the room of reservation %d, %v ahead, was refunded, but the next retry got %v", i, slot.Sub(noon), again.Sub(noon))
		}
	}
}

func TestRefundOfWhatIsNotReserved(t *testing.T) {
	b := newBudget(t, Queue())
	b.Refund(noon, noon.Add(time.Minute))
	b.Refund(noon, noon.Add(-time.Minute))
	b.Refund(noon, noon.AddDate(0, 0, 2))
	b.Refund(noon, noon.AddDate(9000, 0, 0))
	b.Refund(noon.Add(time.Hour), noon)
	for range 100 {
		b.Reserve(noon.Add(time.Hour), noon)
	}
	if s := b.Snapshot(noon.Add(time.Hour)); s.Used > s.Limit {
		t.Errorf("used %d of %d: a refund made room that was not there", s.Used, s.Limit)
	}
}

// When traffic grows, slots that were full take more, near and far.
func TestGrowthMakesRoom(t *testing.T) {
	for _, ahead := range []time.Duration{time.Minute, 12 * time.Hour} {
		b := newBudget(t, Queue())
		for range 5000 {
			b.Reserve(noon, noon.Add(ahead))
		}
		b.Delivered(noon, 1000)
		if moved := b.Reserve(noon, noon.Add(ahead)).Sub(noon.Add(ahead)); moved > 2*group*b.width {
			t.Errorf("with 11 times the limit, a retry due in %v was still moved by %v", ahead, moved)
		}
	}
}

// Retries due at one instant are placed apart, as far as there is room for, and
// not on the borders of slots.
func TestMovedRetriesAreSpread(t *testing.T) {
	b := newBudget(t, Mesh())
	due := noon.Add(b.width / 2)
	var starts []time.Time
	for range 20_000 {
		starts = append(starts, b.Reserve(noon, due))
	}
	slices.SortFunc(starts, time.Time.Compare)
	starts = starts[15:] // those of the first slot keep their time
	even := b.width * touched / 100
	onBorder := 0
	for i := 1; i < len(starts); i++ {
		if gap := starts[i].Sub(starts[i-1]); gap < even/3 || gap > even*2 {
			t.Fatalf("%v between retries %d and %d, want about %v", gap, i-1, i, even)
		}
		if starts[i].Sub(noon)%b.width < time.Millisecond {
			onBorder++
		}
	}
	if onBorder > 0 {
		t.Errorf("%d of %d retries start on the border of a slot", onBorder, len(starts))
	}
}

// Where each slot has room for one retry only, the jitter of the retry is all
// there is to spread it within the slot. It is kept.
func TestJitterIsKept(t *testing.T) {
	rng := generator(t, 1)
	b := newBudget(t, Config{Share: 0.1, Floor: 0.7})
	for range 2000 {
		due := noon.Add(upTo(rng, time.Second))
		got := b.Reserve(noon, due)
		if lost := (got.Sub(due) % b.width); lost > 1 && lost < b.width-1 {
			t.Fatalf("a retry due at %v was moved by %v, which is not a number of slots", due, got.Sub(due))
		}
	}
}

func TestClockStepsBack(t *testing.T) {
	b := newBudget(t, Queue())
	start := noon.Add(time.Hour)
	b.Delivered(start, 100)
	for range 200 {
		b.Reserve(start, start)
	}
	before := b.Snapshot(start)
	for _, back := range []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * 365 * time.Hour} {
		now := start.Add(-back)
		after := b.Snapshot(now)
		if after.Limit != before.Limit || after.Used != before.Used {
			t.Errorf("a clock set back by %v changed %+v to %+v", back, before, after)
		}
		ahead := b.Reserve(now, now).Sub(now)
		if ahead < 100*time.Second || ahead > 130*time.Second {
			t.Errorf("after a clock was set back by %v, the next retry of a flood of 200 waits %v, want about 2 min", back, ahead)
		}
		before = b.Snapshot(now)
	}
}

func TestSilence(t *testing.T) {
	for _, silence := range []time.Duration{time.Minute, 100 * time.Minute, 10 * time.Hour, 30 * 24 * time.Hour, 250 * 365 * 24 * time.Hour} {
		b := newBudget(t, Queue())
		b.Delivered(noon, 10_000)
		for range 100_000 {
			b.Reserve(noon, noon)
		}
		now := noon.Add(silence)
		s := b.Snapshot(now)
		if s.Limit != 10 {
			t.Errorf("limit %d after %v of silence, want the floor of 10", s.Limit, silence)
		}
		furthest := noon.Add(100_000 * 7 * b.width / 1010)
		switch got := b.Reserve(now, now); {
		case now.After(furthest) && !got.Equal(now):
			t.Errorf("after %v of silence a retry was moved by %v, want none", silence, got.Sub(now))
		case now.Before(furthest) && got.Before(furthest.Add(-group*b.width)):
			t.Errorf("after %v of silence a retry got %v, within the reservations up to %v", silence, got, furthest)
		}
	}
}

func TestSnapshot(t *testing.T) {
	b := newBudget(t, Queue())
	if got, want := b.Snapshot(noon), (Snapshot{Limit: 10}); got != want {
		t.Errorf("new budget: %+v, want %+v", got, want)
	}
	var added time.Duration
	var furthest time.Time
	for range 20 {
		furthest = b.Reserve(noon, noon)
		added += furthest.Sub(noon)
	}
	got := b.Snapshot(noon)
	if got.Used < 8 || got.Used > 10 || got.Moved != 18 || math.Abs(got.Added-added.Seconds()) > 1e-6 || !got.Furthest.Equal(furthest) {
		t.Errorf("after 20 retries at once: %+v, want 8 to 10 used, 18 moved by %v in all, up to %v", got, added, furthest)
	}
	if got := b.Snapshot(furthest.Add(b.width)); got.Used != 0 || !got.Furthest.IsZero() {
		t.Errorf("after the last retry: %+v, want nothing ahead", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	b := newBudget(t, Mesh())
	var wg sync.WaitGroup
	starts := make([][]time.Time, 8)
	for g := range starts {
		rng := generator(t, uint64(g))
		wg.Go(func() {
			for i := range 500 {
				now := noon.Add(time.Duration(i) * 10 * time.Millisecond)
				slot := b.Reserve(now, now.Add(upTo(rng, time.Second)))
				if i%10 == 0 {
					b.Refund(now, slot)
				} else {
					starts[g] = append(starts[g], slot)
				}
				if b.Snapshot(now).Limit < 100 {
					t.Error("limit below the floor")
				}
			}
		})
	}
	wg.Wait()
	all := slices.SortedFunc(slices.Values(slices.Concat(starts...)), time.Time.Compare)
	for i := 100; i < len(all); i++ {
		if span := all[i].Sub(all[i-100]); span < 10*time.Second {
			t.Fatalf("101 retries within %v, want 100 in 10 s", span)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	b := newBudget(t, Queue())
	now := noon
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(100 * time.Millisecond)
		b.Delivered(now, 3)
		slot := b.Reserve(now, now.Add(time.Second))
		b.Reserve(now, now.Add(6*time.Hour))
		b.Refund(now, slot)
		b.Snapshot(now)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// upTo returns a duration of at least 0 and less than limit.
func upTo(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit)))
}
