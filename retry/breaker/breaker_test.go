package breaker

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/internal/fault"
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
		b.Trip(noon, "test", 0.5)
	case HalfOpen:
		b.Trip(noon, "test", 0.5)
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
	p, ok := b.Start(now)
	if !ok {
		t.Fatalf("Start was refused in %v", b.Snapshot(now).State)
	}
	return p
}

func refused(t testing.TB, b *Breaker, now time.Time) {
	t.Helper()
	if got, ok := b.Start(now); ok || got != (Permit{}) {
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
		{"least", Config{Window: 1, MinRuns: 1, Ratio: 1e-300, Streak: 1, MinOpen: 1, MaxOpen: 2, Probes: 1, Successes: 1, Lease: 1}, nil},
		{"most", Config{Window: 1000, MinRuns: 1000, Ratio: 1, Streak: math.MaxInt, MinOpen: math.MaxInt64 / 2, MaxOpen: math.MaxInt64, Probes: 16, Successes: math.MaxInt, Lease: math.MaxInt64}, nil},
		{"negative", Config{Window: -1, MinRuns: -1, Ratio: -1, Streak: -2, MinOpen: -1, MaxOpen: -1, Probes: -1, Successes: -1, Lease: -1},
			[]string{"Window", "MinRuns", "Ratio", "Streak", "MinOpen", "MaxOpen", "Probes", "Successes", "Lease"}},
		{"negative, the rest by default", Config{Window: -1, MinOpen: -1}, []string{"Window", "MinOpen"}},
		{"no streak", Config{Streak: -1}, nil},
		{"a window below the default of MinRuns", Config{Window: 10}, nil},
		{"MinRuns above the window", Config{Window: 10, MinRuns: 11}, []string{"MinRuns"}},
		{"MinOpen above half the default of MaxOpen", Config{MinOpen: time.Hour}, nil},
		{"MinOpen above half of any time", Config{MinOpen: math.MaxInt64/2 + 1}, []string{"MaxOpen"}},
		{"ratio not a number", Config{Ratio: math.NaN()}, []string{"Ratio"}},
		{"ratio in percent", Config{Ratio: 50}, []string{"Ratio"}},
		{"ratio just above 1", Config{Ratio: math.Nextafter(1, 2)}, []string{"Ratio"}},
		{"window too long", Config{Window: 1001}, []string{"Window"}},
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
			for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
				e, ok := errors.AsType[*fault.Error](err)
				if !ok {
					t.Fatalf("fault %v is a %T, want *fault.Error", err, err)
				}
				got = append(got, strings.TrimPrefix(e.Field, "Config."))
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

// reports lets runs end in a row. Each is a letter: s for a success, f for a
// failure, T for a severe one (a timeout), i for an ignored one; a digit after
// it is the message, and without one it is another each time.
func reports(t testing.TB, b *Breaker, script string) (changed int) {
	t.Helper()
	outcomes := map[rune]Outcome{'s': Success, 'f': Failure, 'T': Severe, 'i': Ignored}
	n := 0
	for i, r := range script {
		o, ok := outcomes[r]
		if !ok {
			continue
		}
		n++
		var of uint64
		if rest := script[i+1:]; rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			of = uint64(rest[0]-'0') + 1
		}
		if b.Done(noon, start(t, b, noon), of, o, 0.5) {
			return n
		}
	}
	return 0
}

func TestOpensByContrast(t *testing.T) {
	r := strings.Repeat
	full := r("s", 50)
	tests := []struct {
		name   string
		config Config
		runs   string
		want   int // run that opens it; 0 for none
		reason string
	}{
		{"the first 20 messages fail", Config{}, r("f", 30), 20, "20 of the last 20 messages failed"},
		{"19 are too few", Config{}, r("f", 19), 0, ""},
		{"one of the first 20 succeeds", Config{}, "s" + r("f", 19), 0, ""},
		{"90 % of the last 50", Config{Streak: -1}, full + r("f", 60), 95, "45 of the last 50 messages failed"},
		{"every tenth succeeds, just enough to open", Config{Streak: -1}, full + r("fffffffffs", 10), 99, "45 of the last 50 messages failed"},
		{"every sixth succeeds", Config{}, r("fffffs", 100), 0, ""},
		{"half fail", Config{}, r("fs", 500), 0, ""},
		{"a success never opens it", Config{Window: 4, Ratio: 0.5}, "ffss", 0, ""},
		{"but the failure after it does", Config{Window: 4, Ratio: 0.5}, "ffssf", 5, "2 of the last 4 messages failed"},
		{"ignored runs say nothing", Config{}, r("fi", 19) + "if", 40, "20 of the last 20 messages failed"},

		{"a streak of 20 messages", Config{}, full + r("f", 30), 70, "20 runs in a row failed"},
		{"a success ends the streak", Config{}, full + r("f", 19) + "s" + r("f", 19), 0, ""},
		{"a streak of 10 messages, each twice", Config{}, full + r("f0f1f2f3f4f5f6f7f8f9", 3), 70, "20 runs in a row failed"},
		{"a streak of 9 messages", Config{}, full + r("f0f1f2f3f4f5f6f7f8", 10), 0, ""},
		{"the tenth message opens it", Config{}, full + r("f0f1f2f3f4f5f6f7f8", 10) + "f9", 141, "91 runs in a row failed"},
		{"one round of timeouts in ten slots", Config{}, full + r("T", 10), 60, "10 runs in a row failed (10 severe)"},
		{"timeouts and other failures", Config{}, full + r("Tf", 10), 63, "13 runs in a row failed (7 severe)"},
		{"four slots that hang", Config{}, full + r("T", 9), 0, ""},
		{"no streak", Config{Streak: -1}, full + r("T", 44), 0, ""},
		{"a long streak", Config{Streak: 40}, full + r("f", 60), 90, "40 runs in a row failed"},

		{"one message that always fails, on a topic of its own", Config{}, r("f0", 30), 20, "20 runs in a row failed"},
		{"the same, hanging", Config{}, r("T0", 30), 10, "10 runs in a row failed (10 severe)"},
		{"one message that always fails, after a success", Config{}, "s" + r("f0", 100), 0, ""},
		{"five of them, one success between rounds", Config{}, r("f0f1f2f3f4s", 300), 0, ""},
		{"five of them, one success ever", Config{}, "s" + r("f0f1f2f3f4", 300), 0, ""},
		{"no streak, one message", Config{Streak: -1}, r("T0", 100), 0, ""},
		{"a message that failed and succeeded is a success", Config{}, r("f0", 19) + "s0" + r("f1f2f3", 50), 0, ""},
		{"a message that succeeded and failed is a failure", Config{}, "s0" + r("f0", 20), 21, "20 runs in a row failed"},

		{"a small window", Config{Window: 4}, "sf" + r("f", 3), 5, "4 of the last 4 messages failed"},
		{"a window of one", Config{Window: 1}, "sf", 2, "1 of the last 1 messages failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBreaker(t, tt.config)
			if got := reports(t, b, tt.runs); got != tt.want {
				t.Fatalf("opened at run %d, want %d (0 is never)", got, tt.want)
			}
			if s := b.Snapshot(noon); s.Reason != tt.reason || (s.State == Open) != (tt.want > 0) {
				t.Errorf("%v because %q, want %q", s.State, s.Reason, tt.reason)
			}
		})
	}
}

