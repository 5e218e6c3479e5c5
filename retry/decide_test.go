package retry

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// failure is a run that failed at noon with the class's plain verdict, changed so.
func failure(class string, attempt int, changes ...func(*FailedRun)) FailedRun {
	r := FailedRun{Attempt: attempt, FirstFailedAt: noon, Now: noon, Verdict: classify.Verdict{Class: class}}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func ambiguous(r *FailedRun)                { r.Verdict.Ambiguous = true }
func reason(word string) func(*FailedRun)   { return func(r *FailedRun) { r.Verdict.Reason = word } }
func most(n int) func(*FailedRun)           { return func(r *FailedRun) { r.Verdict.MaxAttempts = n } }
func asks(d time.Duration) func(*FailedRun) { return func(r *FailedRun) { r.Verdict.RetryAfter = d } }
func throttles(n int) func(*FailedRun)      { return func(r *FailedRun) { r.Throttles = n } }
func dead(reason string) Decision           { return Decision{DeadLetter: true, Reason: reason, Counted: true} }
func again(d time.Duration, reason string) Decision {
	return Decision{Retry: true, Delay: d, Reason: reason, Counted: true}
}
func free(d time.Duration, reason string) Decision {
	return Decision{Retry: true, Delay: d, Reason: reason}
}

func TestDecide(t *testing.T) {
	const s, m = time.Second, time.Minute
	noJitter := Backoff{Jitter: NoJitter}
	flat := Policy{Backoff: noJitter}
	short := func(d time.Duration) Policy { return Policy{MaxRetryAfter: d, Backoff: noJitter} }
	tests := []struct {
		name   string
		policy Policy
		run    FailedRun
		random float64
		want   Decision
	}{
		{"skip", flat, failure("skipped", 1), 0, Decision{Reason: "skipped"}},
		{"skip after the last attempt", flat, failure("skipped", 99), 0, Decision{Reason: "skipped"}},
		{"shutdown after the last attempt", flat, failure("shutdown", 99), 0, Decision{Reason: "shutdown"}},
		{"lost", flat, failure("lost", 1), 0, Decision{Reason: "lost"}},

		{"poison", flat, failure("poison", 1), 0, dead("poison")},
		{"poison with a reason", flat, failure("poison", 1, reason("decode")), 0, dead("decode")},
		{"poison that may be run twice", flat, failure("poison", 1, most(2)), 0, again(s, "poison")},
		{"poison that was run twice", flat, failure("poison", 2, most(2)), 0, dead("poison")},

		{"transient", flat, failure("transient", 3), 0, again(4*s, "transient")},
		{"transient, attempt below 1", flat, failure("transient", math.MinInt), 0, again(s, "transient")},
		{"transient, last but one", flat, failure("transient", 9), 0, again(256*s, "transient")},
		{"transient, last", flat, failure("transient", 10), 0, dead("exhausted")},
		{"transient, last, with a reason", flat, failure("transient", 10, reason("timeout")), 0, dead("timeout")},
		{"transient, verdict allows fewer", flat, failure("transient", 5, most(5)), 0, dead("exhausted")},
		{"transient, verdict asks for more", flat, failure("transient", 10, most(99)), 0, dead("exhausted")},
		{"transient, negative verdict limit is none", flat, failure("transient", 9, most(-1)), 0, again(256*s, "transient")},
		{"transient, short hint", flat, failure("transient", 3, asks(s)), 0, again(4*s, "transient")},
		{"transient, long hint", flat, failure("transient", 3, asks(30*s)), 0, again(30*s, "transient")},
		{"transient, negative hint", flat, failure("transient", 3, asks(-60*m)), 0, again(4*s, "transient")},
		{"transient, backoff beyond MaxRetryAfter", short(s), failure("transient", 3, asks(30*s)), 0.9, again(4*s, "transient")},

		{"unknown", flat, failure("unknown", 1), 0, again(s, "unknown")},
		{"no class", flat, failure("", 1), 0, again(s, "unknown")},
		{"a class of the future", flat, failure("weather", 10), 0, dead("exhausted")},

		{"throttled, free", flat, failure("throttled", 10), 0, free(512*s, "throttled")},
		{"throttled, last free one", flat, failure("throttled", 1, throttles(4)), 0, free(16*s, "throttled")},
		{"throttled, counted", flat, failure("throttled", 1, throttles(5)), 0, again(32*s, "throttled")},
		{"throttled, exhausted", flat, failure("throttled", 10, throttles(5)), 0, dead("exhausted")},
		{"throttled, none free", Policy{FreeThrottles: -1, Backoff: noJitter}, failure("throttled", 10, throttles(-7)), 0, dead("exhausted")},
		{"throttled, attempt below 1", flat, failure("throttled", -5, throttles(2)), 0, free(4*s, "throttled")},
		{"throttled, huge counts", flat, failure("throttled", math.MaxInt, throttles(4)), 0, free(15*m, "throttled")},
		{"throttled, hint plus a tenth", flat, failure("throttled", 1, asks(20*s)), lastRandom, free(22*s-1, "throttled")},
		{"throttled, hint plus at most 5s", flat, failure("throttled", 1, asks(2*m)), lastRandom, free(125*s-1, "throttled")},
		{"throttled, hint at the limit", flat, failure("throttled", 1, asks(15*m)), lastRandom, free(15*m, "throttled")},
		{"throttled, hint beyond the limit", flat, failure("throttled", 1, asks(math.MaxInt64)), 0, free(15*m-5*s, "throttled")},
		{"throttled, backoff capped by MaxRetryAfter", short(3 * s), failure("throttled", 5), 0, free(3*s, "throttled")},

		{"environment, at once", flat, failure("environment", 1), 0, free(30*s, "environment")},
		{"environment, long after the last attempt", flat, failure("environment", math.MaxInt), lastRandom, free(m-1, "environment")},
		{"environment, hint", flat, failure("environment", 1, asks(2*m)), 0, free(2*m, "environment")},
		{"ambiguous makes no difference", flat, failure("transient", 1, ambiguous), 0, again(s, "transient")},
	}
	for _, tt := range tests {
		if got := tt.policy.Decide(tt.run, tt.random); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestDecideMaxAge(t *testing.T) {
	p := Policy{MaxAge: time.Hour, Backoff: Backoff{Base: time.Minute, Jitter: NoJitter}, EnvironmentDelay: 2 * time.Minute}
	tests := []struct {
		name    string
		class   string
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
		f := failure(tt.class, 1)
		f.Now, f.Ran = noon.Add(tt.elapsed), tt.ran
		want := Decision{Retry: true, Delay: time.Minute, Reason: tt.class}
		if tt.expired {
			want = Decision{DeadLetter: true, Reason: reasonExpired}
		}
		want.Counted = tt.class == classify.ClassTransient || tt.class == classify.ClassUnknown
		if got := p.Decide(f, 0); got != want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, want)
		}
	}
	if got := p.Decide(failure("transient", 1, func(r *FailedRun) { r.FirstFailedAt = time.Time{} }), 0); !got.Retry {
		t.Errorf("no failure before: got %+v, want a retry", got)
	}
	ages := func(r *FailedRun) { r.FirstFailedAt, r.Now = time.Unix(-1<<40, 0), time.Unix(1<<40, 0) }
	if got := p.Decide(failure("transient", 1, ages), 0); got.Reason != reasonExpired {
		t.Errorf("times too far apart to subtract: got %+v, want it expired", got)
	}
}

// However the errors of a message alternate, counted ones add up.
func TestAlternatingErrorsExhaust(t *testing.T) {
	rng := generator(t, 50)
	classes := []string{"transient", "throttled", "unknown", "environment"}
	for range 500 {
		p := Policy{MaxAttempts: 1 + rng.IntN(8), FreeThrottles: rng.IntN(6), MaxAge: 1 << 62}
		free := p.withDefaults().FreeThrottles
		m := newMessage(p)
		runs := map[string]int{}
		for !m.last.DeadLetter {
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

func TestDecideAllocatesNothing(t *testing.T) {
	f := failure("throttled", 3, asks(time.Second))
	if n := testing.AllocsPerRun(100, func() { Policy{}.Decide(f, 0.3) }); n != 0 {
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
	m.last = m.policy.Decide(m.f, random)
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

// checkDecision fails the test unless Decide's answer is one that a consumer
// can carry out.
func checkDecision(t *testing.T, p Policy, f FailedRun, random float64) Decision {
	t.Helper()
	d := p.Decide(f, random)
	p = p.withDefaults()
	longest := max(p.Backoff.Cap, p.MaxRetryAfter, p.EnvironmentDelay)
	if f.Verdict.Class == classify.ClassThrottled {
		longest = p.MaxRetryAfter
	}
	ok := d.Delay == 0
	switch {
	case slices.Contains([]string{classify.ClassSkipped, classify.ClassShutdown, classify.ClassLost}, f.Verdict.Class):
		ok = d == Decision{Reason: f.Verdict.Class}
	case d.DeadLetter:
		ok = ok && !d.Retry && (d.Counted || d.Reason == reasonExpired)
	case d.Retry:
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
	if again := p.Decide(f, random); again != d {
		t.Fatalf("policy %+v\nfailure %+v\nrandom %v\ngives %+v, then %+v", p, f, random, d, again)
	}
	return d
}

func TestDeferredIsNeverCounted(t *testing.T) {
	v := classify.Of(classify.Defer(errors.New("somebody else is at it"), 30*time.Second))
	p := Policy{MaxAttempts: 1, Backoff: Backoff{Jitter: NoJitter}}
	for _, attempt := range []int{1, 10, 1000} {
		if got := p.Decide(FailedRun{Attempt: attempt, Verdict: v}, 0); got != free(30*time.Second, "transient") {
			t.Errorf("attempt %d: %+v, want an uncounted retry after 30 s", attempt, got)
		}
	}
	d := Policy{}.Decide(FailedRun{Now: noon, FirstFailedAt: noon.Add(-25 * time.Hour), Verdict: v}, 0.5)
	if !d.DeadLetter || d.Reason != reasonExpired {
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
		{"this message, not before", classify.RetryAfter(odd, time.Minute), again(time.Minute, "transient")},
		{"this message, at the policy's pace", classify.RetryAfter(odd, 0), again(time.Second, "transient")},
		{"the dependency", classify.Throttled(odd, time.Minute), free(time.Minute, "throttled")},
		{"the dependency, without a time", classify.Throttled(odd, 0), free(time.Second, "throttled")},
		{"nobody", classify.Defer(odd, time.Minute), free(time.Minute, "transient")},
		{"a verdict", classify.With(odd, classify.Verdict{MaxAttempts: 1, Reason: "paper"}), dead("paper")},
	}
	for _, tt := range tests {
		if got := p.Decide(FailedRun{Verdict: classify.Of(tt.err)}, 0); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	last := FailedRun{Attempt: 10, Verdict: classify.Of(classify.RetryAfter(odd, time.Minute))}
	if got := p.Decide(last, 0); got != dead("exhausted") {
		t.Errorf("the last attempt of a message that asked to wait: %+v, want it exhausted", got)
	}
}
