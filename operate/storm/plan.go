package storm

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// MaxSamples bounds how many messages a plan is drawn from.
const MaxSamples = 1_000_000

// PlanInput is what a plan is made of.
type PlanInput struct {
	Retry retry.Policy
	Run   time.Duration // how long each run takes until it fails
	// FromStart has MaxAge count from the start of the first run, as the retry service
	// does, and not from its failure.
	FromStart bool
	Samples   int // messages that percentiles are taken from
	Seed      uint64
}

// Spread says how a duration varies from message to message. The percentiles
// are drawn. Least and Most are computed, and no draw can be outside; only how
// soon MaxAge can end a message is the least that was drawn.
type Spread struct {
	Least, P50, P90, P99, Most time.Duration
}

// PlannedAttempt is one run of a message that never succeeds.
type PlannedAttempt struct {
	Number  int
	Reached float64 // share of the messages that get it before MaxAge is over
	Delay   Spread  // between the end of the run before and this one's start
	Start   Spread  // since the start of the first run
}

// Plan is the schedule of one policy.
type Plan struct {
	Attempts []PlannedAttempt
	// End is when a message that never succeeds is given up, since the start of
	// its first run.
	End Spread
	// Ends are the drawn ends, sorted.
	Ends []time.Duration
}

// Validate reports every fault of in at once.
func (in PlanInput) Validate() error {
	return errors.Join(
		spelledOut(in.Retry),
		demand(in.Retry.MaxAge != 0, "max-age", in.Retry.MaxAge, "use more"),
		demand(in.Run >= 0 && in.Run <= maxTime, "run", in.Run, "use 0 to %v", maxTime),
		demand(in.Samples >= 1 && in.Samples <= MaxSamples, "samples", in.Samples, "use 1 to %d", MaxSamples),
	)
}

// PlanOf draws the life of many messages that never succeed, each failure
// decided by retry.Policy.Decide.
func PlanOf(in PlanInput) (Plan, error) {
	if err := in.Validate(); err != nil {
		return Plan{}, err
	}
	attempts, _, age := in.Retry.Limits()
	delays := make([][]time.Duration, attempts)
	starts := make([][]time.Duration, attempts)
	p := Plan{Ends: make([]time.Duration, in.Samples)}
	chance := rand.New(rand.NewPCG(in.Seed, 3))
	for i := range in.Samples {
		p.Ends[i] = in.life(chance, func(attempt int, delay, start time.Duration) {
			delays[attempt-1] = append(delays[attempt-1], delay)
			starts[attempt-1] = append(starts[attempt-1], start)
		})
	}
	bounds := in.bounds(attempts, age)
	for i := range attempts {
		if len(starts[i]) == 0 {
			break // MaxAge is over before
		}
		p.Attempts = append(p.Attempts, PlannedAttempt{
			Number:  i + 1,
			Reached: float64(len(starts[i])) / float64(in.Samples),
			Delay:   spread(delays[i], bounds[i].delay),
			Start:   spread(starts[i], bounds[i].start),
		})
	}
	slices.Sort(p.Ends)
	last := bounds[len(p.Attempts)-1].start.plus(in.Run)
	p.End = spread(p.Ends, span{min(last.least, p.Ends[0]), last.most})
	return p, nil
}

// life draws one message and returns when it is given up.
func (in PlanInput) life(chance *rand.Rand, run func(attempt int, delay, start time.Duration)) time.Duration {
	var start, delay time.Duration
	for attempt := 1; ; attempt++ {
		run(attempt, delay, start)
		end := start + in.Run
		d := in.Retry.Decide(retry.FailedRun{
			Attempt:       attempt,
			FirstFailedAt: clock(in.born()),
			Now:           clock(end),
			Ran:           in.Run,
			PrevDelay:     delay,
			Verdict:       classify.Verdict{Class: classify.ClassTransient},
		}, chance.Float64())
		if !d.Retry {
			return end
		}
		delay = d.Delay
		start = end + delay
	}
}

// born is when MaxAge begins to count.
func (in PlanInput) born() time.Duration {
	if in.FromStart {
		return 0
	}
	return in.Run
}

// span is from the least to the most that can be.
type span struct{ least, most time.Duration }

func (s span) plus(d time.Duration) span { return span{s.least + d, s.most + d} }

type bound struct{ delay, start span }

// bounds returns between what each attempt can start, and the delay before it.
func (in PlanInput) bounds(attempts int, age time.Duration) []bound {
	bounds := make([]bound, attempts)
	b := in.Retry.Backoff
	for i := 1; i < attempts; i++ {
		before := bounds[i-1]
		delay := span{b.Delay(i, before.delay.least, 0), min(b.Delay(i, before.delay.most, 1), age)}
		start := span{before.start.least + delay.least, before.start.most + delay.most}.plus(in.Run)
		start.most = min(start.most, in.born()+age-in.Run) // a run is over when MaxAge is
		bounds[i] = bound{delay, start}
	}
	return bounds
}

func spread(drawn []time.Duration, s span) Spread {
	slices.Sort(drawn)
	at := func(percent int) time.Duration { return drawn[(len(drawn)*percent-1)/100] }
	return Spread{Least: s.least, P50: at(50), P90: at(90), P99: at(99), Most: s.most}
}

// Beyond returns the share of the messages that are given up later than limit.
func (p Plan) Beyond(limit time.Duration) float64 {
	i, _ := slices.BinarySearch(p.Ends, limit+1)
	return float64(len(p.Ends)-i) / float64(len(p.Ends))
}

// Hop is one caller that tries several times.
type Hop struct {
	Name     string
	Attempts int // the first included
}

// HopLoad is what one message means to the callee of a hop when every attempt
// fails.
type HopLoad struct {
	Hop
	// Calls is the product of the attempts of all hops so far.
	Calls float64
	// Budgeted is how many calls a message means at most on average if each hop
	// has a retry budget of the share, besides the floor of the budgets.
	Budgeted float64
}

// Amplification multiplies the attempts of hops, outermost first.
func Amplification(hops []Hop, share float64) []HopLoad {
	loads := make([]HopLoad, len(hops))
	calls, budgeted := 1.0, 1.0
	for i, h := range hops {
		calls *= float64(h.Attempts)
		budgeted *= min(1+share, float64(h.Attempts))
		loads[i] = HopLoad{Hop: h, Calls: calls, Budgeted: budgeted}
	}
	return loads
}
