package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/store"
)

// Plan is what a job would do: a dry run. It counts letters, and sends none.
type Plan struct {
	At     time.Time    // when the plan was made
	Filter store.Filter // with UpTo: letters collected since are not in it
	Spec   Spec         // with what was unset filled in

	Letters int64 // that would be sent
	Bytes   int64 // store.Letter.Size of these
	To      []Destination

	Skipped map[string]int64      // letters that would be skipped, by reason
	Other   map[store.State]int64 // letters that no job sends in their state

	Oldest, Newest time.Time     // deaths of the letters that would be sent
	Takes          time.Duration // at the rate, at least

	Warnings []string // what to know before, each a sentence
}

// Destination is where letters of a plan go.
type Destination struct {
	Broker, Topic string
	Group         string // empty where there are no groups, and for all of them
	AllGroups     bool

	Letters int64

	// SeenReceipt is when a receipt last came from workers of the topic; zero if
	// none ever did.
	SeenReceipt time.Time
}

// NewPlan looks at all letters that f selects, and says what a job would do with
// them now. Errors name every fault of the spec. Letters of jobs that have ended
// become unknown first, if nobody has heard of them in time.
func NewPlan(ctx context.Context, s *store.Store, now time.Time, targets Targets, spec Spec, f store.Filter) (Plan, error) {
	spec = spec.withDefaults()
	if err := spec.validate(); err != nil {
		return Plan{}, err
	}
	if err := forgetAll(ctx, s, now); err != nil {
		return Plan{}, err
	}
	if f.UpTo == 0 {
		var err error
		if f.UpTo, err = s.Last(ctx); err != nil {
			return Plan{}, err
		}
	}
	parts, err := s.Breakdown(ctx, f)
	if err != nil {
		return Plan{}, err
	}
	d := draft{Plan: Plan{At: now, Filter: f, Skipped: map[string]int64{}, Other: map[store.State]int64{}}, to: map[destination]*Destination{}}
	for _, part := range parts {
		d.add(targets, spec, part)
	}
	d.Spec = spec.withWaves(d.Letters)
	for _, to := range d.to {
		if to.SeenReceipt, err = s.SeenReceipt(ctx, to.Broker, to.Topic); err != nil {
			return Plan{}, err
		}
	}
	return d.finish(), nil
}

// draft is a plan in the making.
type draft struct {
	Plan
	to    map[destination]*Destination
	again int64 // letters that were sent before
}

// add counts the letters of a slice.
func (d *draft) add(targets Targets, spec Spec, s store.Slice) {
	if !store.Sendable(s.State) {
		d.Other[s.State] += s.Letters
		return
	}
	to, skip := targets.route(spec, store.Letter{
		Broker: s.Broker, Source: s.Source, Topic: s.Topic, Group: s.Group, Reason: s.Reason, Format: s.Format,
		Stub: s.Stub, RedriveCount: s.RedriveCount, Sends: s.Sends,
	})
	if skip != "" {
		d.Skipped[skip] += s.Letters
		return
	}
	if d.to[to] == nil {
		d.to[to] = &Destination{Broker: to.target.Broker, Topic: to.target.Topic, Group: to.group, AllGroups: to.all}
	}
	d.to[to].Letters += s.Letters
	d.Letters += s.Letters
	d.Bytes += s.Bytes
	if s.Sends > 0 {
		d.again += s.Letters
	}
	if d.Oldest.IsZero() || s.FirstAt.Before(d.Oldest) {
		d.Oldest = s.FirstAt
	}
	if s.LastAt.After(d.Newest) {
		d.Newest = s.LastAt
	}
}

