package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/store"
)

// Runner works on jobs. All fields but Tracer and Logger are required. Its methods may be
// called at the same time.
type Runner struct {
	Store   *store.Store
	Targets Targets

	// Open returns the broker of a name in the configuration. It is called for
	// each batch, so it should return the same one each time. The Runner does not
	// close it.
	Open func(ctx context.Context, broker string) (brokers.Broker, error)

	// Owner names the user who works on a job, such as anna@host. The lease of
	// the job names the process, too.
	Owner string

	// Tracer makes a span of each batch that is sent back. Nil means none.
	Tracer Tracer

	// Logger has a line for each wave, and for what does not work when that begins,
	// every 5 minutes, and when it is over. Default slog.Default().
	Logger *slog.Logger
}

const (
	// leaseLength is how long a job has to wait for another process after a crash.
	leaseLength = 30 * time.Second

	// look is how often a job is looked at: whether it was paused, and what receipts
	// say.
	look = time.Second

	// grace is how long what is under way may take when the work has to stop.
	grace = 10 * time.Second

	// sendTimeout bounds one call to a broker; its outcome is unknown then.
	sendTimeout = 30 * time.Second
)

// errStopped reports a job that does not run, or no longer.
var errStopped = errors.New("the job does not run")

// Run works on a job until it is done, paused or cancelled, and returns it as it
// is then; for a job that does not run, at once. It goes on where whoever worked
// on it before has stopped.
//
// When ctx ends, Run lets the batch under way end, and returns ctx's cause: the
// job keeps running, and waits for somebody to work on it. If another process
// has it, the error is a [store.LeasedError]. Stores and brokers that do not
// answer are waited for; a store that is damaged, or from a newer version, is an
// error.
func (r *Runner) Run(ctx context.Context, id int64) (store.Job, error) {
	j, err := r.Store.Job(ctx, id)
	if err != nil || j.State != store.JobRunning {
		return j, err
	}
	w, err := r.begin(ctx, j)
	if err != nil {
		return j, err
	}
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		w.keep(ctx, work, stop)
	}()
	err = w.loop(ctx, work)
	stop(nil)
	<-kept

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := w.Store.Release(last, w.lease); err != nil {
		w.log.Warn("the lease of the job could not be given up: others wait for its end", "error", err)
	}
	if now, err := w.Store.Job(last, id); err == nil {
		j = now
	}
	return j, err
}

// run is the work of one process on a job.
type run struct {
	*Runner
	log   *slog.Logger
	id    int64
	spec  Spec
	lease store.Lease

	started, first time.Time // see now

	// What of the waves needs no more looking at: see standing.
	from, stage int
	sentAt      time.Time

	unsaved   []store.Outcome // of what was sent
	notBefore time.Time       // when more may be sent

	all    *rate.Limiter
	toEach map[*Target]*rate.Limiter

	store, broker trouble
}

// begin takes the lease.
func (r *Runner) begin(ctx context.Context, j store.Job) (*run, error) {
	spec, err := SpecOf(j)
	if err != nil {
		return nil, err
	}
	log := cmp.Or(r.Logger, slog.Default()).With("job", j.ID)
	w := &run{
		Runner: r, log: log, id: j.ID, spec: spec, from: 1,
		started: time.Now(), first: time.Now(),
		all: limiter(spec.Rate), toEach: map[*Target]*rate.Limiter{},
		store: trouble{log: log, what: "store"}, broker: trouble{log: log, what: "broker"},
	}
	// A run of its own, so that no second one of this process joins in.
	owner := fmt.Sprintf("%s, process %d, run %s", r.Owner, os.Getpid(), rand.Text()[:6])
	w.lease, err = r.Store.Lease(ctx, w.started, j.ID, owner, leaseLength)
	return w, err
}

// now is a time that does not go back, whatever clocks do: neither in this process,
// nor behind what another has written.
func (w *run) now() time.Time { return w.first.Add(time.Since(w.started)) }

// keep renews the lease until work ends. It ends work when another process has
// taken the job, and some time after ctx has ended.
func (w *run) keep(ctx, work context.Context, stop context.CancelCauseFunc) {
	renew := time.NewTicker(leaseLength / 3)
	defer renew.Stop()
	over, ended := (<-chan time.Time)(nil), ctx.Done()
	for {
		select {
		case <-work.Done():
			return
		case <-ended:
			over, ended = time.After(grace), nil
		case <-over:
			stop(context.Cause(ctx))
		case <-renew.C:
			// What else is wrong with the store, the loop finds out.
			if _, err := w.Store.Lease(work, time.Now(), w.id, w.lease.Owner, leaseLength); errors.Is(err, store.ErrLeased) {
				stop(err)
			}
		}
	}
}

