package retry

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// failure is a run that failed at noon with the class's plain verdict.
func failure(class classify.Class, attempt int) FailedRun {
	return FailedRun{Attempt: attempt, FirstFailedAt: noon, Now: noon, Verdict: classify.Verdict{Class: class}}
}

func TestDecide(t *testing.T) {
	flat := Policy{Backoff: Backoff{Jitter: NoJitter}}
	with := func(f FailedRun, change func(*FailedRun)) FailedRun {
		change(&f)
		return f
	}
	tests := []struct {
		name   string
		policy Policy
		f      FailedRun
		random float64
		want   Decision
	}{
		{"skip", flat, failure("skipped", 1), 0,
			Decision{ActionAck, 0, "skipped", false}},
		{"skip after the last attempt", flat, failure("skipped", 99), 0,
			Decision{ActionAck, 0, "skipped", false}},
		{"shutdown after the last attempt", flat, failure("shutdown", 99), 0,
			Decision{ActionRelease, 0, "shutdown", false}},
		{"lost", flat, failure("lost", 1), 0, Decision{ActionNone, 0, "lost", false}},

		{"poison", flat, failure("poison", 1), 0, Decision{ActionDeadLetter, 0, "poison", true}},
		{"poison with a reason", flat, with(failure("poison", 1), func(f *FailedRun) { f.Verdict.Reason = "decode" }), 0,
			Decision{ActionDeadLetter, 0, "decode", true}},
		{"poison that may be run twice", flat, with(failure("poison", 1), func(f *FailedRun) { f.Verdict.MaxAttempts = 2 }), 0,
			Decision{ActionRetry, time.Second, "poison", true}},
		{"poison that was run twice", flat, with(failure("poison", 2), func(f *FailedRun) { f.Verdict.MaxAttempts = 2 }), 0,
			Decision{ActionDeadLetter, 0, "poison", true}},

		{"transient", flat, failure("transient", 3), 0, Decision{ActionRetry, 4 * time.Second, "transient", true}},
		{"transient, attempt below 1", flat, failure("transient", math.MinInt), 0,
			Decision{ActionRetry, time.Second, "transient", true}},
		{"transient, last but one", flat, failure("transient", 9), 0, Decision{ActionRetry, 256 * time.Second, "transient", true}},
		{"transient, last", flat, failure("transient", 10), 0, Decision{ActionDeadLetter, 0, "exhausted", true}},
		{"transient, last, with a reason", flat, with(failure("transient", 10), func(f *FailedRun) { f.Verdict.Reason = "timeout" }), 0,
			Decision{ActionDeadLetter, 0, "timeout", true}},
		{"transient, verdict allows fewer", flat, with(failure("transient", 5), func(f *FailedRun) { f.Verdict.MaxAttempts = 5 }), 0,
			Decision{ActionDeadLetter, 0, "exhausted", true}},
		{"transient, verdict asks for more", flat, with(failure("transient", 10), func(f *FailedRun) { f.Verdict.MaxAttempts = 99 }), 0,
			Decision{ActionDeadLetter, 0, "exhausted", true}},
		{"transient, negative verdict limit is none", flat, with(failure("transient", 9), func(f *FailedRun) { f.Verdict.MaxAttempts = -1 }), 0,
			Decision{ActionRetry, 256 * time.Second, "transient", true}},
		{"transient, short hint", flat, with(failure("transient", 3), func(f *FailedRun) { f.Verdict.RetryAfter = time.Second }), 0,
			Decision{ActionRetry, 4 * time.Second, "transient", true}},
		{"transient, long hint", flat, with(failure("transient", 3), func(f *FailedRun) { f.Verdict.RetryAfter = 30 * time.Second }), 0,
			Decision{ActionRetry, 30 * time.Second, "transient", true}},
		{"transient, negative hint", flat, with(failure("transient", 3), func(f *FailedRun) { f.Verdict.RetryAfter = -time.Hour }), 0,
			Decision{ActionRetry, 4 * time.Second, "transient", true}},
		{"transient, backoff beyond MaxRetryAfter", Policy{MaxRetryAfter: time.Second, Backoff: Backoff{Jitter: NoJitter}},
			with(failure("transient", 3), func(f *FailedRun) { f.Verdict.RetryAfter = 30 * time.Second }), 0.9,
			Decision{ActionRetry, 4 * time.Second, "transient", true}},

		{"unknown", flat, failure("unknown", 1), 0, Decision{ActionRetry, time.Second, "unknown", true}},
		{"no class", flat, failure("", 1), 0, Decision{ActionRetry, time.Second, "unknown", true}},
		{"a class of the future", flat, failure("weather", 10), 0, Decision{ActionDeadLetter, 0, "exhausted", true}},

		{"throttled, free", flat, failure("throttled", 10), 0, Decision{ActionRetry, 512 * time.Second, "throttled", false}},
		{"throttled, last free one", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Throttles = 4 }), 0,
			Decision{ActionRetry, 16 * time.Second, "throttled", false}},
		{"throttled, counted", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Throttles = 5 }), 0,
			Decision{ActionRetry, 32 * time.Second, "throttled", true}},
		{"throttled, exhausted", flat, with(failure("throttled", 10), func(f *FailedRun) { f.Throttles = 5 }), 0,
			Decision{ActionDeadLetter, 0, "exhausted", true}},
		{"throttled, none free", Policy{FreeThrottles: -1, Backoff: flat.Backoff}, with(failure("throttled", 10), func(f *FailedRun) { f.Throttles = -7 }), 0,
			Decision{ActionDeadLetter, 0, "exhausted", true}},
		{"throttled, attempt below 1", flat, with(failure("throttled", -5), func(f *FailedRun) { f.Throttles = 2 }), 0,
			Decision{ActionRetry, 4 * time.Second, "throttled", false}},
		{"throttled, huge counts", flat, with(failure("throttled", math.MaxInt), func(f *FailedRun) { f.Throttles = 4 }), 0,
			Decision{ActionRetry, 15 * time.Minute, "throttled", false}},
		{"throttled, hint plus a tenth", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Verdict.RetryAfter = 20 * time.Second }), lastRandom,
			Decision{ActionRetry, 22*time.Second - 1, "throttled", false}},
		{"throttled, hint plus at most 5s", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Verdict.RetryAfter = 2 * time.Minute }), lastRandom,
			Decision{ActionRetry, 125*time.Second - 1, "throttled", false}},
		{"throttled, hint at the limit", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Verdict.RetryAfter = 15 * time.Minute }), lastRandom,
			Decision{ActionRetry, 15 * time.Minute, "throttled", false}},
		{"throttled, hint beyond the limit", flat, with(failure("throttled", 1), func(f *FailedRun) { f.Verdict.RetryAfter = math.MaxInt64 }), 0,
			Decision{ActionRetry, 15*time.Minute - 5*time.Second, "throttled", false}},
		{"throttled, backoff capped by MaxRetryAfter", Policy{MaxRetryAfter: 3 * time.Second, Backoff: flat.Backoff}, failure("throttled", 5), 0,
			Decision{ActionRetry, 3 * time.Second, "throttled", false}},

		{"environment, at once", flat, failure("environment", 1), 0, Decision{ActionRetry, 30 * time.Second, "environment", false}},
		{"environment, long after the last attempt", flat, failure("environment", math.MaxInt), lastRandom,
			Decision{ActionRetry, time.Minute - 1, "environment", false}},
		{"environment, hint", flat, with(failure("environment", 1), func(f *FailedRun) { f.Verdict.RetryAfter = 2 * time.Minute }), 0,
			Decision{ActionRetry, 2 * time.Minute, "environment", false}},
		{"ambiguous makes no difference", flat, with(failure("transient", 1), func(f *FailedRun) { f.Verdict.Ambiguous = true }), 0,
			Decision{ActionRetry, time.Second, "transient", true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Decide(tt.policy, tt.f, tt.random); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestDecideMaxAge(t *testing.T) {
	p := Policy{MaxAge: time.Hour, Backoff: Backoff{Base: time.Minute, Jitter: NoJitter}, EnvironmentDelay: 2 * time.Minute}
	tests := []struct {
		name    string
		class   classify.Class
		elapsed time.Duration
		ran     time.Duration
		expired bool
	}{
		{"delay fits exactly", "transient", 59 * time.Minute, 0, false},
		{"delay does not fit", "transient", 59*time.Minute + 1, 0, true},
		{"run fits exactly", "transient", 58 * time.Minute, time.Minute, false},
		{"run does not fit", "transient", 58 * time.Minute, time.Minute + 1, true},
		{"too old already", "unknown", 2 * time.Hour, 0, true},
		{"free throttle", "throttled", 59*time.Minute + 1, 0, true},
		{"environment", "environment", 59*time.Minute + 1, 0, true},
		{"environment fits", "environment", 59 * time.Minute, 0, false},
		{"negative run", "transient", 59*time.Minute + 1, math.MinInt64, true},
		{"endless run", "transient", 0, math.MaxInt64, true},
		{"clock set back", "transient", -10 * time.Hour, 58 * time.Minute, false},
		{"clock set back does not lengthen life", "transient", -10 * time.Hour, time.Hour, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := failure(tt.class, 1)
			f.Now, f.Ran = noon.Add(tt.elapsed), tt.ran
			got := Decide(p, f, 0)
			want := Decision{Action: ActionRetry, Delay: time.Minute, Reason: string(tt.class)}
			if tt.expired {
				want = Decision{Action: ActionDeadLetter, Reason: reasonExpired}
			}
			want.Counted = tt.class == classify.ClassTransient || tt.class == classify.ClassUnknown
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("no first failure yet", func(t *testing.T) {
		f := failure("transient", 1)
		f.FirstFailedAt = time.Time{}
		if got := Decide(p, f, 0); got.Action != ActionRetry {
			t.Errorf("got %+v, want a retry", got)
		}
	})
	t.Run("times too far apart to subtract", func(t *testing.T) {
		f := failure("transient", 1)
		f.FirstFailedAt, f.Now = time.Unix(-1<<40, 0), time.Unix(1<<40, 0)
		if got := Decide(p, f, 0); got.Reason != reasonExpired {
			t.Errorf("got %+v, want it expired", got)
		}
	})
}

// However the errors of a message alternate, counted ones add up.
func TestAlternatingErrorsExhaust(t *testing.T) {
	rng := generator(t, 50)
	classes := []classify.Class{"transient", "throttled", "unknown", "environment"}
	for range 500 {
		p := Policy{MaxAttempts: 1 + rng.IntN(8), FreeThrottles: rng.IntN(6), MaxAge: 1 << 62}
		free := p.withDefaults().FreeThrottles
		m := newMessage(p)
		runs := map[classify.Class]int{}
		for m.last.Action != ActionDeadLetter {
			class := classes[rng.IntN(len(classes))]
			runs[class]++
			m.fail(classify.Verdict{Class: class}, 0, rng.Float64())
		}
		counted := runs["transient"] + runs["unknown"] + max(runs["throttled"]-free, 0)
		if counted != p.MaxAttempts {
			t.Fatalf("%+v: %v, of which %d counted, want MaxAttempts", p, runs, counted)
		}
	}
}

func TestActionString(t *testing.T) {
	for a, want := range map[Action]string{
		ActionNone: "none", ActionAck: "ack", ActionRetry: "retry", ActionDeadLetter: "dead-letter", ActionRelease: "release", 9: "action(9)",
	} {
		if got := a.String(); got != want {
			t.Errorf("Action(%d) = %q, want %q", uint8(a), got, want)
		}
	}
	if (Decision{}).Action != ActionNone {
		t.Error("the zero Decision must not touch a message")
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	f := failure("throttled", 3)
	f.Verdict.RetryAfter = time.Second
	if n := testing.AllocsPerRun(100, func() { Decide(Policy{}, f, 0.3) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// message keeps the books that a consumer keeps for a failing message.
type message struct {
	policy Policy
	f      FailedRun
	last   Decision
}

func newMessage(p Policy) *message {
	return &message{policy: p, f: FailedRun{Attempt: 1, Now: noon}}
}

// fail lets a run fail, ran after its begin, and waits for the next.
func (m *message) fail(v classify.Verdict, ran time.Duration, random float64) Decision {
	m.f.Now = m.f.Now.Add(ran)
	m.f.Ran, m.f.Verdict = ran, v
	if m.f.FirstFailedAt.IsZero() {
		m.f.FirstFailedAt = m.f.Now
	}
	m.last = Decide(m.policy, m.f, random)
	switch {
	case m.last.Counted:
		m.f.Attempt++
	case v.Class == classify.ClassThrottled:
		m.f.Throttles++
	}
	m.f.Now = m.f.Now.Add(m.last.Delay)
	m.f.PrevDelay = m.last.Delay
	return m.last
}

// anyPolicy returns a policy of which anything may be unset or nonsense.
func anyPolicy(rng *rand.Rand) Policy {
	d := func() time.Duration {
		switch rng.IntN(4) {
		case 0:
			return 0
		case 1:
			return time.Duration(rng.Uint64())
		default:
			return time.Duration(rng.Int64N(int64(time.Hour)))
		}
	}
	return Policy{
		MaxAttempts: rng.IntN(20) - 3, MaxAge: d(), MaxRetryAfter: d(), FreeThrottles: rng.IntN(10) - 3, EnvironmentDelay: d(),
		Backoff: Backoff{Base: d(), Cap: d(), Floor: d(), Multiplier: rng.NormFloat64() * 3, Step: d(), Jitter: Jitter(rng.IntN(6))},
	}
}

func TestDecideSurvivesNonsense(t *testing.T) {
	rng := generator(t, 51)
	classes := []classify.Class{"poison", "transient", "throttled", "environment", "shutdown", "lost", "skipped", "unknown", "", "no such class"}
	for range 50000 {
		f := FailedRun{
			Attempt: int(rng.Uint64()), Throttles: int(rng.Uint64()), Ran: time.Duration(rng.Uint64()), PrevDelay: time.Duration(rng.Uint64()),
			FirstFailedAt: time.Unix(int64(rng.Uint64()), 0), Now: time.Unix(int64(rng.Uint64()), 0),
			Verdict: classify.Verdict{
				Class:      classes[rng.IntN(len(classes))],
				RetryAfter: time.Duration(rng.Uint64()), MaxAttempts: int(rng.Uint64()),
			},
		}
		if rng.IntN(2) == 0 {
			f.Attempt, f.Throttles, f.Ran, f.FirstFailedAt = rng.IntN(12), rng.IntN(7), 0, f.Now
		}
		checkDecision(t, anyPolicy(rng), f, rng.NormFloat64())
	}
}

// checkDecision fails the test unless Decide's answer is one that a consumer
// can carry out.
func checkDecision(t *testing.T, p Policy, f FailedRun, random float64) Decision {
	t.Helper()
	d := Decide(p, f, random)
	p = p.withDefaults()
	longest := max(p.Backoff.Cap, p.MaxRetryAfter, p.EnvironmentDelay)
	if f.Verdict.Class == classify.ClassThrottled {
		longest = p.MaxRetryAfter
	}
	ok := d.Delay == 0
	switch d.Action {
	case ActionAck:
		ok = ok && f.Verdict.Class == "skipped" && !d.Counted
	case ActionRelease:
		ok = ok && f.Verdict.Class == classify.ClassShutdown && !d.Counted
	case ActionNone:
		ok = ok && f.Verdict.Class == classify.ClassLost && !d.Counted
	case ActionDeadLetter:
		ok = ok && (d.Counted || d.Reason == reasonExpired)
	case ActionRetry:
		ok = d.Delay >= 0 && d.Delay <= longest && d.Delay <= p.MaxAge
		if hint := f.Verdict.RetryAfter; hint > 0 && hint <= p.MaxRetryAfter {
			ok = ok && d.Delay >= hint
		}
	default:
		ok = false
	}
	if !ok || d.Reason == "" {
		t.Fatalf("policy %+v\nfailure %+v\nrandom %v\ngives %+v", p, f, random, d)
	}
	if again := Decide(p, f, random); again != d {
		t.Fatalf("policy %+v\nfailure %+v\nrandom %v\ngives %+v, then %+v", p, f, random, d, again)
	}
	return d
}

func TestDeferredIsNeverCounted(t *testing.T) {
	v := classify.Of(classify.Defer(errors.New("somebody else is at it"), 30*time.Second))
	for _, attempt := range []int{1, 10, 1000} {
		d := Decide(Policy{MaxAttempts: 1}, FailedRun{Attempt: attempt, Now: noon, Verdict: v}, 0.5)
		if d.Action != ActionRetry || d.Counted || d.Delay < 30*time.Second || d.Delay > 35*time.Second {
			t.Errorf("attempt %d: %+v, want an uncounted retry after 30 s", attempt, d)
		}
	}
	d := Decide(Policy{}, FailedRun{Attempt: 1, Now: noon, FirstFailedAt: noon.Add(-25 * time.Hour), Verdict: v}, 0.5)
	if d.Action != ActionDeadLetter || d.Reason != reasonExpired {
		t.Errorf("after MaxAge: %+v, want it expired", d)
	}
}

// What a mark says of the message, the dependency and the blame is what Decide
// makes of it.
func TestDecideFollowsMarks(t *testing.T) {
	odd := errors.New("odd")
	p := Policy{Backoff: Backoff{Jitter: NoJitter}}
	tests := []struct {
		name string
		err  error
		want Decision
	}{
		{"this message, not before", classify.RetryAfter(odd, time.Minute), Decision{ActionRetry, time.Minute, "transient", true}},
		{"this message, at the policy's pace", classify.RetryAfter(odd, 0), Decision{ActionRetry, time.Second, "transient", true}},
		{"the dependency", classify.Throttled(odd, time.Minute), Decision{ActionRetry, time.Minute, "throttled", false}},
		{"the dependency, without a time", classify.Throttled(odd, 0), Decision{ActionRetry, time.Second, "throttled", false}},
		{"nobody", classify.Defer(odd, time.Minute), Decision{ActionRetry, time.Minute, "transient", false}},
		{"a verdict", classify.With(odd, classify.Verdict{MaxAttempts: 1, Reason: "paper"}), Decision{ActionDeadLetter, 0, "paper", true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Decide(p, FailedRun{Verdict: classify.Of(tt.err)}, 0); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	last := FailedRun{Attempt: 10, Verdict: classify.Of(classify.RetryAfter(odd, time.Minute))}
	if got := Decide(p, last, 0); got.Action != ActionDeadLetter || got.Reason != reasonExhausted {
		t.Errorf("the last attempt of a message that asked to wait: %+v, want it exhausted", got)
	}
}
