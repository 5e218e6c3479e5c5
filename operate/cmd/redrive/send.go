package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
	"github.com/redrive-go/redrive/settings"
)

// draftRow is what a job would do.
type draftRow struct {
	// Letters is how many letters it would send.
	Letters int64 `json:"letters"`

	// Bytes is the size of their messages.
	Bytes int64 `json:"bytes"`

	// Oldest is the first death among them.
	Oldest instant `json:"oldest"`

	// Newest is the last death among them.
	Newest instant `json:"newest"`

	// To is where they would go.
	To []destinationRow `json:"to"`

	// Skipped is how many letters it would skip, by reason.
	Skipped map[string]int64 `json:"skipped"`

	// Other is how many letters are in a state in which no job sends them, by state.
	Other map[string]int64 `json:"other"`

	// Rate is the most letters a second.
	Rate float64 `json:"rate"`

	// Waves are the sizes of the waves that go first.
	Waves []int `json:"waves"`

	// Seconds is how long it takes at least, without the waits of the waves.
	Seconds float64 `json:"seconds"`

	// Warnings are what to know before.
	Warnings []string `json:"warnings"`
}

// destinationRow is where letters go.
type destinationRow struct {
	// Broker is the name of the broker in the configuration.
	Broker string `json:"broker"`

	// Topic is the topic or queue.
	Topic string `json:"topic"`

	// Group is the consumer group; empty where there are none, and for all of them.
	Group string `json:"group"`

	// AllGroups says that every group sees them.
	AllGroups bool `json:"all_groups"`

	// Letters is how many go there.
	Letters int64 `json:"letters"`

	// SeenReceipt is when a receipt last came from workers of the topic.
	SeenReceipt instant `json:"seen_receipt"`
}

func newSend(d *desk) *cobra.Command {
	w := &waves{}
	var spec job.Spec
	var detach bool
	run := func(ctx context.Context, o order, f store.Filter) error {
		spec.Waves = w.sizes
		return o.send(ctx, spec, f, detach)
	}
	cmd := newOrder(d, run, &cobra.Command{
		Use:   "send [letter...]",
		Short: "Send letters back to whoever gave them up",
		Long: `Send creates a job that sends letters back to the queue or consumer group that gave
them up, and to nobody else, and works on it until it is done or pauses. More than 20
letters go in waves of 1, 5, 25 and 100, and then the rest. A wave has to be handled,
as receipts of the workers say, before the next one goes; what fails again pauses the
job, and so does silence.

A letter counts as moved when the broker has confirmed it. After a crash some are
sent twice, with the same message ID. Ctrl-C pauses the job, and prints the command
that goes on.

The exit code is 0 if all letters were handled, and 3 if some were not, or if the job
has paused.`,
		Example: `  redrive dlq send --error 3 --dry-run
  redrive dlq send 4711
  redrive dlq send --error 3 --because 'the bank is back' --rate 20
  redrive dlq send --topic orders --detach --yes`,
	})
	registerSpec(cmd.Flags(), &spec, w)
	cmd.Flags().BoolVar(&detach, "detach", false, "leave the job to redrive serve")
	return cmd
}

func registerSpec(flags *pflag.FlagSet, spec *job.Spec, w *waves) {
	flags.Float64Var(&spec.Rate, "rate", 50, "the most `letters` a second; a topic of the configuration may have less")
	flags.Var(w, "waves", "sizes of the waves that go first, such as 1,5,25,100, or none (default 1,5,25,100 for more than 20 letters)")
	flags.DurationVar(&spec.Wait, "wait", 5*time.Minute, "how long to wait for receipts")
	flags.BoolVar(&spec.Force, "force", false, "also send what was sent back 3 times already; needs --because")
	flags.BoolVar(&spec.AllGroups, "all-groups", false, "on Kafka, also send letters that name no consumer group: every group of the topic sees them")
	flags.BoolVar(&spec.WithoutReceipts, "without-receipts", false, "the workers send no receipts: a wave passes if it does not come back within --wait")
}

// waves is a flag with the sizes of waves: nil for the default.
type waves struct{ sizes []int }

const noWaves = "none"

func (w *waves) Type() string { return "sizes" }

func (w *waves) String() string {
	if w.sizes == nil {
		return ""
	}
	if len(w.sizes) == 0 {
		return noWaves
	}
	parts := make([]string, len(w.sizes))
	for i, n := range w.sizes {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ",")
}

func (w *waves) Set(s string) error {
	sizes := []int{}
	if s != noWaves {
		for part := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 || len(sizes) == maxListed {
				return fmt.Errorf("use up to %d sizes, such as 1,5,25,100, or %s", maxListed, noWaves)
			}
			sizes = append(sizes, n)
		}
	}
	w.sizes = sizes
	return nil
}