func TestSnapshotCounts(t *testing.T) {
	for _, tt := range []struct {
		runs                       string
		messages, failures, streak int
	}{
		{"", 0, 0, 0},
		{"i", 0, 0, 0},
		{"ssf", 3, 1, 1},
		{"sf0f0T0", 2, 1, 4},
		{"f0f1s1", 2, 1, 0},
		{"f0f1s1f", 3, 2, 1},
		{strings.Repeat("s", 60) + "ff", 50, 2, 2},
		{strings.Repeat("f", 20), 20, 20, 20}, // open: those of when it opened
	} {
		b := newBreaker(t, Config{})
		reports(t, b, tt.runs)
		if s := b.Snapshot(noon.Add(time.Hour)); s.Messages != tt.messages || s.Failures != tt.failures || s.Streak != tt.streak {
			t.Errorf("after %q: %d of %d messages failed, streak %d, want %d of %d and %d", tt.runs,
				s.Failures, s.Messages, s.Streak, tt.failures, tt.messages, tt.streak)
		}
	}
}

// A failed probe is no news: the reason stays.
func TestReasonStays(t *testing.T) {
	b := newBreaker(t, Config{})
	reports(t, b, strings.Repeat("f", 20))
	for _, o := range []Outcome{Failure, Severe} {
		b.Restore(noon)
		b.Done(noon, start(t, b, noon), 0, o, 0.5)
	}
	const want = "20 of the last 20 messages failed"
	if s := b.Snapshot(noon); s.State != Open || s.Reason != want || !s.Since.Equal(noon) || s.Openings != 3 {
		t.Errorf("after probes failed: %+v, want it open again for %q", s, want)
	}
}

