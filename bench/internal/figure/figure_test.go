package figure

import "testing"

func TestString(t *testing.T) {
	tests := []struct {
		name   string
		figure Figure
		want   string
	}{
		{"upper bound met", Figure{Name: "late", Value: 10, Unit: "ms", Goal: 10}, "late\t10\tms\t<= 10\tok"},
		{"upper bound missed", Figure{Name: "late", Value: 10.5, Unit: "ms", Goal: 10}, "late\t10.5\tms\t<= 10\tshort"},
		{"lower bound met", Figure{Name: "rate", Value: 5000, Unit: "1/s", Goal: 5000, AtLeast: true}, "rate\t5000\t1/s\t>= 5000\tok"},
		{"lower bound missed", Figure{Name: "ratio", Value: 0.8999, Unit: "ratio", Goal: 0.9, AtLeast: true}, "ratio\t0.8999\tratio\t>= 0.9\tshort"},
		{"nothing allowed", Figure{Name: "early", Value: 0, Unit: "runs", Goal: 0}, "early\t0\truns\t<= 0\tok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.figure.String(); got != tt.want {
				t.Errorf("String() = %q, want %q", got, tt.want)
			}
		})
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
