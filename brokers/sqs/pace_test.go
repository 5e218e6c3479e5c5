package sqs

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const instant, waited = 10 * time.Millisecond, 20 * time.Second
	type answer struct {
		asked, got int
		took       time.Duration
	}
	full, part, idle := answer{10, 10, instant}, answer{10, 3, instant}, answer{10, 0, waited}
	for name, tt := range map[string]struct {
		answers []answer
		want    int
	}{
		"at first":                       {nil, 1},
		"one full answer":                {[]answer{full}, 2},
		"a round of each twice":          {[]answer{full, full, full}, 4},
		"no more than the most":          {[]answer{full, full, full, full, full, full, full, full, full, full}, 8},
		"half an answer counts":          {[]answer{{10, 5, instant}}, 2},
		"one message asked for and got":  {[]answer{{1, 1, instant}}, 2},
		"less at once":                   {[]answer{full, full, full, part}, 3},
		"less at once, and one is left":  {[]answer{full, part, part}, 1},
		"full but slow changes nothing":  {[]answer{full, {10, 10, waited}}, 2},
		"waited in vain":                 {[]answer{full, full, full, idle}, 2},
		"waited for one":                 {[]answer{full, full, full, {10, 1, waited}}, 2},
		"one poll is left":               {[]answer{idle, idle}, 1},
		"back after a pause of messages": {[]answer{full, full, full, idle, idle, idle, full}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPace(8)
			for _, a := range tt.answers {
				p.note(a.asked, a.got, a.took)
			}
			if p.polls != tt.want {
				t.Errorf("%d polls, want %d", p.polls, tt.want)
			}
		})
	}
	p := pace{polls: 8, most: 8}
	if p.restart(); p.polls != 1 {
		t.Errorf("%d polls after a failure, want 1", p.polls)
	}
}

func TestRest(t *testing.T) {
	for _, tt := range []struct {
		failures          int
		shortest, longest time.Duration
	}{
		{1, time.Second, 2 * time.Second},
		{2, time.Second, 4 * time.Second},
		{4, time.Second, 16 * time.Second},
		{5, time.Second, 20 * time.Second},
		{1_000_000, time.Second, 20 * time.Second},
	} {
		if got := rest(tt.failures, 0); got != tt.shortest {
			t.Errorf("rest after %d failures = %v at least, want %v", tt.failures, got, tt.shortest)
		}
		if got := rest(tt.failures, 1); got != tt.longest {
			t.Errorf("rest after %d failures = %v at most, want %v", tt.failures, got, tt.longest)
		}
	}
}

func TestAppetite(t *testing.T) {
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	a := appetite{within: 10 * time.Second}
	if got := a.take(5, start); got != 5 {
		t.Errorf("at first: %d, want what was taken", got)
	}
	last := 0
	for i := range 100 {
		last = a.take(7, start.Add(time.Duration(i)*time.Second))
	}
	if last < 65 || last > 75 {
		t.Errorf("with 7 a second: %d, want about 70", last)
	}
	if got := a.take(0, start.Add(time.Hour)); got != 0 {
		t.Errorf("an hour later: %d, want none", got)
	}
}
