package main

import (
	"math"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/retry/budget"
)

func TestParseBudget(t *testing.T) {
	queue, mesh := budget.Queue(), budget.Mesh()
	tests := []struct {
		in   string
		want *budget.Config
		ok   bool
	}{
		{"off", nil, true},
		{"queue", &queue, true},
		{"mesh", &mesh, true},
		{"10%+1/s", &budget.Config{Share: 0.1, Floor: 1}, true},
		{"0.25+2.5/s", &budget.Config{Share: 0.25, Floor: 2.5}, true},
		{"", nil, false},
		{"10%", nil, false},
		{"10%+1", nil, false},
		{"+/s", nil, false},
		{"%+1/s", nil, false},
		{"10%%+1/s", nil, false},
		{"10%+1/s+2/s", nil, false},
		{" 10%+1/s", nil, false},
		{"0%+1/s", nil, false},
		{"-5%+1/s", nil, false},
		{"101%+1/s", nil, false},
		{"NaN+1/s", nil, false},
		{"10%+Inf/s", nil, false},
		{"10%+0.1/s", &budget.Config{Share: 0.1, Floor: 0.1}, true},
		{"10%+0/s", nil, false},
	}
	for _, tt := range tests {
		got, err := parseBudget(tt.in)
		switch {
		case (err == nil) != tt.ok:
			t.Errorf("parseBudget(%q): error %v", tt.in, err)
		case err == nil && (got.name != tt.in || (got.config == nil) != (tt.want == nil) || got.config != nil && *got.config != *tt.want):
			t.Errorf("parseBudget(%q) = %s %+v, want %+v", tt.in, got.name, got.config, tt.want)
		}
	}
}

func FuzzBudget(f *testing.F) {
	for _, s := range []string{"off", "queue", "mesh", "10%+1/s", "0.1+1/s", "%+/s", "1e-300%+1e300/s", "NaN+NaN/s", "+", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseBudget(s)
		if err != nil || a.config == nil {
			return
		}
		if !(a.config.Share > 0 && a.config.Share <= 1 && a.config.Floor > 0) || math.IsInf(a.config.Floor, 0) {
			t.Errorf("%q gives %+v", s, a.config)
		}
		if _, err := budget.New(*a.config); err != nil || a.name != s {
			t.Errorf("%q gives %q and a budget that New refuses: %v", s, a.name, err)
		}
	})
}

func FuzzHops(f *testing.F) {
	for _, s := range []string{"3", "3,2", "sdk=3,db=2", "=", "a=b=3", "+3", "0x3", ",", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hops := newList("", parseHop)
		if hops.Set(s) != nil {
			return
		}
		if len(hops.values) > maxListed || s == "" && len(hops.values) > 0 || s != "" && len(hops.values) != strings.Count(s, ",")+1 {
			t.Errorf("%q gives %d hops", s, len(hops.values))
		}
		for _, h := range hops.values {
			if h.Attempts < 1 || h.Attempts > maxHopAttempts {
				t.Errorf("%q gives %+v", s, h)
			}
		}
	})
}

func FuzzPolicies(f *testing.F) {
	for _, s := range []string{"none", "no-retry,none,equal,full,decorrelated,gaussian", "full,", "Full", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		policies := newList("none", parseStrategy)
		if policies.Set(s) != nil {
			if policies.String() != "none" {
				t.Errorf("a refused value changed the flag to %q", policies)
			}
			return
		}
		var names []string
		for _, p := range policies.values {
			names = append(names, p.name)
		}
		if strings.Join(names, ",") != s {
			t.Errorf("%q gives %q", s, names)
		}
	})
}