// loop takes one step after the other.
func (w *run) loop(ctx, work context.Context) error {
	for ctx.Err() == nil {
		wait, err := w.step(work)
		switch {
		case errors.Is(err, errStopped):
			return nil
		case work.Err() != nil:
			return context.Cause(work)
		case isFinal(err):
			return err
		case err != nil:
			wait = w.store.failed(w.now(), err)
		default:
			w.store.over(w.now())
		}
		sleep(ctx, wait)
	}
	return context.Cause(ctx)
}

func isFinal(err error) bool {
	for _, final := range []error{store.ErrLeased, store.ErrNotFound, store.ErrNewer, store.ErrDamaged} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// step does what is next, and says how long to wait then. Errors are of the store.
func (w *run) step(ctx context.Context) (wait time.Duration, err error) {
	if err := w.save(ctx); err != nil {
		return 0, err
	}
	s, err := w.stand(ctx)
	if err != nil {
		return 0, err
	}
	switch next := s.next(); next.action {
	case doSend:
		if left := w.notBefore.Sub(w.now()); left > 0 {
			return min(left, look), nil
		}
		err = w.send(ctx, s, next.letters)
	case doWave:
		if _, err = w.Store.NextWave(ctx, w.now(), w.lease); err == nil && s.first() {
			w.log.Info("wave passed", "wave", s.current().N, "letters", taken(s.current()), "confirmed", s.current().Confirmed)
		}
	case doPause:
		err = w.pause(ctx, next.note)
	case doFinish:
		err = w.finish(ctx)
	default:
		return look, nil
	}
	if errors.Is(err, store.ErrNotRunning) {
		err = nil // somebody was quicker: see what it is now
	}
	return 0, err
}

// stand finds out how far the job is.
func (w *run) stand(ctx context.Context) (s standing, err error) {
	s = standing{spec: w.spec, stage: w.stage, sentAt: w.sentAt}
	if s.job, err = w.Store.Job(ctx, w.id); err != nil {
		return s, err
	}
	if s.job.State != store.JobRunning {
		return s, errStopped
	}
	if s.waves, err = w.Store.Waves(ctx, w.id, w.from); err != nil {
		return s, err
	}
	s.noteSent()
	if ahead := s.sentAt.Sub(w.now()); ahead > 0 {
		w.first = w.first.Add(ahead)
	}
	s.now = w.now()
	s.dropJudged()
	w.from, w.stage, w.sentAt = s.waves[0].N, s.stage, s.sentAt
	return s, nil
}

// set changes the state of the job. The note says why.
func (w *run) set(ctx context.Context, state store.JobState, note string) error {
	err := w.Store.SetOwnJob(ctx, w.now(), w.lease, store.Actor{Who: w.Owner, Command: "job"}, state, note)
	if err == nil {
		w.log.Info("job "+string(state), "note", note)
	}
	return err
}

// finish gives up on letters of which nobody has heard, and ends the job.
func (w *run) finish(ctx context.Context) error {
	if err := expire(ctx, w.Store, w.now(), w.id, w.now().Add(time.Millisecond)); err != nil {
		return err
	}
	if err := w.notePassed(ctx); err != nil {
		return err
	}
	j, err := w.Store.Job(ctx, w.id)
	if err != nil {
		return err
	}
	return w.set(ctx, store.JobDone, outcome(j))
}

// pause ends the work and pauses the job. The note says why.
func (w *run) pause(ctx context.Context, note string) error {
	if err := w.notePassed(ctx); err != nil {
		return err
	}
	return w.set(ctx, store.JobPaused, note)
}

// notePassed counts letters of the plan that the job could not take.
func (w *run) notePassed(ctx context.Context) error {
	j, err := w.Store.Job(ctx, w.id)
	if err != nil {
		return err
	}
	missing := w.spec.Planned + w.spec.PlannedSkips
	for _, state := range store.States() {
		missing -= j.Tally.Of(state)
	}
	planned := w.spec.PlannedAt
	if planned.IsZero() { // an earlier version created the job
		planned = j.CreatedAt
	}
	return w.Store.NotePassed(ctx, w.lease, planned, missing)
}

// expire gives up on letters of a job that were sent before a time.
func expire(ctx context.Context, s *store.Store, now time.Time, job int64, before time.Time) error {
	for {
		n, err := s.Expire(ctx, now, job, before)
		if err != nil || n == 0 {
			return err
		}
	}
}

// maxCause is how much of an error goes into a note, in bytes.
const maxCause = 256

// noteOf is the note of a job whose letters a broker does not take, whatever
// they are.
func noteOf(to destination, cause error) string {
	return fmt.Sprintf("letters cannot go to %s on %s: %s: mend that first", to.target.Topic, to.target.Broker, text.Line(cause.Error(), maxCause))
}
