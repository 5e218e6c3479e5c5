package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// JobState is how far a job is.
type JobState string

// The states of a job. A job that is done or cancelled has ended, and stays so.
const (
	JobRunning   JobState = "running"
	JobPaused    JobState = "paused"
	JobDone      JobState = "done"
	JobCancelled JobState = "cancelled"
)

func jobStates() []JobState { return []JobState{JobRunning, JobPaused, JobDone, JobCancelled} }

func (s JobState) code() int { return slices.Index(jobStates(), s) }

func (s JobState) ended() bool { return s == JobDone || s == JobCancelled }

// ErrNotRunning reports a job that is paused or has ended: nothing was queued or
// claimed.
var ErrNotRunning = errors.New("the job is not running")

// ErrLeased reports a job that another process works on; the error is a
// [LeasedError].
var ErrLeased = errors.New("another process works on the job")

// LeasedError says who has the lease of a job, and until when.
type LeasedError struct {
	Job   int64
	Owner string
	Until time.Time
}

// Error says who has the lease, and until when.
func (e *LeasedError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("job %d: the lease was given up: take it again", e.Job)
	}
	return fmt.Sprintf("job %d: %v: %s has it until %s", e.Job, ErrLeased, e.Owner, e.Until.Format(time.RFC3339))
}

// Unwrap returns ErrLeased.
func (e *LeasedError) Unwrap() error { return ErrLeased }

// Job is a row that says which letters to send, and how far that is. What it
// means is up to who runs it.
type Job struct {
	ID     int64
	Filter Filter // as it was when the job was created; UpTo is always set
	Spec   []byte // what whoever runs it wants to know
	Actor  Actor  // who created it

	State JobState
	Note  string // why it is in this state

	Wave      int // from 1
	WaveSince time.Time

	Tally   Tally            // of all waves
	Skipped map[string]int64 // by reason

	Exhausted bool // Queue has looked at all letters of the filter

	Owner      string    // who has the lease, or had it last
	OwnedUntil time.Time // when it ends

	CreatedAt, ChangedAt, EndedAt time.Time

	act      int64 // that created it
	wave     int64 // the row of Wave
	queuedTo key   // the last letter that Queue has looked at
}

// IsHeld reports whether a process has the lease of the job.
func (j Job) IsHeld(now time.Time) bool { return j.Owner != "" && j.OwnedUntil.After(now) }

// Tally says what became of the letters that a wave took, as they are now, until
// another job takes them. Those that the broker refused, and those that were
// queued when the job ended, are collected.
type Tally struct {
	Counts
	Failed int64 // letters of which a receipt said that they failed at first
}

// JobListing is a page of jobs. See [Listing].
type JobListing struct {
	Jobs []Job
	Next string
}

// CreateJob adds a job that runs. It takes no letters that are collected later.
func (s *Store) CreateJob(ctx context.Context, now time.Time, a Actor, f Filter, spec []byte) (Job, error) {
	return sqldb.Result(ctx, s.write, func(tx conn) (j Job, err error) {
		if err := f.validate(); err != nil {
			return j, err
		}
		if f.UpTo == 0 {
			if f.UpTo, err = tx.last(ctx); err != nil {
				return j, err
			}
		}
		filter, err := f.save()
		if err != nil {
			return j, err
		}
		id, err := tx.next(ctx, "jobs", 1)
		if err != nil {
			return j, err
		}
		act, err := tx.act(ctx, now, a, "create", id)
		if err != nil {
			return j, err
		}
		row := []any{id, filter, notNil(spec), JobRunning.code(), act, 1, now, now}
		if err := tx.Insert(ctx, "jobs", strings.Fields("id filter spec state act wave created_at changed_at"), [][]any{row}); err != nil {
			return j, err
		}
		if err := tx.addWave(ctx, now, id, 1, false); err != nil {
			return j, err
		}
		return tx.job(ctx, id)
	})
}

func (c conn) addWave(ctx context.Context, now time.Time, job int64, n int, resumed bool) error {
	id, err := c.next(ctx, "waves", 1)
	if err != nil {
		return err
	}
	return c.Insert(ctx, "waves", []string{"id", "job", "n", "since", "resumed"}, [][]any{{id, job, n, now, resumed}})
}