// A breaker that closes knows the success that closed it and nothing else.
func TestClosingForgetsTheFailures(t *testing.T) {
	b := newBreaker(t, Config{})
	reports(t, b, strings.Repeat("f", 20))
	b.Restore(noon)
	b.Done(noon, start(t, b, noon), 1, Success, 0)
	requireState(t, b, noon, Closed)
	if s := b.Snapshot(noon); s.Messages != 1 || s.Failures != 0 || s.Streak != 0 {
		t.Errorf("closed breaker %+v, want one success", s)
	}
	if n := reports(t, b, strings.Repeat("f", 17)); n != 0 {
		t.Errorf("failure %d after closing opened it again", n)
	}
}

// Once all is well a success takes another way through Done, to the same end.
func TestHealthyShortCut(t *testing.T) {
	b := newBreaker(t, Config{})
	reports(t, b, strings.Repeat("s", 49))
	if b.healthy.Load() != 0 {
		t.Error("healthy before the window is full")
	}
	reports(t, b, "s")
	if b.healthy.Load() != b.era {
		t.Error("not healthy though the window is full of successes")
	}
	reports(t, b, "f")
	if b.healthy.Load() != 0 {
		t.Error("healthy after a failure")
	}
	if reports(t, b, strings.Repeat("s", 50)); b.healthy.Load() != b.era {
		t.Error("not healthy though the failure is forgotten")
	}
	b.Trip(noon, "test", 0)
	if b.healthy.Load() != 0 {
		t.Error("healthy though it is open")
	}
}

func TestGrants(t *testing.T) {
	tests := []struct {
		state State
		ok    bool
		next  time.Duration // from noon; 0 for none
	}{
		{Closed, true, 0},
		{Open, false, 7500 * time.Millisecond},
		{HalfOpen, true, 0},
		{Isolated, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.state.String(), func(t *testing.T) {
			b := inState(t, tt.state)
			for range 3 { // asking takes nothing
				ok, next := b.Allows(noon)
				if want := noon.Add(tt.next); ok != tt.ok || !next.Equal(want) && !(tt.next == 0 && next.IsZero()) {
					t.Errorf("Allows = %v, ask again at %v, want %v and %v from noon", ok, next, tt.ok, tt.next)
				}
			}
			p, ok := b.Start(noon)
			if ok != tt.ok || (p != Permit{}) != ok || p.Probe() != (tt.state == HalfOpen) {
				t.Errorf("Start = %+v, %v, want %v", p, ok, tt.ok)
			}
		})
	}
}

func TestNotBefore(t *testing.T) {
	until := noon.Add(time.Minute)
	for _, s := range []State{Closed, HalfOpen, Isolated} {
		b := inState(t, s)
		before := b.Snapshot(noon)
		if b.NotBefore(noon, until) || b.Snapshot(noon) != before {
			t.Errorf("NotBefore of a breaker that is %v changed it", s)
		}
	}
	b := inState(t, Open)
	if b.NotBefore(noon, noon.Add(time.Second)) || b.NotBefore(noon, b.Snapshot(noon).Next) {
		t.Error("NotBefore made the open time shorter, or says so")
	}
	if !b.NotBefore(noon, until) || !b.Snapshot(noon).Next.Equal(until) {
		t.Errorf("open until %v, want %v", b.Snapshot(noon).Next, until)
	}
	refused(t, b, until.Add(-1))
	if !start(t, b, until).Probe() || b.NotBefore(until, until.Add(time.Hour)) {
		t.Error("want it half-open at the end")
	}
	b = inState(t, Open)
	b.NotBefore(noon, until)
	if b.Restore(noon); !start(t, b, noon).Probe() {
		t.Error("Restore must not wait")
	}
}

