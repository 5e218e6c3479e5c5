package proof

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// operator creates jobs and looks after them, beside the processes that work on
// them.
type operator struct {
	store   *store.Store
	targets job.Targets
}

var actor = store.Actor{Who: "anna", Command: "proof", Reason: "it is mended"}

// create adds a job, and returns its number: 0 if there is nothing to send, or
// nobody would learn what becomes of it.
func (o *operator) create(ctx context.Context, spec job.Spec, f store.Filter) (int64, error) {
	plan, err := job.NewPlan(ctx, o.store, time.Now(), o.targets, spec, f)
	if err != nil {
		return 0, err
	}
	j, err := plan.Create(ctx, o.store, time.Now(), actor)
	if errors.Is(err, job.ErrNothing) || errors.Is(err, job.ErrNoReceipts) {
		return 0, nil
	}
	return j.ID, err
}

// finish resumes what has paused, and creates a job of what is left, by force. It
// reports whether nothing is.
func (o *operator) finish(ctx context.Context) (done bool, err error) {
	running := false
	for page := (store.Page{}); ; {
		list, err := o.store.Jobs(ctx, page)
		if err != nil {
			return false, err
		}
		for _, j := range list.Jobs {
			switch j.State {
			case store.JobRunning:
				running = true
			case store.JobPaused:
				running = true
				if err := o.store.SetJob(ctx, time.Now(), actor, j.ID, store.JobRunning, "in the end"); err != nil {
					return false, err
				}
			}
		}
		if page.After = list.Next; page.After == "" {
			break
		}
	}
	if running {
		return false, nil
	}
	all := job.Spec{Force: true, AllGroups: true, WithoutReceipts: true, Wait: 30 * time.Second}
	id, err := o.create(ctx, all, store.Filter{States: []store.State{store.StateCollected, store.StateSkipped, store.StateUnknown}})
	if id != 0 || err != nil {
		return false, err
	}
	// What a cancelled job was sending is unknown only when its time is over.
	under := store.Filter{States: []store.State{store.StateQueued, store.StateSending, store.StateSent}}
	list, err := o.store.Letters(ctx, under, store.Page{Limit: 1})
	return len(list.Letters) == 0 && err == nil, err
}

// all are the letters of the store.
func (o *operator) all(ctx context.Context) (letters []store.Letter, err error) {
	for page := (store.Page{Limit: 1000}); ; {
		list, err := o.store.Letters(ctx, store.Filter{}, page)
		if err != nil {
			return nil, err
		}
		letters = append(letters, list.Letters...)
		if page.After = list.Next; page.After == "" {
			return letters, nil
		}
	}
}

// record is what there is for the checker in the end, but for snapshots.
func (o *operator) record(p *play) (record, error) {
	r := record{messages: p.messages(), events: p.ledger.until()}
	ctx := context.Background()
	letters, err := o.all(ctx)
	if err != nil {
		return r, err
	}
	for _, l := range letters {
		history, err := o.store.History(ctx, l.ID)
		if err != nil {
			return r, err
		}
		r.letters = append(r.letters, letter{l, history})
	}
	for id := int64(1); ; id++ {
		j, err := o.store.Job(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		spec, err := job.SpecOf(j)
		if err != nil {
			return r, err
		}
		waves, err := o.store.Waves(ctx, id, 1)
		if err != nil {
			return r, err
		}
		r.jobs = append(r.jobs, jobRecord{j, spec, waves})
	}
}

// explain lists what the ledger and the store have of a message.
func (r record) explain(id string) string {
	lines := explain(r.events, id)
	for _, l := range r.letters {
		if l.MessageID != id {
			continue
		}
		lines = append(lines, fmt.Sprintf("\tletter %d, %s: sent back %d times before, dead at %s", l.ID, l.State, l.RedriveCount, l.DeadAt.Format("15:04:05.000")))
		for _, h := range l.history {
			lines = append(lines, fmt.Sprintf("\t\t%s %s -> %s, job %d, %s", h.At.Format("15:04:05.000"), h.From, h.To, h.Job, h.Note))
		}
	}
	for _, j := range r.jobs {
		lines = append(lines, fmt.Sprintf("\tjob %d of %s, ended %s: %s (%s), %d queued of %d sent", j.ID, j.CreatedAt.Format("15:04:05.000"), j.EndedAt.Format("15:04:05.000"), j.State, j.Note, j.Tally.Queued, j.Tally.Sent))
	}
	return strings.Join(lines, "\n")
}

// figures say how much has happened.
func (r record) figures() string {
	count := map[kind]int{}
	tokens, twice, faults := map[string]int{}, 0, 0
	for _, e := range r.events {
		count[e.Kind]++
		if e.Kind == returned {
			if tokens[e.Send]++; tokens[e.Send] > 1 {
				twice++
			}
			if e.Err != "" {
				faults++
			}
		}
	}
	took := r.events[len(r.events)-1].At.Sub(r.events[0].At).Round(time.Second)
	return fmt.Sprintf("%d messages, %d runs, %d deaths, %d letters, %d sends (%d failed, %d again), %d jobs, %d crashes, %d outages, %d pauses, in %v",
		count[sent], count[ran], count[died], len(r.letters), len(tokens), faults, twice, len(r.jobs), count[crashed], count[troubled], count[paused], took)
}