// save puts a filter into JSON that holds any bytes.
func (f Filter) save() ([]byte, error) {
	for _, text := range f.texts() {
		*text = saveText(*text)
	}
	if f.Header.Value != nil {
		f.Header.Value = new(saveText(*f.Header.Value))
	}
	return json.Marshal(f)
}

func loadFilter(b []byte) (f Filter, err error) {
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%w (the filter of a job cannot be read: %w)", ErrDamaged, err)
	}
	for _, text := range f.texts() {
		*text = loadText(*text)
	}
	if f.Header.Value != nil {
		f.Header.Value = new(loadText(*f.Header.Value))
	}
	return f, nil
}

func (f *Filter) texts() []*string {
	return []*string{
		&f.Broker, &f.Source, &f.Topic, &f.Group, &f.Reason, &f.Class, &f.Format, &f.Fingerprint, &f.MessageID, &f.Header.Name, &f.Text,
	}
}

// Job returns a job by its number, or [ErrNotFound].
func (s *Store) Job(ctx context.Context, id int64) (Job, error) {
	return sqldb.Result(ctx, s.read, func(tx conn) (Job, error) {
		return tx.job(ctx, id)
	})
}

// Jobs returns all jobs, the latest first.
func (s *Store) Jobs(ctx context.Context, p Page) (list JobListing, err error) {
	err = s.readPage(ctx, p, func(tx conn, from key) error {
		jobs, err := tx.jobs(ctx, "j.id < ? order by j.id desc limit "+strconv.Itoa(p.limit()+1), from.id)
		list.Jobs, list.Next = cut(p, jobs, func(j Job) key { return key{0, j.ID} })
		return err
	})
	return list, err
}

// UnfinishedJobs returns the jobs that have not ended, and those that have while
// letters of theirs are on their way, the latest first. It does not look at the
// others, of which there may be many.
func (s *Store) UnfinishedJobs(ctx context.Context) ([]Job, error) {
	const unfinished = "select id from jobs where ended_at = 0 union select job from waves where sent + sending > 0"
	return sqldb.Result(ctx, s.read, func(tx conn) ([]Job, error) {
		return tx.jobs(ctx, "j.id in ("+unfinished+") order by j.id desc")
	})
}

