package proof

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/operate/service"
)

// fate is what the API says of a task in the end.
type fate struct {
	TaskID, IdempotencyKey string
	Status                 service.Status
	AttemptNumber          int
	log                    []attempt
}

type attempt struct {
	AttemptNumber, ResponseStatus int
	StartedAt, DurationMs         int64
	ErrorMessage                  string
}

// leaseOver marks an attempt of a worker that died, so that nobody knows its end.
const leaseOver = "lease over"

// verdict is what was found, of all tasks.
type verdict struct {
	mu                sync.Mutex
	lost, unexplained int
	faults            []string
	statuses          map[service.Status]int
	overLeases        int
}

// verify holds what has happened against the promises, after so many lives of the
// tasks that were exhausted: those which came back had another.
func (w *world) verify(ctx context.Context, lives int) {
	w.Helper()
	v := &verdict{statuses: map[service.Status]int{}}
	ids := map[string]bool{}
	next := make(chan *task)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for t := range next {
				v.judge(t, w.fate(ctx, t), w.target.of(t.key), w.target.lettersOf(t.id), lives)
			}
		})
	}
	for _, t := range w.tasks {
		ids[t.id] = true
		next <- t
	}
	close(next)
	readers.Wait()
	stats, err := w.own.Stats(ctx)
	stored := int64(0)
	for _, p := range stats.Policies {
		stored += p.Pending + p.InFlight + p.Succeeded + p.Exhausted + p.Cancelled
	}
	if n := len(w.tasks); err != nil || len(ids) != n || stored != int64(n) {
		w.Errorf("%d keys are %d tasks for their callers, and %d in the store, error %v", n, len(ids), stored, err)
	}
	for _, fault := range v.faults[:min(len(v.faults), 5)] {
		w.Error(fault)
	}
	w.Attr("lost", fmt.Sprint(v.lost))
	w.Attr("unexplained_calls", fmt.Sprint(v.unexplained))
	w.Logf("%d tasks, %d calls, %d kills: %v, %d leases over, lost %d, unexplained_calls %d, %d faults",
		len(w.tasks), w.target.made.Load(), w.kills, v.statuses, v.overLeases, v.lost, v.unexplained, len(v.faults))
}

func (w *world) fate(ctx context.Context, t *task) (f fate) {
	w.must(ctx, http.MethodGet, "/retry-tasks/"+t.id, nil, &f)
	for path := "/retry-tasks/" + t.id + "/attempts"; path != ""; {
		var page struct {
			Attempts   []attempt
			NextCursor string
		}
		w.must(ctx, http.MethodGet, path, nil, &page)
		f.log = append(f.log, page.Attempts...)
		if path = ""; page.NextCursor != "" {
			path = fmt.Sprintf("/retry-tasks/%s/attempts?cursor=%s", t.id, page.NextCursor)
		}
	}
	return f
}

// judge says what is wrong with a task. Whatever a worker does with a task that it has
// claimed, it calls at most once, and leaves one attempt in the log: its own, or that
// of a lease which is over.
func (v *verdict) judge(t *task, f fate, calls []call, letters, lives int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	wrong := func(is bool, format string, args ...any) {
		if is {
			v.faults = append(v.faults, fmt.Sprintf("%s (%s): "+format, append([]any{t.key, t.path}, args...)...)+
				fmt.Sprintf("\n  called %v\n  task %s is %s after %d attempts: %+v", calls, f.TaskID, f.Status, f.AttemptNumber, f.log))
		}
	}
	answered, unknown, succeeded := map[int]int{}, 0, 0
	for i, c := range calls {
		wrong(i > 0 && calls[i-1].status == http.StatusTooManyRequests && c.at.Sub(calls[i-1].at) < time.Second, "call %d does not wait as it was told", i+1)
		if answered[c.status]++; c.status == http.StatusOK {
			succeeded++
		}
		wrong(!t.cancelled.IsZero() && c.at.After(t.cancelled), "it was called %v after it was cancelled", c.at.Sub(t.cancelled))
	}
	silent := !slices.ContainsFunc(f.log, func(a attempt) bool { return !strings.HasPrefix(a.ErrorMessage, leaseOver) })
	for i, a := range f.log {
		wrong(a.AttemptNumber != i+1, "attempt %d is the one of the number %d", i+1, a.AttemptNumber)
		if strings.HasPrefix(a.ErrorMessage, leaseOver) {
			v.overLeases++
		}
		if a.ResponseStatus == 0 {
			unknown++
			continue
		}
		answered[a.ResponseStatus]--
		wrong(answered[a.ResponseStatus] < 0, "the log has %d, which was not answered so often", a.ResponseStatus)
	}
	v.statuses[f.Status]++
	ended := f.Status == service.Succeeded || f.Status == service.Exhausted || f.Status == service.Cancelled
	if !ended || len(calls) == 0 && f.Status != service.Cancelled && !(silent && f.Status == service.Exhausted) {
		v.lost++
		wrong(true, "it is lost")
	}
	if more := len(calls) - len(f.log); more > 0 {
		v.unexplained += more
		wrong(true, "%d calls have no attempt", more)
	}
	wrong(f.IdempotencyKey != t.key || f.TaskID != t.id, "it is the task of another key: %+v", f)
	wrong(len(f.log) > lives*policies[t.policy], "it has more attempts than its policy gives it, in %d lives", lives)
	wrong(!t.cancelled.IsZero() && f.Status != service.Cancelled, "it was cancelled")
	wrong(f.Status == service.Exhausted && letters == 0 || letters > 0 && f.Status != service.Exhausted && lives == 1, "it has %d letters", letters)
	if f.Status == service.Succeeded {
		unknown++ // the one that the service knows of
		wrong(succeeded == 0 || len(f.log) == 0 || f.log[len(f.log)-1].ResponseStatus != http.StatusOK, "nothing says that it succeeded")
	}
	wrong(succeeded > unknown, "it succeeded %d times, and no lost answer explains it", succeeded)
}

// back has all tasks called again that are exhausted, once whatever kept them from
// succeeding is mended.
func (w *world) back(ctx context.Context) {
	w.target.mended.Store(true)
	for _, t := range w.tasks {
		if w.target.lettersOf(t.id) > 0 {
			w.must(ctx, http.MethodPost, "/retry-tasks/"+t.id+"/redrive", nil, nil)
		}
	}
}
