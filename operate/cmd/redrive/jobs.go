package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

func newJobs(d *desk) *cobra.Command {
	v, p := &view{}, &paging{}
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List the jobs that send letters back, and show, pause, resume and cancel them",
		Long: `Jobs lists the jobs that send letters back, the latest first. Letters a job has moved
were confirmed by the broker; they are confirmed when a receipt of a worker says that
they were handled, and returned when they are dead again. An idle job has not paused,
but no process works on it: redrive serve or redrive dlq jobs resume will go on with
it.`,
		Example: `  redrive dlq jobs
  redrive dlq jobs show 12`,
	}
	group(cmd, newJobsShow(d), newJobsPause(d), newJobsResume(d), newJobsCancel(d))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		return d.withStore(cmd.Context(), func(_ *config.Config, s *store.Store) error {
			list, err := s.Jobs(cmd.Context(), store.Page{After: p.after, Limit: p.limit})
			if err != nil {
				return err
			}
			rows := make([]jobRow, len(list.Jobs))
			for i, j := range list.Jobs {
				rows[i] = rowOfJob(j)
			}
			if err := show(d.Streams, v, jobTable, all(rows)); err != nil {
				return err
			}
			p.tell(d.Streams, list.Next)
			return nil
		})
	}
	v.register(cmd.Flags())
	p.register(cmd.Flags())
	return cmd
}

// oneJob demands the number of a job.
func oneJob(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("which job? use one number that redrive dlq jobs shows")
	}
	if id, err := strconv.ParseInt(args[0], 10, 64); err != nil || id < 1 {
		return fmt.Errorf("%q is no number of a job: use one that redrive dlq jobs shows", args[0])
	}
	return nil
}

// withJob runs f on the job that args name.
func (d *desk) withJob(ctx context.Context, args []string, f func(*config.Config, *store.Store, store.Job) error) error {
	id, _ := strconv.ParseInt(args[0], 10, 64) // see oneJob
	return d.withStore(ctx, func(c *config.Config, s *store.Store) error {
		j, err := s.Job(ctx, id)
		if err != nil {
			return err
		}
		return f(c, s, j)
	})
}

func newJobsShow(d *desk) *cobra.Command {
	v := &view{}
	cmd := &cobra.Command{
		Use:   "show job",
		Short: "Print all that is known of a job: its waves, and what was not handled",
		Long: `Show prints how far a job is, what became of each of its waves, and why letters were
not handled, as far as that is known.`,
		Example: `  redrive dlq jobs show 12`,
		Args:    oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.withJob(cmd.Context(), args, func(_ *config.Config, s *store.Store, j store.Job) error {
				doc, err := docOfJob(cmd.Context(), s, j.ID)
				if err != nil {
					return err
				}
				return showSheet(d.Streams, v, doc)
			})
		},
	}
	v.register(cmd.Flags())
	return cmd
}

func newJobsPause(d *desk) *cobra.Command {
	return newJobsChange(d, store.JobPaused, &cobra.Command{
		Use:   "pause job",
		Short: "Pause a job: what is on its way arrives, nothing more is sent",
		Long: `Pause has a job send nothing more until redrive dlq jobs resume. What was sent already
is with the workers. Whoever works on the job notices within a second.`,
		Example: `  redrive dlq jobs pause 12 --because 'the bank is slow'`,
	})
}

func newJobsCancel(d *desk) *cobra.Command {
	return newJobsChange(d, store.JobCancelled, &cobra.Command{
		Use:   "cancel job",
		Short: "End a job: what it had not sent stays in the store",
		Long: `Cancel ends a job for good. What it had queued is collected again, for other jobs;
what was sent is not called back. Whoever works on the job notices within a second.`,
		Example: `  redrive dlq jobs cancel 12 --because 'wrong letters'`,
	})
}

func newJobsChange(d *desk, to store.JobState, cmd *cobra.Command) *cobra.Command {
	v, a := &view{}, &author{}
	var dryRun bool
	cmd.Args = oneJob
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return d.withJob(cmd.Context(), args, func(c *config.Config, s *store.Store, j store.Job) error {
			o := order{desk: d, v: v, store: s}
			if dryRun {
				fmt.Fprintf(d.Err, "This would have job %d %s, which is %s\n", j.ID, to, j.State)
				return o.showJob(j)
			}
			actor := a.of(cmd, args)
			note := "by " + actor.Who
			if actor.Reason != "" {
				note += ": " + actor.Reason
			}
			if err := changeJob(cmd.Context(), s, actor, j, to, note); err != nil {
				return err
			}
			j, err := s.Job(cmd.Context(), j.ID)
			if err != nil {
				return err
			}
			return o.showJob(j)
		})
	}
	v.register(cmd.Flags())
	a.register(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return cmd
}

func changeJob(ctx context.Context, s *store.Store, a store.Actor, j store.Job, to store.JobState, note string) error {
	err := s.SetJob(ctx, time.Now(), a, j.ID, to, note)
	if errors.Is(err, store.ErrNotRunning) {
		return fmt.Errorf("nothing was done: job %d is %s: %w", j.ID, j.State, err)
	}
	return err
}

func newJobsResume(d *desk) *cobra.Command {
	v, a := &view{}, &author{}
	var detach, dryRun bool
	cmd := &cobra.Command{
		Use:   "resume job",
		Short: "Go on with a job, or watch the process that works on it",
		Long: `Resume goes on with a job that has paused or is idle, until it is done or pauses
again, as redrive dlq send does. If another process works on the job, resume names
that process and shows the progress. If the process dies, it loses the job within
30 s. Resume waits for this, and then goes on with the job itself.`,
		Example: `  redrive dlq jobs resume 12
  redrive dlq jobs resume 12 --detach --because 'the bank is back'`,
		Args: oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.withJob(cmd.Context(), args, func(c *config.Config, s *store.Store, j store.Job) error {
				o := order{desk: d, v: v, actor: a.of(cmd, args), cfg: c, store: s}
				return o.resumeJob(cmd.Context(), j, detach, dryRun)
			})
		},
	}
	v.register(cmd.Flags())
	a.register(cmd.Flags())
	cmd.Flags().BoolVar(&detach, "detach", false, "leave the job to redrive serve")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return cmd
}

func (o *order) resumeJob(ctx context.Context, j store.Job, detach, dryRun bool) error {
	if j.State == store.JobDone || j.State == store.JobCancelled {
		return fmt.Errorf("nothing was done: job %d is %s: a new one takes what is left", j.ID, j.State)
	}
	spec, err := job.SpecOf(j)
	if err != nil {
		return err
	}
	plan, err := job.NewPlan(ctx, o.store, time.Now(), serve.Targets(o.cfg), spec, j.Filter)
	if err != nil {
		return err
	}
	plan.Letters = spec.Planned // of which it has moved some
	if dryRun {
		fmt.Fprintf(o.Err, "This would go on with job %d, which is %s\n", j.ID, j.State)
		return o.showJob(j)
	}
	if j.State == store.JobPaused {
		if err := changeJob(ctx, o.store, o.actor, j, store.JobRunning, "resumed by "+o.actor.Who); err != nil {
			return err
		}
	}
	if detach {
		if j, err = o.store.Job(ctx, j.ID); err != nil {
			return err
		}
		return o.showJob(j)
	}
	return o.work(ctx, j.ID, plan)
}