func (c conn) job(ctx context.Context, id int64) (Job, error) {
	jobs, err := c.jobs(ctx, "j.id = ?", id)
	if err == nil && len(jobs) == 0 {
		return Job{}, fmt.Errorf("job %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Job{}, err
	}
	return jobs[0], nil
}

func (c conn) jobs(ctx context.Context, where string, args ...any) (jobs []Job, err error) {
	query := `select j.id, j.filter, j.spec, a.who, a.command, a.reason, j.state, j.note, j.wave, w.since, j.owner, j.until, j.created_at, j.changed_at, j.ended_at, j.act, w.id, j.at, j.letter
		from jobs j join acts a on a.id = j.act join waves w on w.job = j.id and w.n = j.wave where ` + where
	err = c.Each(ctx, query, args, func(scan func(...any) error) error {
		var j Job
		var filter []byte
		var state int
		err := scan(&j.ID, &filter, &j.Spec, &j.Actor.Who, &j.Actor.Command, &j.Actor.Reason, &state, &j.Note, &j.Wave, sqldb.IntoTime(&j.WaveSince),
			&j.Owner, sqldb.IntoTime(&j.OwnedUntil), sqldb.IntoTime(&j.CreatedAt), sqldb.IntoTime(&j.ChangedAt), sqldb.IntoTime(&j.EndedAt),
			&j.act, &j.wave, &j.queuedTo.at, &j.queuedTo.id)
		if err != nil {
			return err
		}
		j.State, j.Skipped = jobStates()[state], map[string]int64{}
		j.Exhausted = j.queuedTo == queuedAll()
		j.Filter, err = loadFilter(filter)
		jobs = append(jobs, j)
		return err
	})
	if err != nil {
		return nil, err
	}
	return jobs, c.countJobs(ctx, jobs)
}

// countJobs adds what became of the letters.
func (c conn) countJobs(ctx context.Context, jobs []Job) error {
	byID := map[int64]*Job{}
	var list ids
	for i := range jobs {
		byID[jobs[i].ID] = &jobs[i]
		list = append(list, jobs[i].ID)
	}
	sum := "cast(sum(" + strings.ReplaceAll("failed, "+counters(""), ", ", ") as bigint), cast(sum(") + ") as bigint)"
	err := c.Each(ctx, "select job, "+sum+" from waves where job in (?) group by job", []any{list}, func(scan func(...any) error) error {
		var job int64
		var t Tally
		if err := scan(append([]any{&job, &t.Failed}, t.dest()...)...); err != nil {
			return err
		}
		byID[job].Tally = t
		return nil
	})
	if err != nil {
		return err
	}
	return c.Each(ctx, "select job, reason, letters from skips where job in (?)", []any{list}, func(scan func(...any) error) error {
		var job, n int64
		var reason string
		if err := scan(&job, &reason, &n); err != nil {
			return err
		}
		byID[job].Skipped[reason] = n
		return nil
	})
}

// Wave is what became of the letters that a wave of a job took.
type Wave struct {
	N       int // from 1
	Since   time.Time
	Resumed bool      // it began when somebody resumed the job
	SentAt  time.Time // when a broker last confirmed one of its letters; zero if none did

	Tally

	// Failing are the letters that are sending, sent or unknown and of which a
	// receipt said that they failed at first, by the class of that failure.
	Failing map[string]int64
}

// Waves returns the waves of a job from one number on, in order.
func (s *Store) Waves(ctx context.Context, job int64, from int) (waves []Wave, err error) {
	err = s.read(ctx, func(tx conn) error {
		byID := map[int64]int{}
		query := "select id, n, since, resumed, sent_at, failed, " + counters("") + " from waves where job = ? and n >= ? order by n"
		err := tx.Each(ctx, query, []any{job, from}, func(scan func(...any) error) error {
			var id int64
			w := Wave{Failing: map[string]int64{}}
			err := scan(append([]any{&id, &w.N, sqldb.IntoTime(&w.Since), sqldb.IntoBool(&w.Resumed), sqldb.IntoTime(&w.SentAt), &w.Failed}, w.dest()...)...)
			byID[id] = len(waves)
			waves = append(waves, w)
			return err
		})
		if err != nil {
			return err
		}
		// The states are those that the index has.
		query = `select wave, failed_class, count(*) from letters where failed = 1 and state in (2, 3, 5)
			and wave in (select id from waves where job = ? and n >= ?) group by wave, failed_class`
		return tx.Each(ctx, query, []any{job, from}, func(scan func(...any) error) error {
			var id, n int64
			var class string
			if err := scan(&id, &class, &n); err != nil {
				return err
			}
			waves[byID[id]].Failing[class] = n
			return nil
		})
	})
	return waves, err
}

// SetJob pauses, resumes or ends a job, for whoever asks; it needs no lease. From
// then on the job claims nothing, unless it is resumed; when it ends, what it had
// queued is collected again. A job that has ended stays as it is:
// [ErrNotRunning]. One that was paused begins a new wave when it is resumed, so
// that what comes is told from what it was paused for.
func (s *Store) SetJob(ctx context.Context, now time.Time, a Actor, id int64, state JobState, note string) error {
	return s.setJob(ctx, now, a, id, state, note, func(conn) error { return nil })
}

// SetOwnJob is SetJob for whoever has the lease of a job that runs: if another has
// it by now, the error is a [LeasedError].
func (s *Store) SetOwnJob(ctx context.Context, now time.Time, l Lease, a Actor, state JobState, note string) error {
	return s.setJob(ctx, now, a, l.Job, state, note, func(tx conn) error {
		_, err := tx.running(ctx, l)
		return err
	})
}

func (s *Store) setJob(ctx context.Context, now time.Time, a Actor, id int64, state JobState, note string, allowed func(conn) error) error {
	if state.code() < 0 {
		return fmt.Errorf("store: %q is no state of a job: use one of %v", state, jobStates())
	}
	return s.write(ctx, func(tx conn) error {
		if err := allowed(tx); err != nil {
			return err
		}
		j, err := tx.job(ctx, id)
		if err != nil {
			return err
		}
		if j.State.ended() {
			return fmt.Errorf("job %d: %w: it is %s", id, ErrNotRunning, j.State)
		}
		return tx.setJob(ctx, now, a, j, state, note)
	})
}

func (c conn) setJob(ctx context.Context, now time.Time, a Actor, j Job, state JobState, note string) error {
	act, err := c.act(ctx, now, a, string(state), j.ID)
	if err != nil {
		return err
	}
	var ended time.Time
	wave := j.Wave
	switch {
	case state.ended():
		ended = now
		err = c.release(ctx, now, j.ID, act)
	case state == JobRunning && j.State == JobPaused:
		wave++
		err = c.addWave(ctx, now, j.ID, wave, true)
	}
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, "update jobs set state = ?, note = ?, wave = ?, changed_at = ?, ended_at = ? where id = ?", state.code(), short(note, maxText), wave, now, ended, j.ID)
	return err
}

