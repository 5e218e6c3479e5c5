package storm

import (
	"context"
	"errors"
	"slices"
	"time"
)

// maxBins bounds what is kept for a chart; peaks and totals know no bound.
const maxBins = 1 << 20

// Result is what one storm came to.
type Result struct {
	// Messages is how many there were, Attempts how many calls they led to.
	Messages, Attempts int
	// Lost is how many messages ran out of attempts or of time.
	Lost int
	// Wasted is how many calls the dependency worked on although the caller had
	// given up.
	Wasted int
	// OpenCalls is how many calls began while the breaker was open. It must be 0.
	OpenCalls int
	// Amplification is calls by arrivals, both during the outage; 0 if nothing
	// arrived.
	Amplification float64
	// Settled is how long after the outage the last message was done with that
	// had failed, or had been held back by more than a bin.
	Settled time.Duration
	// PeakOffered and PeakServed are calls per second in the fullest bin: made by
	// the callers, and begun by the dependency.
	PeakOffered, PeakServed float64
	// Offered, Served and Answered are the calls of each bin: made by the callers,
	// begun by the dependency, and answered while the caller was waiting.
	Offered, Served, Answered []int

	calm                     time.Duration
	duringCalls, duringFresh int
}

// load counts calls in bins. Their times must not decrease.
type load struct {
	width   time.Duration
	bins    []int
	current int64
	n, peak int // calls in the current bin, and in the fullest
	total   int
}

func (l *load) add(t time.Duration) {
	bin := int64(t / l.width)
	if bin != l.current {
		l.current, l.n = bin, 0
	}
	l.n++
	l.total++
	l.peak = max(l.peak, l.n)
	if bin >= maxBins {
		return
	}
	for int64(len(l.bins)) <= bin {
		l.bins = append(l.bins, 0)
	}
	l.bins[bin]++
}

func (l *load) peakRate() float64 { return float64(l.peak) / l.width.Seconds() }

// Range is a figure over several seeds.
type Range struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Summary is a storm over several seeds.
type Summary struct {
	PeakOffered   Range `json:"offered_peak_per_s"`
	PeakServed    Range `json:"served_peak_per_s"`
	Amplification Range `json:"outage_amplification"`
	Attempts      Range `json:"attempts"`
	Wasted        Range `json:"wasted_attempts"`
	Lost          Range `json:"lost_messages"`
	Settled       Range `json:"settled_s"`
	OpenCalls     Range `json:"attempts_while_open"`

	// First is the result of the first seed, for a chart.
	First Result `json:"-"`
}

// Summarize plays the storm with n seeds from first on.
func Summarize(ctx context.Context, s Scenario, c Client, first uint64, n int) (Summary, error) {
	if err := errors.Join(s.Validate(), c.Validate(), ValidateSeeds(n), c.Fits(s)); err != nil {
		return Summary{}, err
	}
	var sum Summary
	results := make([]Result, n)
	for i := range results {
		r, err := Simulate(ctx, s, c, first+uint64(i))
		if err != nil {
			return Summary{}, err
		}
		if i == 0 {
			sum.First = r
		}
		r.Offered, r.Served, r.Answered = nil, nil, nil
		results[i] = r
	}
	sum.PeakOffered = across(results, func(r Result) float64 { return r.PeakOffered })
	sum.PeakServed = across(results, func(r Result) float64 { return r.PeakServed })
	sum.Amplification = across(results, func(r Result) float64 { return r.Amplification })
	sum.Attempts = across(results, func(r Result) int { return r.Attempts })
	sum.Wasted = across(results, func(r Result) int { return r.Wasted })
	sum.Lost = across(results, func(r Result) int { return r.Lost })
	sum.Settled = across(results, func(r Result) float64 { return r.Settled.Seconds() })
	sum.OpenCalls = across(results, func(r Result) int { return r.OpenCalls })
	return sum, nil
}

// across returns one figure's range.
func across[N int | float64](results []Result, figure func(Result) N) Range {
	values := make([]float64, len(results))
	for i, r := range results {
		values[i] = float64(figure(r))
	}
	slices.Sort(values)
	mid, last := len(values)/2, len(values)-1
	return Range{Median: (values[mid] + values[last-mid]) / 2, Min: values[0], Max: values[last]}
}
