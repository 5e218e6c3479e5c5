package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/internal/typo"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/storm"
)

// planFlags are the settings of a plan.
type planFlags struct {
	output
	input  storm.PlanInput
	jitter choice
	slo    time.Duration
	hops   *list[storm.Hop]
	budget string
	policy string
}

func newPlan() *cobra.Command {
	f := &planFlags{}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print when a retry policy tries again, and what it costs",
		Long: `Plan prints when each attempt of a message begins that never succeeds: the
earliest and the latest that the policy allows, and percentiles of many draws.

With --slo it says whether the message is given up in time. If the worst case
is later than that, the exit code is 1.

With --policy it shows a policy of the retry service: the file has what POST
/retry-policies takes.

With --hops it says how many calls one message means to the services below, if
every caller on the way tries several times and every attempt fails: the product
of the attempts. A retry budget at each hop bounds that product.`,
		Example: `  redrive plan
  redrive plan --attempts 4 --base 100ms --cap 2s --run 150ms --slo 2s
  redrive plan --attempts 3 --hops sdk=3,database=2
  redrive plan --policy policy.json --run 200ms
  redrive plan --jitter none --base 100ms --cap 30s --attempts 9 --svg plan.svg`,
		Args: noArgs,
	}
	f.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

func (f *planFlags) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	f.jitter = choice{"full", jitters}
	f.hops = newList("", parseHop)
	p := &f.input.Retry

	flags.IntVar(&p.MaxAttempts, "attempts", 10, "runs of a message, the first included")
	flags.DurationVar(&p.Backoff.Base, "base", time.Second, "the first delay, before jitter")
	flags.DurationVar(&p.Backoff.Cap, "cap", 15*time.Minute, "the longest delay")
	flags.DurationVar(&p.Backoff.Floor, "floor", 0, "the shortest delay")
	flags.Float64Var(&p.Backoff.Multiplier, "multiplier", 2, "growth of the delay per attempt; 1 means none")
	flags.DurationVar(&p.Backoff.Step, "step", 0, "let each delay be this much longer than the one before, instead of --multiplier")
	flags.Var(&f.jitter, "jitter", "how a delay is drawn: "+typo.AnyOf(jitters))
	flags.DurationVar(&p.MaxAge, "max-age", 24*time.Hour, "how long after its first failure a message may still be retried")
	flags.StringVar(&f.policy, "policy", "", "instead of all these, a `file` with a policy of the retry service")
	flags.DurationVar(&f.input.Run, "run", 0, "how long each run takes until it fails")
	flags.DurationVar(&f.slo, "slo", 0, "when the message must be done or given up; 0 means never")
	flags.Var(f.hops, "hops", "attempts of the callers below the handler, outermost first: 3,2 or sdk=3,db=2")
	flags.StringVar(&f.budget, "budget", "queue", "retry budget to compare the hops with: "+budgetForms)
	flags.IntVar(&f.input.Samples, "samples", 10_000, "messages to draw the percentiles from")
	flags.Uint64Var(&f.input.Seed, "seed", 1, "seed of the draws")
	f.output.register(flags)
}

func (f *planFlags) run(cmd *cobra.Command) error {
	f.input.Retry.Backoff.Jitter, _ = jitter(f.jitter.value)
	if b := &f.input.Retry.Backoff; b.Step != 0 && !cmd.Flags().Changed("multiplier") {
		b.Multiplier = 0
	}
	if err := f.readPolicy(cmd.Flags()); err != nil {
		return usage(err)
	}
	budget, err := f.check()
	if err != nil {
		return usage(err)
	}
	plan, err := storm.PlanOf(f.input)
	if err != nil {
		return err
	}
	r := newPlanReport(f, plan, budget)
	if err := f.print(cmd.OutOrStdout(), r, r.text); err != nil {
		return err
	}
	if err := f.draw(cmd.ErrOrStderr(), r.chart().Write); err != nil {
		return err
	}
	if r.SLO != nil && !r.SLO.Met {
		return fmt.Errorf("the policy does not keep the SLO of %v: a message may take %s", f.slo, shortDuration(plan.End.Most))
	}
	return nil
}

// readPolicy takes a policy of the retry service, if there is one.
func (f *planFlags) readPolicy(flags *pflag.FlagSet) error {
	if f.policy == "" {
		return nil
	}
	for _, name := range []string{"attempts", "base", "cap", "floor", "multiplier", "step", "jitter", "max-age"} {
		if flags.Changed(name) {
			return fmt.Errorf("--%s: leave it out: %s says it", name, f.policy)
		}
	}
	text, err := os.ReadFile(f.policy)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	p, err := service.ParsePolicy(text)
	if err != nil {
		return fmt.Errorf("--policy: %s: %w", f.policy, err)
	}
	f.input.Retry, f.input.FromStart = p.Retry(), true
	return nil
}

// check returns the budget, or every fault of the flags.
func (f *planFlags) check() (allowance, error) {
	budget, err := parseBudget(f.budget)
	if err != nil {
		err = fmt.Errorf("--budget: %w", err)
	}
	if f.slo < 0 {
		err = errors.Join(err, fmt.Errorf("--slo is %v: use a positive duration, or 0 for none", f.slo))
	}
	return budget, errors.Join(err, f.input.Validate())
}
