package job_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// TestAllGood sends back what was mended.
func TestAllGood(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.prove()
		w.die(1000)
		j := w.create(job.Spec{}, store.Filter{})
		began := time.Now()
		j = w.run(j.ID)
		t.Logf("%v %s %+v", time.Since(began), j.Note, j.Tally)
		if j.State != store.JobDone || j.Tally.Confirmed != 1000 || w.doubles() != 0 {
			t.Errorf("the job is %s (%s), %+v, with %d doubles", j.State, j.Note, j.Tally, w.doubles())
		}
	})
}