func TestOpenEndsInTime(t *testing.T) {
	b := inState(t, Open)
	end := b.Snapshot(noon).Next
	refused(t, b, end.Add(-1))
	p := start(t, b, end)
	if !p.Probe() {
		t.Errorf("permit %+v at the end of the open time is no probe", p)
	}
	requireState(t, b, end, HalfOpen)
}

func TestProbesGrowWithSuccess(t *testing.T) {
	b := newBreaker(t, Config{Probes: 2, Successes: 4})
	b.Trip(noon, "test", 0)
	b.Restore(noon)
	var out []Permit
	fill := func() int {
		for {
			p, ok := b.Start(noon)
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
		if !b.Done(noon, out[0], 0, Success, 0) {
			t.Fatal("a success made room, but nothing changed")
		}
		out = out[1:]
	}
	requireState(t, b, noon, Closed)
	if s := b.Snapshot(noon); s.Reason != "" || s.Messages != 1 || s.Failures != 0 {
		t.Errorf("closed breaker %+v, want it to know one success", s)
	}
	for _, p := range out {
		if b.Done(noon, p, 0, Failure, 0) {
			t.Fatal("a probe from before it closed opened it again")
		}
	}
}

func TestProbesAreBounded(t *testing.T) {
	b := newBreaker(t, Config{Probes: 16, Successes: 1000})
	b.Trip(noon, "test", 0)
	b.Restore(noon)
	for range 500 {
		b.Done(noon, start(t, b, noon), 0, Success, 0)
	}
	for range 16 {
		start(t, b, noon)
	}
	refused(t, b, noon)
}

func TestIgnoredProbeIsGivenBack(t *testing.T) {
	b := inState(t, HalfOpen)
	for range 100 {
		p := start(t, b, noon)
		refused(t, b, noon)
		if !b.Done(noon, p, 0, Ignored, 0) {
			t.Fatal("a probe was given back, but nothing changed")
		}
	}
	requireState(t, b, noon, HalfOpen)
}

// A probe that nobody reports is replaced when its lease is over.
func TestLostProbeDoesNotJam(t *testing.T) {
	b := inState(t, HalfOpen)
	lost := start(t, b, noon)
	end := noon.Add(time.Minute)
	if ok, next := b.Allows(noon); ok || !next.Equal(end) || !b.Snapshot(noon).Next.Equal(end) {
		t.Fatalf("Allows = %v, ask again at %v, want %v", ok, next, end)
	}
	refused(t, b, end.Add(-1))
	if ok, _ := b.Allows(end); !ok {
		t.Fatal("no probe is free at the end of the lease")
	}
	second := start(t, b, end)
	if b.Done(end, lost, 0, Failure, 0) {
		t.Error("a probe was reported after another took its place, and counted")
	}
	refused(t, b, end)
	if !b.Done(end, second, 0, Success, 0) || b.Done(end, second, 0, Success, 0) {
		t.Error("the second probe must count, and once")
	}
}

// Who is refused asks again when the lease that ends first does, which need not
// be the first one, and not while a probe is free.
func TestNextProbe(t *testing.T) {
	b := newBreaker(t, Config{Probes: 2, Successes: 9})
	b.Trip(noon, "test", 0)
	b.Restore(noon)
	first := start(t, b, noon)
	if s := b.Snapshot(noon); s.Probes != 1 || !s.Next.IsZero() {
		t.Errorf("with a probe free: %+v, want no time to ask again", s)
	}
	second := noon.Add(10 * time.Second)
	start(t, b, second)
	b.Done(second, first, 0, Ignored, 0)
	third := noon.Add(20 * time.Second)
	start(t, b, third)
	want := second.Add(time.Minute)
	if ok, next := b.Allows(third); ok || !next.Equal(want) || !b.Snapshot(third).Next.Equal(want) {
		t.Errorf("Allows = %v, ask again at %v, want %v", ok, next, want)
	}
	if s := b.Snapshot(want); s.Probes != 1 || !s.Next.IsZero() {
		t.Errorf("when a lease is over: %+v, want no time to ask again", s)
	}
}

// A late probe whose place nobody has taken still counts.
func TestLateProbeCounts(t *testing.T) {
	b := inState(t, HalfOpen)
	p := start(t, b, noon)
	later := noon.Add(time.Hour)
	if !b.Done(later, p, 0, Failure, 0) {
		t.Error("a late failure did not open the breaker")
	}
	requireState(t, b, later, Open)
}

func TestStaleReportsChangeNothing(t *testing.T) {
	b := newBreaker(t, Config{})
	old := start(t, b, noon)
	b.Trip(noon, "test", 0)
	check := func(now time.Time, want State) {
		t.Helper()
		before := b.Snapshot(now)
		for _, p := range []Permit{old, {}} {
			for _, o := range []Outcome{Ignored, Success, Failure, Severe} {
				if b.Done(now, p, 0, o, 0.5) {
					t.Errorf("%v: Done(%+v, %d) changed something", want, p, o)
				}
			}
		}
		if after := b.Snapshot(now); after != before || after.State != want {
			t.Errorf("stale reports changed\n%+v to\n%+v, want %v", before, after, want)
		}
	}
	check(noon, Open)
	now := b.Snapshot(noon).Next
	check(now, HalfOpen)
	probe := start(t, b, now)
	b.Done(now, probe, 0, Success, 0)
	check(now, Closed)
	old = probe
	check(now, Closed)
	b.Isolate(now, "test")
	check(now, Isolated)
}

func TestTrip(t *testing.T) {
	for _, tt := range []struct {
		state State
		want  bool
	}{{Closed, true}, {Open, false}, {HalfOpen, true}, {Isolated, false}} {
		b := inState(t, tt.state)
		if got := b.Trip(noon, "401", 0.5); got != tt.want {
			t.Errorf("Trip of a breaker that is %v: changed %v, want %v", tt.state, got, tt.want)
		}
		if s := b.Snapshot(noon); tt.want && (s.State != Open || s.Reason != "401") {
			t.Errorf("tripped from %v: %+v", tt.state, s)
		}
	}
}

func TestIsolate(t *testing.T) {
	for _, s := range []State{Closed, Open, HalfOpen, Isolated} {
		b := inState(t, s)
		if changed := b.Isolate(noon, "migration"); changed != (s != Isolated) {
			t.Errorf("Isolate of a breaker that is %v: changed %v", s, changed)
		}
		later := noon.AddDate(1, 0, 0)
		refused(t, b, later)
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

// An isolation that is over is not the reason of what follows.
func TestRestoreForgetsTheIsolation(t *testing.T) {
	b := inState(t, Isolated)
	b.Restore(noon)
	b.Done(noon, start(t, b, noon), 0, Failure, 0.5)
	if s := b.Snapshot(noon); s.State != Open || s.Reason != "the probe failed" {
		t.Errorf("after a probe failed: %+v", s)
	}
}

func TestNothingAllocates(t *testing.T) {
	b := newBreaker(t, Config{Successes: 5})
	cycle := func() {
		for of := range uint64(60) {
			p, _ := b.Start(noon)
			b.Done(noon, p, of, Success, 0.5)
			b.Done(noon, p, of/2, Failure, 0.5)
		}
		b.Allows(noon)
		b.Trip(noon, "test", 0)
		b.NotBefore(noon, noon.Add(time.Hour))
		b.Restore(noon)
		for range 5 {
			p, _ := b.Start(noon)
			b.Done(noon, p, 0, Success, 0.5)
		}
		b.Snapshot(noon)
	}
	cycle() // makes the window
	if n := testing.AllocsPerRun(1000, cycle); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// A breaker that nobody uses, or that saw nothing yet, has no window.
func TestWindowIsMadeAtTheFirstReport(t *testing.T) {
	b := newBreaker(t, Config{Window: 1000})
	b.Done(noon, start(t, b, noon), 1, Ignored, 0)
	b.Trip(noon, "test", 0)
	b.Restore(noon)
	b.Done(noon, start(t, b, noon), 1, Failure, 0)
	if b.window.entries != nil {
		t.Error("a window was made though nothing is in it")
	}
}
