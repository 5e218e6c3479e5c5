package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/internal/typo"
	"github.com/redrive-go/redrive/operate/storm"
	"github.com/redrive-go/redrive/retry"
)

// stormFlags are the settings of a storm.
type stormFlags struct {
	output
	preset string

	world    storm.Scenario
	arrivals choice

	policies *list[strategy]
	budgets  *list[allowance]
	breakers *list[string]
	retry    retry.Policy

	seed  uint64
	seeds int
}

func newStorm() *cobra.Command {
	f := &stormFlags{}
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Simulate what retries do to a dependency that fails for a while",
		Long: `Storm plays an outage through in virtual time, with the library's own policy,
budget and breaker, once for each combination of --policy, --budget and
--breaker, over many seeds. It prints the median of each figure, and its range:

  offered/s      calls that the callers make, in the fullest bin
  served/s       calls that the dependency begins, in the fullest bin
  amplification  calls by arrivals, both during the outage
  attempts       all calls
  wasted         attempts that the dependency worked on for a caller who had given up
  lost           messages that ran out of attempts
  settled        how long after the outage the last message was done that had
                 failed or had been held back

A bin is --bin long; the fullest one is given as calls per second.

A preset is nothing but values for the other flags, and a flag of your own
overrides it. There are:

` + presetHelp() + `
What stands before calls (--breaker) is nothing (off), a breaker that opens for
10 s when half of the last 20 calls have failed (classic), that of retry/breaker
(on), or the limit that workers have, up to --concurrency (limit).

All callers act as one process: they share one budget and one breaker. With
--concurrency they are a consumer of a queue, whose other messages wait; without
it, each message is a caller of its own, and comes when it likes.`,
		Example: `  redrive storm
  redrive storm --preset seed
  redrive storm --outage 5s --attempts 10 --policy none,full --svg storm.svg
  redrive storm --preset overload --budget 20%+2/s --output json`,
		Args: noArgs,
	}
	f.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

func (f *stormFlags) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	f.arrivals = choice{"even", []string{"even", "poisson"}}
	f.policies = newList("none,equal,full,decorrelated,gaussian", parseStrategy)
	f.budgets = newList("off", parseBudget)
	f.breakers = newList("off", parseBreaker)

	flags.StringVar(&f.preset, "preset", "", "start from these settings: "+typo.AnyOf(presetNames()))
	flags.Var(f.policies, "policy", "retry policies: no-retry, none (no jitter), equal, full, decorrelated, gaussian")
	flags.Var(f.budgets, "budget", "retry budgets: "+budgetForms)
	flags.Var(f.breakers, "breaker", "what stands before calls: off, classic, on, limit")
	flags.IntVar(&f.retry.MaxAttempts, "attempts", 6, "runs of a message, the first included")
	flags.DurationVar(&f.retry.Backoff.Base, "base", 100*time.Millisecond, "the first delay, before jitter")
	flags.DurationVar(&f.retry.Backoff.Cap, "cap", 15*time.Minute, "the longest delay")
	flags.Float64Var(&f.retry.Backoff.Multiplier, "multiplier", 2, "growth of the delay per attempt")

	flags.IntVar(&f.world.Messages, "messages", 2000, "messages that arrive at --rate")
	flags.Float64Var(&f.world.Rate, "rate", 500, "arrivals per second")
	flags.Var(&f.arrivals, "arrivals", "how they arrive: even or poisson")
	flags.DurationVar(&f.world.Overrun, "overrun", 0, "mean lateness of each even arrival, which adds up")
	flags.IntVar(&f.world.Together, "together", 1000, "further messages, that arrive at the instant the outage begins")
	flags.DurationVar(&f.world.OutageAt, "outage-at", 2*time.Second, "when the outage begins")
	flags.DurationVar(&f.world.Outage, "outage", 200*time.Millisecond, "how long it lasts")
	flags.Float64Var(&f.world.Capacity, "capacity", 0, "calls per second that the dependency begins; 0 means any number")
	flags.DurationVar(&f.world.Service, "service", 5*time.Millisecond, "how long a call takes once it has begun")
	flags.DurationVar(&f.world.Patience, "patience", 0, "how long a caller waits for the answer; 0 means for ever")
	flags.IntVar(&f.world.Concurrency, "concurrency", 0, "calls that may be under way at once; 0 means any number")
	flags.DurationVar(&f.world.Bin, "bin", 50*time.Millisecond, "stretch of time in which calls are counted")

	flags.Uint64Var(&f.seed, "seed", 1, "first seed")
	flags.IntVar(&f.seeds, "seeds", 20, "how many seeds to run")
	f.output.register(flags)
}

func (f *stormFlags) run(cmd *cobra.Command) error {
	p, err := findPreset(f.preset)
	if err != nil {
		return usage(err)
	}
	r := report{Preset: f.preset, Notes: p.notes}
	mine := changed(cmd.Flags())
	for _, v := range p.variants {
		for name, value := range v.settings(p.settings) {
			if !mine[name] {
				// A preset that a flag refuses is a mistake in this program.
				if err := cmd.Flags().Set(name, value); err != nil {
					return fmt.Errorf("preset %s, --%s: %w", f.preset, name, err)
				}
			}
		}
		value := func(name string) string { return cmd.Flags().Lookup(name).Value.String() }
		title := v.titled(p.settings, mine, value)
		if title == "" {
			title = describe(f.world)
		}
		c, err := f.play(cmd.Context(), title)
		if err != nil {
			return err
		}
		if f.preset == "" {
			r.Notes = c.conclusion()
		}
		c.Settings = valuesOf(cmd.Flags())
		r.Cases = append(r.Cases, c)
	}
	if err := f.print(cmd.OutOrStdout(), r, r.text); err != nil {
		return err
	}
	return f.draw(cmd.ErrOrStderr(), r.chart().Write)
}

func changed(flags *pflag.FlagSet) map[string]bool {
	names := map[string]bool{}
	flags.Visit(func(flag *pflag.Flag) { names[flag.Name] = true })
	return names
}

// valuesOf returns what decides the result.
func valuesOf(flags *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	flags.VisitAll(func(flag *pflag.Flag) { values[flag.Name] = flag.Value.String() })
	for _, name := range []string{"preset", "output", "svg", "help"} {
		delete(values, name)
	}
	return values
}

// play runs all combinations in one world.
func (f *stormFlags) play(ctx context.Context, title string) (stormCase, error) {
	f.world.Poisson = f.arrivals.value == "poisson"
	c := stormCase{Title: title, world: f.world}
	for _, p := range f.policies.values {
		for _, b := range f.budgets.values {
			for _, fuse := range f.breakers.values {
				client := storm.Client{Retry: f.retry, Gauss: p.gauss, Budget: b.config, Gate: storm.Gate(fuse)}
				client.Retry.Backoff.Jitter = p.Jitter
				if !p.retry {
					client.Retry.MaxAttempts = 1
				}
				if err := f.check(client); err != nil {
					return c, usage(err)
				}
				sum, err := storm.Summarize(ctx, f.world, client, f.seed, f.seeds)
				if err != nil {
					return c, err
				}
				c.Rows = append(c.Rows, row{Policy: p.name, Budget: b.name, Breaker: fuse, Summary: sum})
			}
		}
	}
	return c, nil
}

// check reports what Summarize would refuse, before any storm is played.
func (f *stormFlags) check(c storm.Client) error {
	return errors.Join(f.world.Validate(), c.Validate(), storm.ValidateSeeds(f.seeds), c.Fits(f.world))
}
