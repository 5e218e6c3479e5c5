package service

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry"
)

func TestDefaultsAreValid(t *testing.T) {
	for _, p := range []Policy{
		{},
		{Backoff: Fixed, InitialDelayMs: 3_600_000},
		{Backoff: Linear},
		{JitterType: DecorrelatedJitter},
		{MaxAttempts: 1, TotalBudgetMs: 1000},
	} {
		if err := p.WithDefaults().Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
		if err := p.WithDefaults().Retry().Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Policy)
		fields []string
	}{
		{"fine", func(*Policy) {}, nil},
		{"nothing", func(p *Policy) { *p = Policy{} }, []string{"backoff", "jitterType", "maxAttempts", "initialDelayMs", "maxDelayMs", "totalBudgetMs", "visibilityTimeoutMs"}},
		{"lower case", func(p *Policy) { p.Backoff, p.JitterType = "exponential", "full" }, []string{"backoff", "jitterType"}},
		{"no multiplier", func(p *Policy) { p.Multiplier = 0 }, []string{"multiplier"}},
		{"multiplier below 1", func(p *Policy) { p.Multiplier = 0.5 }, []string{"multiplier"}},
		{"multiplier is no number", func(p *Policy) { p.Multiplier = math.NaN() }, []string{"multiplier"}},
		{"endless multiplier", func(p *Policy) { p.Multiplier = math.Inf(1) }, []string{"multiplier"}},
		{"multiplier with fixed", func(p *Policy) { p.Backoff = Fixed }, []string{"multiplier"}},
		{"multiplier with linear", func(p *Policy) { p.Backoff = Linear }, []string{"multiplier"}},
		{"decorrelated and fixed", func(p *Policy) { p.Backoff, p.Multiplier, p.JitterType = Fixed, 0, DecorrelatedJitter }, []string{"jitterType"}},
		{"negative", func(p *Policy) { p.MaxAttempts, p.InitialDelayMs, p.MaxDelayMs, p.TotalBudgetMs = -1, -1, -1, -1 },
			[]string{"maxAttempts", "initialDelayMs", "maxDelayMs", "totalBudgetMs"}},
		{"absurd", func(p *Policy) {
			p.MaxAttempts, p.InitialDelayMs, p.MaxDelayMs, p.TotalBudgetMs, p.VisibilityTimeoutMs = math.MaxInt, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64
		}, []string{"maxAttempts", "initialDelayMs", "maxDelayMs", "totalBudgetMs", "visibilityTimeoutMs"}},
		{"delay over the most", func(p *Policy) { p.InitialDelayMs = p.MaxDelayMs + 1 }, []string{"initialDelayMs"}},
		{"no second attempt", func(p *Policy) { p.TotalBudgetMs = p.InitialDelayMs }, []string{"initialDelayMs"}},
		{"no second attempt wanted", func(p *Policy) { p.TotalBudgetMs, p.MaxAttempts = p.InitialDelayMs, 1 }, nil},
		{"short visibility", func(p *Policy) { p.VisibilityTimeoutMs = 999 }, []string{"visibilityTimeoutMs"}},
		{"codes", func(p *Policy) { p.RetryableStatusCodes = []int{500, 404, 302} }, nil},
		{"bad request", func(p *Policy) { p.RetryableStatusCodes = []int{500, 400} }, []string{"retryableStatusCodes"}},
		{"no failures", func(p *Policy) { p.RetryableStatusCodes = []int{200, 0, 600} }, slices.Repeat([]string{"retryableStatusCodes"}, 3)},
		{"too many codes", func(p *Policy) { p.RetryableStatusCodes = slices.Repeat([]int{500}, 101) }, []string{"retryableStatusCodes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Policy{ID: "p"}.WithDefaults()
			tt.change(&p)
			err := p.Validate()
			var fields []string
			if e, ok := errors.AsType[*PolicyError](err); ok {
				for _, f := range e.Faults {
					fields = append(fields, f.Field)
					if f.Problem == "" || f.Fix == "" || !strings.Contains(err.Error(), f.String()) {
						t.Errorf("%+v is not in %q", f, err)
					}
				}
			}
			if !slices.Equal(fields, tt.fields) || (err == nil) != (tt.fields == nil) {
				t.Errorf("faults in %q, want %q: %v", fields, tt.fields, err)
			}
		})
	}
}

// TestDelays holds the delays before the second and the fourth attempt against the
// words of the API.
func TestDelays(t *testing.T) {
	for _, tt := range []struct {
		policy        Policy
		second, forth time.Duration // the longest
	}{
		{Policy{InitialDelayMs: 100}, 100 * time.Millisecond, 400 * time.Millisecond},
		{Policy{InitialDelayMs: 100, Multiplier: 3, MaxDelayMs: 500}, 100 * time.Millisecond, 500 * time.Millisecond},
		{Policy{InitialDelayMs: 100, Backoff: Linear}, 100 * time.Millisecond, 300 * time.Millisecond},
		{Policy{InitialDelayMs: 100, Backoff: Fixed}, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		for _, jitter := range []string{FullJitter, EqualJitter, NoJitter} {
			p := tt.policy
			p.JitterType = jitter
			p = p.WithDefaults()
			must(t, p.Validate())
			b := p.Retry().Backoff
			if got := b.Envelope(1); got != tt.second {
				t.Errorf("%+v: before the second attempt up to %v, want %v", p, got, tt.second)
			}
			if got := b.Envelope(3); got != tt.forth {
				t.Errorf("%+v: before the fourth attempt up to %v, want %v", p, got, tt.forth)
			}
			least := map[string]time.Duration{FullJitter: 0, EqualJitter: tt.second / 2, NoJitter: tt.second}[jitter]
			if got := b.Delay(1, 0, 0); got != least {
				t.Errorf("%+v: before the second attempt at least %v, want %v", p, got, least)
			}
		}
	}
	p := Policy{InitialDelayMs: 100, MaxDelayMs: 1000, JitterType: DecorrelatedJitter}.WithDefaults()
	b := p.Retry().Backoff
	if low, high := b.Delay(5, 200*time.Millisecond, 0), b.Delay(5, 200*time.Millisecond, 1); low != 100*time.Millisecond || high.Round(time.Millisecond) != 600*time.Millisecond {
		t.Errorf("decorrelated after 200 ms: %v to %v, want 100 ms to 600 ms", low, high)
	}
	if b.Jitter != retry.DecorrelatedJitter {
		t.Errorf("jitter %v", b.Jitter)
	}
}