func (d *draft) finish() Plan {
	takes := float64(d.Letters) / d.Spec.Rate
	ofTarget := map[*Target]int64{}
	for to, count := range d.to {
		d.To = append(d.To, *count)
		ofTarget[to.target] += count.Letters
		takes = max(takes, float64(ofTarget[to.target])/to.target.rate(d.Spec.Rate))
		if to.all {
			d.warn("%d letters to %s name no consumer group: every group sees them, of which the configuration names %s",
				count.Letters, to.target.Topic, cmp.Or(strings.Join(to.target.Groups, ", "), "none"))
		}
	}
	d.Takes = time.Duration(takes * float64(time.Second)).Round(time.Second)
	for t, letters := range ofTarget {
		if t.Ordered {
			d.warn("%d letters to %s, which keeps the order of its keys: what is old now may overwrite a newer state", letters, t.Topic)
		}
	}
	for _, topic := range d.unproven() {
		d.warn("no receipt of a worker of %s was ever seen: whether its letters are handled is not known unless consumer.Config.Receipts is set there, and the receipts are read here", topic)
	}
	if d.Spec.WithoutReceipts && len(d.Spec.Waves) > 0 {
		d.warn("without receipts a wave passes if it does not come back within %v: collect dead letters meanwhile", d.Spec.Wait)
	}
	if d.again > 0 {
		d.warn("%d letters were sent from here before: they may have been handled", d.again)
	}
	slices.Sort(d.Warnings)
	slices.SortFunc(d.To, func(a, b Destination) int {
		return cmp.Or(strings.Compare(a.Broker, b.Broker), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group))
	})
	return d.Plan
}

func (d *draft) warn(format string, args ...any) {
	d.Warnings = append(d.Warnings, fmt.Sprintf(format, args...))
}

// unproven are the topics of whose workers no receipt was ever seen.
func (d *draft) unproven() []string {
	topics := map[string]bool{}
	for _, to := range d.to {
		if to.SeenReceipt.IsZero() {
			topics[to.Topic] = true
		}
	}
	return slices.Sorted(maps.Keys(topics))
}

// Why no job is created.
var (
	ErrNothing    = errors.New("no letter to send")
	ErrNoReceipts = errors.New("no receipt was ever seen")
	ErrNoReason   = errors.New("a job that is forced needs a reason")
)

// Create adds a job that does what a plan says, and runs from now on: a Runner
// takes it up. Nothing is created, and the error says why, if there is nothing to
// send ([ErrNothing]), if a forced job has no reason ([ErrNoReason]), and if
// nobody would learn what becomes of more than 20 letters ([ErrNoReceipts]).
func (p Plan) Create(ctx context.Context, s *store.Store, now time.Time, a store.Actor) (store.Job, error) {
	if err := p.Check(a); err != nil {
		return store.Job{}, err
	}
	p.Spec.Planned, p.Spec.PlannedSkips, p.Spec.PlannedAt = p.Letters, 0, p.At
	for _, n := range p.Skipped {
		p.Spec.PlannedSkips += n
	}
	return s.CreateJob(ctx, now, a, p.Filter, p.Spec.encode())
}

// Check returns why Create would create nothing, or nil.
func (p Plan) Check(a store.Actor) error {
	switch {
	case p.Letters == 0:
		return fmt.Errorf("job: %w%s", ErrNothing, p.instead())
	case p.Spec.Force && strings.TrimSpace(a.Reason) == "":
		return fmt.Errorf("job: %w: say why letters go that were sent back %d times or more already", ErrNoReason, p.Spec.MaxReturns)
	case p.Letters <= small || p.Spec.WithoutReceipts:
		return nil
	}
	for _, to := range p.To {
		if to.SeenReceipt.IsZero() {
			return fmt.Errorf("job: %w from workers of %s, so nobody would see letters fail: set consumer.Config.Receipts there and send up to %d letters first, or send without receipts, where each wave waits for %v",
				ErrNoReceipts, to.Topic, small, p.Spec.Wait)
		}
	}
	return nil
}

// instead says what the letters are that are not sent.
func (p Plan) instead() string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(p.Skipped)) {
		parts = append(parts, fmt.Sprintf("%d skipped as %s", p.Skipped[reason], reason))
	}
	for _, state := range slices.Sorted(maps.Keys(p.Other)) {
		parts = append(parts, fmt.Sprintf("%d %s", p.Other[state], state))
	}
	if len(parts) == 0 {
		return ": none matches"
	}
	return ": of those that match, " + strings.Join(parts, ", ")
}
