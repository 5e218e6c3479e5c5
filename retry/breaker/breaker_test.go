package breaker

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newBreaker(t testing.TB, c Config) *Breaker {
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

// inState returns a breaker that is in a state at noon.
func inState(t testing.TB, s State) *Breaker {
	t.Helper()
	b := newBreaker(t, Config{})
	switch s {
	case Open:
		b.Trip(noon, Permit{}, "test", 0.5)
	case HalfOpen:
		b.Trip(noon, Permit{}, "test", 0.5)
		b.Restore(noon)
	case Isolated:
		b.Isolate(noon, "test")
	}
	requireState(t, b, noon, s)
	return b
}

func requireState(t testing.TB, b *Breaker, now time.Time, want State) {
	t.Helper()
	if got := b.Snapshot(now).State; got != want {
		t.Fatalf("the breaker is %v, want %v", got, want)
	}
}

// start begins a run that must be allowed.
func start(t testing.TB, b *Breaker, now time.Time) Permit {
	t.Helper()
	p, ok := b.Start(now, Permit{})
	if !ok {
		t.Fatalf("Start was refused in %v", b.Snapshot(now).State)
	}
	return p
}

func refused(t testing.TB, b *Breaker, now time.Time, p Permit) {
	t.Helper()
	if got, ok := b.Start(now, p); ok || got != (Permit{}) {
		t.Fatalf("Start = %+v, %v in %v, want a refusal", got, ok, b.Snapshot(now).State)
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		want   []string // fields, in order
	}{
		{"zero", Config{}, nil},
		{"least", Config{MinRuns: 1, Ratio: 1e-300, Window: time.Millisecond, MinOpen: 1, MaxOpen: 2, Probes: 1, Successes: 1, FetchLease: 1, Lease: 1}, nil},
		{"most", Config{MinRuns: math.MaxInt, Ratio: 1, Window: math.MaxInt64, MinOpen: math.MaxInt64 / 2, MaxOpen: math.MaxInt64, Probes: 16, Successes: math.MaxInt, FetchLease: math.MaxInt64, Lease: math.MaxInt64}, nil},
		{"negative", Config{MinRuns: -1, Ratio: -1, Window: -1, MinOpen: -1, MaxOpen: -1, Probes: -1, Successes: -1, FetchLease: -1, Lease: -1},
			[]string{"MinRuns", "Ratio", "Window", "MinOpen", "MaxOpen", "Probes", "Successes", "FetchLease", "Lease"}},
		{"ratio not a number", Config{Ratio: math.NaN()}, []string{"Ratio"}},
		{"ratio in percent", Config{Ratio: 50}, []string{"Ratio"}},
		{"ratio just above 1", Config{Ratio: math.Nextafter(1, 2)}, []string{"Ratio"}},
		{"window too short", Config{Window: time.Microsecond}, []string{"Window"}},
		{"too many probes", Config{Probes: 17}, []string{"Probes"}},
		{"no room for jitter", Config{MinOpen: time.Minute, MaxOpen: 2*time.Minute - 1}, []string{"MaxOpen"}},
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

func TestStateNames(t *testing.T) {
	var got []string
	for s := Closed; s <= Isolated+1; s++ {
		got = append(got, s.String())
	}
	if want := []string{"closed", "open", "half-open", "isolated", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("states are %q, want %q", got, want)
	}
}

func TestTripsOnTheRatioOfTheWindow(t *testing.T) {
	const s, f, i = Success, Failure, Ignored
	tests := []struct {
		name  string
		every time.Duration // between runs
		runs  []Outcome     // repeated
		want  int           // runs until it trips; 0 for never
	}{
		{"all fail", time.Second, []Outcome{f}, 20},
		{"half fail", time.Second, []Outcome{s, f}, 20},
		{"a success is not what trips it", time.Second, []Outcome{f, s}, 21},
		{"a third fails", time.Second, []Outcome{f, s, s}, 0},
		{"too few runs in a window", 2 * time.Second, []Outcome{f}, 0},
		{"ignored runs do not count", time.Second, []Outcome{f, i}, 0},
		{"nor do they dilute", 500 * time.Millisecond, []Outcome{f, i}, 39},
		{"all succeed", time.Millisecond, []Outcome{s}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBreaker(t, Config{})
			now, got := noon, 0
			for n := range 500 {
				now = now.Add(tt.every)
				if b.Done(now, start(t, b, now), tt.runs[n%len(tt.runs)], 0.5) {
					got = n + 1
					break
				}
			}
			if got != tt.want {
				t.Fatalf("tripped after %d runs, want %d (0 is never)", got, tt.want)
			}
			if got > 0 {
				requireState(t, b, now, Open)
			}
		})
	}
}

func TestOldFailuresAreForgotten(t *testing.T) {
	b := newBreaker(t, Config{})
	for range 19 {
		b.Done(noon, start(t, b, noon), Failure, 0.5)
	}
	later := noon.Add(30 * time.Second)
	if b.Done(later, start(t, b, later), Failure, 0.5) {
		t.Error("tripped by failures of a window ago")
	}
	if s := b.Snapshot(later); s.Runs != 1 || s.Failures != 1 {
		t.Errorf("%d of %d runs failed, want 1 of 1", s.Failures, s.Runs)
	}
	if s := b.Snapshot(later.Add(time.Hour)); s.Runs != 0 || s.Failures != 0 {
		t.Errorf("an hour later %d of %d runs failed, want none", s.Failures, s.Runs)
	}
}

func TestReason(t *testing.T) {
	b := newBreaker(t, Config{MinRuns: 4})
	for _, o := range []Outcome{Success, Failure, Failure, Failure} {
		b.Done(noon, start(t, b, noon), o, 0.5)
	}
	const want = "3 of 4 runs failed within 30s"
	s := b.Snapshot(noon)
	if s.State != Open || s.Reason != want || !s.Since.Equal(noon) || s.Openings != 1 || s.Runs != 4 || s.Failures != 3 {
		t.Errorf("snapshot %+v, want it open for %q since noon", s, want)
	}
	// A failed probe is no news.
	b.Restore(noon)
	b.Done(noon, start(t, b, noon), Failure, 0.5)
	if s := b.Snapshot(noon); s.State != Open || s.Reason != want || s.Openings != 2 {
		t.Errorf("after a probe failed: %+v, want it open again for %q", s, want)
	}
}

func TestGrants(t *testing.T) {
	tests := []struct {
		state State
		n     int
		next  time.Duration // from noon; 0 for none
	}{
		{Closed, 10, 0},
		{Open, 0, 7500 * time.Millisecond},
		{HalfOpen, 1, 0},
		{Isolated, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.state.String(), func(t *testing.T) {
			b := inState(t, tt.state)
			p, n, next := b.Fetch(noon, 10)
			if n != tt.n || (p != Permit{}) != (n > 0) || p.Probe() != (tt.state == HalfOpen) {
				t.Errorf("Fetch = %+v, %d, want %d", p, n, tt.n)
			}
			if want := noon.Add(tt.next); !next.Equal(want) && !(tt.next == 0 && next.IsZero()) {
				t.Errorf("ask again at %v, want %v from noon", next, tt.next)
			}
			if _, ok := b.Start(noon, p); ok != (n > 0) {
				t.Errorf("Start = %v after %d were granted", ok, n)
			}
			for _, limit := range []int{0, -1} {
				if _, n, next := b.Fetch(noon, limit); n != 0 || !next.Equal(noon) {
					t.Errorf("Fetch(%d) = %d, %v, want none now", limit, n, next)
				}
			}
		})
	}
}

func TestOpenEndsInTime(t *testing.T) {
	b := inState(t, Open)
	end := b.Snapshot(noon).Next
	refused(t, b, end.Add(-1), Permit{})
	p := start(t, b, end)
	if !p.Probe() {
		t.Errorf("permit %+v at the end of the open time is no probe", p)
	}
	requireState(t, b, end, HalfOpen)
}

func TestProbesGrowWithSuccess(t *testing.T) {
	b := newBreaker(t, Config{Probes: 2, Successes: 4})
	b.Trip(noon, Permit{}, "test", 0)
	b.Restore(noon)
	var out []Permit
	fill := func() int {
		for {
			p, ok := b.Start(noon, Permit{})
			if !ok {
				return len(out)
			}
			out = append(out, p)
		}
	}
	for succeeded := range 4 {
		if got, want := fill(), 2+succeeded; got != want {
			t.Fatalf("%d probes at once after %d successes, want %d", got, succeeded, want)
		}
		if s := b.Snapshot(noon); s.Probes != len(out) || s.Next.IsZero() {
			t.Fatalf("snapshot %+v, want %d probes and a time to ask again", s, len(out))
		}
		if !b.Done(noon, out[0], Success, 0) {
			t.Fatal("a success made room, but nothing changed")
		}
		out = out[1:]
	}
	requireState(t, b, noon, Closed)
	if s := b.Snapshot(noon); s.Reason != "" || s.Runs != 0 {
		t.Errorf("closed breaker %+v, want it as new", s)
	}
	for _, p := range out {
		if b.Done(noon, p, Failure, 0) {
			t.Fatal("a probe from before it closed opened it again")
		}
	}
}

func TestProbesAreBounded(t *testing.T) {
	b := newBreaker(t, Config{Probes: 16, Successes: 1000})
	b.Trip(noon, Permit{}, "test", 0)
	b.Restore(noon)
	for range 500 {
		b.Done(noon, start(t, b, noon), Success, 0)
	}
	for range 16 {
		start(t, b, noon)
	}
	refused(t, b, noon, Permit{})
}

func TestIgnoredProbeIsGivenBack(t *testing.T) {
	b := inState(t, HalfOpen)
	for range 100 {
		p, n, _ := b.Fetch(noon, 10)
		if n != 1 {
			t.Fatalf("%d granted, want the one probe", n)
		}
		refused(t, b, noon, Permit{})
		if !b.Done(noon, p, Ignored, 0) {
			t.Fatal("a probe was given back, but nothing changed")
		}
	}
	requireState(t, b, noon, HalfOpen)
}

// A probe that nobody reports is replaced when its lease is over.
func TestLostProbeDoesNotJam(t *testing.T) {
	b := inState(t, HalfOpen)
	fetched, _, _ := b.Fetch(noon, 10)
	_, n, next := b.Fetch(noon, 10)
	if want := noon.Add(5 * time.Second); n != 0 || !next.Equal(want) {
		t.Fatalf("second Fetch = %d, ask again at %v, want %v", n, next, want)
	}
	// The run begins in time, and gets the longer lease.
	run, ok := b.Start(next.Add(-1), fetched)
	if !ok || run != fetched {
		t.Fatalf("Start = %+v, %v, want the fetched probe", run, ok)
	}
	refused(t, b, next, Permit{})
	next = b.Snapshot(next).Next
	if want := noon.Add(65*time.Second - 1); !next.Equal(want) {
		t.Fatalf("lease of the run ends at %v, want %v", next, want)
	}
	second := start(t, b, next)
	if b.Done(next, run, Failure, 0) {
		t.Error("a probe was reported after another took its place, and counted")
	}
	refused(t, b, next, run)
	if !b.Done(next, second, Success, 0) || b.Done(next, second, Success, 0) {
		t.Error("the second probe must count, and once")
	}
}

// A late probe whose place nobody has taken still counts.
func TestLateProbeCounts(t *testing.T) {
	b := inState(t, HalfOpen)
	p := start(t, b, noon)
	later := noon.Add(time.Hour)
	if !b.Done(later, p, Failure, 0) {
		t.Error("a late failure did not open the breaker")
	}
	requireState(t, b, later, Open)
}

func TestStaleReportsChangeNothing(t *testing.T) {
	b := newBreaker(t, Config{})
	old := start(t, b, noon)
	b.Trip(noon, start(t, b, noon), "test", 0)
	check := func(now time.Time, want State) {
		t.Helper()
		before := b.Snapshot(now)
		for _, p := range []Permit{old, {}} {
			for _, o := range []Outcome{Ignored, Success, Failure} {
				if b.Done(now, p, o, 0.5) {
					t.Errorf("%v: Done(%+v, %d) changed something", want, p, o)
				}
			}
			if p != (Permit{}) && b.Trip(now, p, "stale", 0.5) {
				t.Errorf("%v: Trip(%+v) changed something", want, p)
			}
		}
		if after := b.Snapshot(now); after != before || after.State != want {
			t.Errorf("stale reports changed\n%+v to\n%+v, want %v", before, after, want)
		}
	}
	check(noon, Open)
	now := b.Snapshot(noon).Next
	check(now, HalfOpen)
	var probe Permit
	for range 5 {
		probe = start(t, b, now)
		b.Done(now, probe, Success, 0)
	}
	check(now, Closed)
	old = probe
	check(now, Closed)
	b.Isolate(now, "test")
	check(now, Isolated)
}

// A breaker that closes again has forgotten what it opened for.
func TestClosingForgetsTheFailures(t *testing.T) {
	b := newBreaker(t, Config{MinRuns: 10, Successes: 1})
	for range 10 {
		b.Done(noon, start(t, b, noon), Failure, 0)
	}
	b.Restore(noon)
	b.Done(noon, start(t, b, noon), Success, 0)
	requireState(t, b, noon, Closed)
	if b.Done(noon, start(t, b, noon), Failure, 0) {
		t.Error("one failure after closing opened the breaker again")
	}
}

func TestTrip(t *testing.T) {
	for _, tt := range []struct {
		state State
		want  bool
	}{{Closed, true}, {Open, false}, {HalfOpen, true}, {Isolated, false}} {
		b := inState(t, tt.state)
		if got := b.Trip(noon, Permit{}, "401", 0.5); got != tt.want {
			t.Errorf("Trip of a breaker that is %v: changed %v, want %v", tt.state, got, tt.want)
		}
		if s := b.Snapshot(noon); tt.want && (s.State != Open || s.Reason != "401") {
			t.Errorf("tripped from %v: %+v", tt.state, s)
		}
	}
	b := inState(t, HalfOpen)
	if !b.Trip(noon, start(t, b, noon), "401", 0.5) {
		t.Error("a probe met an environment fault, and nothing changed")
	}
}

func TestIsolate(t *testing.T) {
	for _, s := range []State{Closed, Open, HalfOpen, Isolated} {
		b := inState(t, s)
		if changed := b.Isolate(noon, "migration"); changed != (s != Isolated) {
			t.Errorf("Isolate of a breaker that is %v: changed %v", s, changed)
		}
		later := noon.AddDate(1, 0, 0)
		refused(t, b, later, Permit{})
		if got := b.Snapshot(later); got.State != Isolated || got.Reason != "migration" || !got.Next.IsZero() {
			t.Errorf("a year later: %+v, want it isolated for migration", got)
		}
		if !b.Restore(later) {
			t.Error("Restore changed nothing")
		}
		requireState(t, b, later, HalfOpen)
		if b.Restore(later) {
			t.Error("second Restore changed something")
		}
	}
	if newBreaker(t, Config{}).Restore(noon) {
		t.Error("Restore of a closed breaker changed something")
	}
}

func TestNothingAllocates(t *testing.T) {
	b := newBreaker(t, Config{})
	now := noon
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Second)
		fetched, _, _ := b.Fetch(now, 10)
		run, _ := b.Start(now, fetched)
		b.Done(now, run, Success, 0.5)
		b.Snapshot(now)
		b.Trip(now, Permit{}, "test", 0)
		b.Restore(now)
		for range 5 {
			run, _ := b.Start(now, Permit{})
			b.Done(now, run, Success, 0.5)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
