package retry

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestValidateAccepts(t *testing.T) {
	for name, p := range map[string]Policy{
		"zero":              {},
		"inline":            Policy{}.inline(),
		"one attempt":       {MaxAttempts: 1},
		"linear":            {Backoff: Backoff{Step: time.Second}},
		"no free throttles": {FreeThrottles: -1},
		"short life":        {MaxAge: time.Second},
		"all set": {
			MaxAttempts: 5, MaxAge: time.Hour, MaxRetryAfter: time.Minute, FreeThrottles: 2, EnvironmentDelay: time.Second,
			Backoff: Backoff{Base: time.Second, Cap: time.Second, Floor: time.Second, Multiplier: 1, Jitter: NoJitter},
		},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesFieldValueAndFix(t *testing.T) {
	tests := []struct {
		policy            Policy
		field, value, fix string
	}{
		{Policy{MaxAttempts: -3}, "MaxAttempts", "-3", "default of 10"},
		{Policy{MaxAge: -time.Hour}, "MaxAge", "-1h0m0s", "default of 24h0m0s"},
		{Policy{MaxRetryAfter: -1}, "MaxRetryAfter", "-1ns", "default of 15m0s"},
		{Policy{EnvironmentDelay: -1}, "EnvironmentDelay", "-1ns", "default of 1m0s"},
		{Policy{Backoff: Backoff{Base: -1}}, "Backoff.Base", "-1ns", "default of 1s"},
		{Policy{Backoff: Backoff{Cap: -1}}, "Backoff.Cap", "-1ns", "default of 15m0s"},
		{Policy{Backoff: Backoff{Floor: -1}}, "Backoff.Floor", "-1ns", "0 for none"},
		{Policy{Backoff: Backoff{Multiplier: 0.5}}, "Backoff.Multiplier", "0.5", "at least 1"},
		{Policy{Backoff: Backoff{Multiplier: math.NaN()}}, "Backoff.Multiplier", "NaN", "finite"},
		{Policy{Backoff: Backoff{Multiplier: math.Inf(1)}}, "Backoff.Multiplier", "+Inf", "finite"},
		{Policy{Backoff: Backoff{Step: -1}}, "Backoff.Step", "-1ns", "0 for none"},
		{Policy{Backoff: Backoff{Step: time.Second, Multiplier: 1}}, "Backoff.Step", "1s", "Backoff.Multiplier (1), not both"},
		{Policy{Backoff: Backoff{Jitter: 4}}, "Backoff.Jitter", "4", "NoJitter (3)"},
		{Policy{Backoff: Backoff{Base: time.Minute, Cap: time.Second}}, "Backoff.Cap", "1s", "at least Backoff.Base (1m0s)"},
		{Policy{Backoff: Backoff{Base: time.Hour}}, "Backoff.Cap", "15m0s", "at least Backoff.Base (1h0m0s)"},
		{Policy{Backoff: Backoff{Floor: time.Hour}}, "Backoff.Floor", "1h0m0s", "at most Backoff.Cap (15m0s)"},
		{Policy{MaxAge: time.Minute, Backoff: Backoff{Floor: time.Minute}}, "Backoff.Floor", "1m0s", "less than MaxAge (1m0s)"},
	}
	for _, tt := range tests {
		err := tt.policy.Validate()
		if err == nil {
			t.Errorf("%+v: accepted", tt.policy)
			continue
		}
		text := err.Error()
		if strings.Contains(text, "\n") {
			t.Errorf("one mistake, but several faults:\n%s", text)
		}
		if !strings.HasPrefix(text, "retry: Policy."+tt.field+": is "+tt.value+": ") || !strings.Contains(text, tt.fix) {
			t.Errorf("got %q, want field %s, value %s and the fix %q", text, tt.field, tt.value, tt.fix)
		}
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	p := Policy{
		MaxAttempts: -1, MaxAge: -1, MaxRetryAfter: -1, EnvironmentDelay: -1,
		Backoff: Backoff{Base: -1, Cap: -1, Floor: -1, Multiplier: -1, Step: -1, Jitter: 9},
	}
	if got := strings.Split(p.Validate().Error(), "\n"); len(got) != 10 {
		t.Errorf("got %d faults, want 10:\n%s", len(got), strings.Join(got, "\n"))
	}
}

func TestPolicyLimits(t *testing.T) {
	attempts, delay, age := Policy{}.Limits()
	if attempts != 10 || delay != 15*time.Minute || age != 24*time.Hour {
		t.Errorf("Limits of the zero policy = %d, %v, %v, want 10, 15m, 24h", attempts, delay, age)
	}
	attempts, delay, _ = Policy{MaxAttempts: 3, EnvironmentDelay: time.Hour}.Limits()
	if attempts != 3 || delay != time.Hour {
		t.Errorf("Limits = %d, %v, want 3 and the environment delay of 1h", attempts, delay)
	}
}
