package figure

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestString(t *testing.T) {
	tests := []struct {
		name    string
		figure  *Figure
		samples []float64
		want    string
	}{
		{"upper bound met", AtMost("late", "ms", 10), []float64{10}, "late\t10\tms\t<= 10\tok"},
		{"upper bound missed", AtMost("late", "ms", 10), []float64{10.5}, "late\t10.5\tms\t<= 10\tshort"},
		{"lower bound met", AtLeast("rate", "1/s", 5000), []float64{5000}, "rate\t5000\t1/s\t>= 5000\tok"},
		{"lower bound missed", AtLeast("ratio", "ratio", 0.9), []float64{0.8999}, "ratio\t0.8999\tratio\t>= 0.9\tshort"},
		{"nothing allowed", AtMost("early", "runs", 0), []float64{0}, "early\t0\truns\t<= 0\tok"},
		{"median", AtMost("late", "ms", 10), []float64{70, 1, 2}, "late\t2\tms\t<= 10\tok"},
		{"no goal", Reported("calls", "calls/min"), []float64{3}, "calls\t3\tcalls/min\t-\treported"},
		{"no goal, not measured", Reported("calls", "calls/min"), nil, "calls\t-\tcalls/min\t-\tfailed"},
		{"not measured", AtMost("early", "runs", 0), nil, "early\t-\truns\t<= 0\tfailed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.figure.samples = tt.samples
			if got := tt.figure.String(); got != tt.want {
				t.Errorf("String() = %q, want %q", got, tt.want)
			}
		})
	}
}

// One measurement never ends, one fails; what they have is printed when they
// end, and the others are measured.
func TestRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		all := []Measurement{
			{Name: "slow", Limit: time.Minute, Figures: []*Figure{AtMost("a", "s", 1), AtMost("b", "s", 1)}, Run: func(ctx context.Context, s *Samples) error {
				s.Add("a", 1)
				<-ctx.Done()
				return context.Cause(ctx)
			}},
			{Name: "broken", Figures: []*Figure{AtLeast("c", "s", 1)}, Run: func(context.Context, *Samples) error {
				if want := "a\t1\ts\t<= 1\tok\nb\t-\ts\t<= 1\tfailed\n"; out.String() != want {
					t.Errorf("after the first measurement %q is printed, want %q", &out, want)
				}
				return errors.New("no broker")
			}},
			{Name: "sound", Figures: []*Figure{AtMost("d", "s", 1)}, Run: func(_ context.Context, s *Samples) error {
				s.Add("d", 7)
				s.Set("d", 2)
				s.Goal("d", 2)
				return nil
			}},
		}
		err := Run(t.Context(), &out, all)
		if want := "slow: not done after 1m0s\nbroken: no broker"; err == nil || err.Error() != want {
			t.Errorf("Run = %v, want %q", err, want)
		}
		if want := "c\t-\ts\t>= 1\tfailed\nd\t2\ts\t<= 2\tok\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("printed %q, want %q at the end", &out, want)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var out strings.Builder
	ran := false
	err := Run(ctx, &out, []Measurement{
		{Name: "first", Run: func(context.Context, *Samples) error { stop(); return nil }},
		{Name: "second", Figures: []*Figure{AtMost("a", "s", 1)}, Run: func(context.Context, *Samples) error { ran = true; return nil }},
	})
	if ran || !errors.Is(err, context.Canceled) || out.String() != "a\t-\ts\t<= 1\tfailed\n" {
		t.Errorf("after an interrupt: second ran: %v, error %v, printed %q", ran, err, &out)
	}
}

func TestQuantile(t *testing.T) {
	tests := []struct {
		values []int
		q      float64
		want   int
	}{
		{[]int{7}, 0.99, 7},
		{[]int{3, 1, 2}, 0.5, 2},
		{[]int{4, 3, 1, 2}, 0.5, 3},
		{[]int{4, 3, 1, 2}, 0, 1},
		{[]int{4, 3, 1, 2}, 0.99, 4},
		{nil, 0.5, 0},
	}
	for _, tt := range tests {
		if got := Quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("Quantile(%v, %v) = %d, want %d", tt.values, tt.q, got, tt.want)
		}
	}
	if got := Median([]int{5, 1, 9}); got != 5 {
		t.Errorf("Median = %d, want 5", got)
	}
}
