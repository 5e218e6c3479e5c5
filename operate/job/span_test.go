package job_test

import (
	"strings"
	"sync"
	"testing"

	"log/slog"

	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// careless is a Tracer that panics: its methods are those of nil.
type careless struct{ job.Tracer }

// TestTracerThatPanics has nothing change for a letter.
func TestTracerThatPanics(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.letters(func(string) error { return nil })
		w.die(3)
		j := w.create(job.Spec{}, store.Filter{})
		var log text
		runner := w.runner()
		runner.Tracer, runner.Logger = careless{}, slog.New(slog.NewTextHandler(&log, nil))
		j, err := runner.Run(t.Context(), j.ID)
		w.must(err)
		w.ends(j, store.JobDone, store.Counts{Confirmed: 3})
		w.servedOnce()
		if !strings.Contains(log.String(), "Runner.Tracer panicked") {
			t.Errorf("the log says nothing of the Tracer: %s", log.String())
		}
	})
}

// text is a log.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Builder.Write(p)
}
