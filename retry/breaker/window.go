package breaker

import "time"

const steps = 6

// window counts runs and failures of the last steps × width.
type window struct {
	origin         time.Time // start of step 0
	current        int64     // the step of the latest time
	width          time.Duration
	perStep        [steps]tally
	runs, failures int64
}

type tally struct{ runs, failures int64 }

// add counts one run that ended at now.
func (w *window) add(now time.Time, failed bool) {
	w.advance(now)
	t := &w.perStep[w.current%steps]
	t.runs++
	w.runs++
	if failed {
		t.failures++
		w.failures++
	}
}

// advance drops what is too old. A clock that steps back by more than the
// window takes the counts with it; by less, and nothing moves.
func (w *window) advance(now time.Time) {
	step := int64(now.Sub(w.origin) / w.width)
	if step < w.current-steps {
		w.origin = now.Add(-time.Duration(w.current) * w.width)
		return
	}
	if step-w.current >= steps {
		w.reset(now)
		return
	}
	for w.current < step {
		w.current++
		oldest := &w.perStep[w.current%steps]
		w.runs -= oldest.runs
		w.failures -= oldest.failures
		*oldest = tally{}
	}
}

// reset empties the window, and lets it begin at now.
func (w *window) reset(now time.Time) {
	*w = window{origin: now, width: w.width}
}