func (o *order) send(ctx context.Context, spec job.Spec, f store.Filter, detach bool) error {
	plan, err := job.NewPlan(ctx, o.store, time.Now(), serve.Targets(o.cfg), spec, f)
	if _, wrong := errors.AsType[*settings.Error](err); wrong {
		return usage(fmt.Errorf("nothing was done: %w", err))
	}
	if err != nil {
		return err
	}
	if o.c.dryRun {
		return o.showPlan(plan)
	}
	switch err := plan.Check(o.actor); {
	case errors.Is(err, job.ErrNoReason):
		return usage(fmt.Errorf("nothing was done: %w: add --because", err))
	case errors.Is(err, job.ErrNoReceipts):
		return fmt.Errorf("nothing was done: %w: --without-receipts does that", err)
	case err != nil:
		return fmt.Errorf("nothing was done: %w", err)
	}
	for _, warning := range plan.Warnings {
		o.say("Mind that %s.", warning)
	}
	what := fmt.Sprintf("About to send %s%s", count(plan.Letters, "letter"), destinations(plan))
	if !byNumber(f) {
		if err := o.c.ask(ctx, o.Streams, what, int(plan.Letters)); err != nil {
			return err
		}
	}
	j, err := plan.Create(ctx, o.store, time.Now(), o.actor)
	if err != nil {
		return err
	}
	o.say("Job %d sends %s%s", j.ID, count(plan.Letters, "letter"), destinations(plan))
	if detach {
		return o.showJob(j)
	}
	return o.work(ctx, j.ID, plan)
}

// destinations says where the letters of a plan go.
func destinations(p job.Plan) string {
	var places []string
	for _, to := range p.To {
		place := to.Topic
		switch {
		case to.AllGroups:
			place += " for every group"
		case to.Group != "":
			place += " for group " + to.Group
		}
		places = append(places, place)
	}
	if len(places) > 3 {
		return fmt.Sprintf(" to %d places", len(places))
	}
	return " to " + strings.Join(places, ", ")
}

// showJob prints a job as it is now.
func (o *order) showJob(j store.Job) error {
	return showOne(o.Streams, o.v, rowOfJob(j), jobRow.summary)
}

// showPlan prints a dry run.
func (o *order) showPlan(p job.Plan) error {
	row := draftRow{
		Letters: p.Letters, Bytes: p.Bytes, Oldest: instant{p.Oldest}, Newest: instant{p.Newest}, To: []destinationRow{},
		Skipped: p.Skipped, Other: map[string]int64{}, Rate: p.Spec.Rate, Waves: append([]int{}, p.Spec.Waves...),
		Seconds: p.Takes.Seconds(), Warnings: append([]string{}, p.Warnings...),
	}
	for _, to := range p.To {
		row.To = append(row.To, destinationRow{to.Broker, to.Topic, to.Group, to.AllGroups, to.Letters, instant{to.SeenReceipt}})
	}
	for state, n := range p.Other {
		row.Other[string(state)] = n
	}
	return showSheet(o.Streams, o.v, row)
}

// sheet is a dry run for people.
func (r draftRow) sheet() *term.Sheet {
	s := &term.Sheet{}
	s.Title(fmt.Sprintf("This would send %s, %s", count(r.Letters, "letter"), bytesText(r.Bytes)))
	if r.Letters > 0 {
		s.Pair("dead", fmt.Sprintf("from %s to %s", term.ISO(r.Oldest.Time), term.ISO(r.Newest.Time)))
	}
	for _, to := range r.To {
		s.Pair("to "+to.Topic, to.text())
	}
	if r.Letters > 0 {
		sizes := &waves{r.Waves}
		s.Pair("waves", sizes.String())
		took := time.Duration(r.Seconds * float64(time.Second))
		s.Pair("rate", fmt.Sprintf("%s letters a second: it takes %s and the waits of the waves", shortNumber(r.Rate), took))
	}
	for reason, n := range sorted(r.Skipped) {
		s.Pair("skipped", fmt.Sprintf("%d: %s", n, skipText(reason)))
	}
	for state, n := range sorted(r.Other) {
		s.Pair("left alone", fmt.Sprintf("%d: %s", n, state))
	}
	for _, warning := range r.Warnings {
		s.Pair("mind that", warning)
	}
	return s
}

func (to destinationRow) text() string {
	text := count(to.Letters, "letter")
	switch {
	case to.AllGroups:
		text += " for every group"
	case to.Group != "":
		text += " for group " + to.Group
	}
	text += ", broker " + to.Broker
	if to.SeenReceipt.IsZero() {
		return text + ", no receipt ever seen"
	}
	return text + ", a receipt seen at " + term.ISO(to.SeenReceipt.Time)
}

// skipText says what a reason for which a job skips letters means.
func skipText(reason string) string {
	meaning := map[string]string{
		job.SkipStub:         "it stands for a message that is elsewhere",
		job.SkipUnreadable:   "what the broker delivered is no message",
		job.SkipUnknownTopic: "the configuration has no topic to send it to, or several",
		job.SkipWrongSource:  "its topic has dead letters elsewhere, by the configuration",
		job.SkipUnknownGroup: "the configuration does not name its consumer group",
		job.SkipNoGroup:      "it names no consumer group: --all-groups sends it to all",
		job.SkipRedriveLimit: "it was sent back too often: --force sends it once more",
	}[reason]
	if meaning == "" {
		return reason
	}
	return reason + ": " + meaning
}