// release collects again what a job has queued.
func (c conn) release(ctx context.Context, now time.Time, job, act int64) error {
	for {
		list, err := c.lettersOf(ctx, job, StateQueued, stepLetters)
		if err != nil || len(list) == 0 {
			return err
		}
		m := move{letters: list, from: []State{StateQueued}, to: StateCollected, act: act, note: "the job ended"}
		if _, err := c.move(ctx, now, m); err != nil {
			return err
		}
	}
}

// lettersOf returns letters that a job has in a state, oldest first.
func (c conn) lettersOf(ctx context.Context, job int64, s State, limit int) (ids, error) {
	return c.Numbers(ctx, "select id from letters where wave > 0 and wave in (select id from waves where job = ?) and state = ? order by at, id limit "+strconv.Itoa(limit), job, s)
}

// Lease is the right to work on a job. It belongs to its owner until another
// takes it after Until: no clock takes it away by itself.
type Lease struct {
	Job   int64
	Owner string // unique to the process
	Until time.Time
}

// Lease takes the lease of a job for d, or makes it last that much longer. If
// another owner has it, the error is a [LeasedError].
func (s *Store) Lease(ctx context.Context, now time.Time, job int64, owner string, d time.Duration) (Lease, error) {
	l := Lease{Job: job, Owner: owner, Until: now.Add(d)}
	if owner == "" || len(owner) > maxText {
		return Lease{}, fmt.Errorf("store: the owner of a lease, %q: use a name of 1 to %d bytes", short(owner, maxText), maxText)
	}
	return l, s.write(ctx, func(tx conn) error {
		j, err := tx.job(ctx, job)
		if err != nil {
			return err
		}
		if j.Owner != owner && j.IsHeld(now) {
			return &LeasedError{job, j.Owner, j.OwnedUntil}
		}
		_, err = tx.Exec(ctx, "update jobs set owner = ?, until = ? where id = ?", owner, l.Until, job)
		return err
	})
}

// Release gives up a lease, so that others need not wait for its end.
func (s *Store) Release(ctx context.Context, l Lease) error {
	return s.write(ctx, func(tx conn) error {
		_, err := tx.Exec(ctx, "update jobs set owner = '', until = 0 where id = ? and owner = ?", l.Job, l.Owner)
		return err
	})
}

// held returns the job of a lease, or a LeasedError if another has it.
func (c conn) held(ctx context.Context, l Lease) (Job, error) {
	j, err := c.job(ctx, l.Job)
	if err == nil && j.Owner != l.Owner {
		return j, &LeasedError{l.Job, j.Owner, j.OwnedUntil}
	}
	return j, err
}

// running is held, and demands that the job runs.
func (c conn) running(ctx context.Context, l Lease) (Job, error) {
	j, err := c.held(ctx, l)
	if err == nil && j.State != JobRunning {
		return j, fmt.Errorf("job %d: %w: it is %s: %s", j.ID, ErrNotRunning, j.State, j.Note)
	}
	return j, err
}

// NextWave begins the next wave of a job: what is queued from now on is in it.
func (s *Store) NextWave(ctx context.Context, now time.Time, l Lease) (int, error) {
	return sqldb.Result(ctx, s.write, func(tx conn) (wave int, err error) {
		j, err := tx.running(ctx, l)
		if err != nil {
			return 0, err
		}
		wave = j.Wave + 1
		if err := tx.addWave(ctx, now, j.ID, wave, false); err != nil {
			return 0, err
		}
		_, err = tx.Exec(ctx, "update jobs set wave = ?, changed_at = ? where id = ?", wave, now, j.ID)
		return wave, err
	})
}
