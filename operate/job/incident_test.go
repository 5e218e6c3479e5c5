package job_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// TestAllGood sends back what was mended, at the rate.
func TestAllGood(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(500)
		j := w.create(job.Spec{}, store.Filter{})
		began := time.Now()
		w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 500})
		if took := time.Since(began); took < 10*time.Second || took > 16*time.Second {
			t.Errorf("it took %v, want 10s at the rate, and some for the waves", took)
		}
		w.servedOnce()
		// The runs of one batch, of 10 letters, may begin in any order.
		for i, id := range w.runs {
			var n int
			if _, err := fmt.Sscanf(id, "order-%d", &n); err != nil || n <= i-9 || n > i+10 {
				t.Errorf("run %d is of %s, %v, want the oldest letters first", i+1, id, err)
			}
		}
	})
}

// TestAllPoison stops after the first of 300 letters, and goes on with the others
// when what they failed for is mended.
func TestAllPoison(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(300)
		w.letters(poison)
		j := w.run(w.create(job.Spec{}, store.Filter{}).ID)
		t.Attr("letters_run_before_stop", strconv.Itoa(w.ran()))
		if w.ran() != 1 {
			t.Errorf("%d letters ran before the stop, want 1", w.ran())
		}
		// The receipt of the failure, or the new dead letter, is known first.
		if want := "wave 1 of 1 letter: 1 went wrong (1 returned)"; j.Note != want && j.Note != strings.Replace(want, "returned", "failing", 1) {
			t.Errorf("the note is %q, want %q, or failing", j.Note, want)
		}
		w.pass(time.Minute)
		w.ends(w.job(j.ID), store.JobPaused, store.Counts{Returned: 1})

		w.set(j.ID, store.JobRunning)
		w.ends(w.run(j.ID), store.JobPaused, store.Counts{Returned: 2})

		w.letters(good)
		w.set(j.ID, store.JobRunning)
		w.ends(w.run(j.ID), store.JobDone, store.Counts{Returned: 2, Confirmed: 298})
		if c := w.count(); c.Collected != 2 || w.ran() != 300 {
			t.Errorf("the store has %+v after %d runs, want the 2 that came back", c, w.ran())
		}
	})
}

// TestSilence passes no wave of which nobody says anything.
func TestSilence(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(100)
		w.deaf()
		began := time.Now()
		j := w.run(w.create(job.Spec{}, store.Filter{}).ID)
		w.ends(j, store.JobPaused, store.Counts{Sent: 1})
		if took := time.Since(began); took < 5*time.Minute || took > 6*time.Minute || w.ran() != 1 {
			t.Errorf("it paused after %v and %d letters, want 5m and 1", took, w.ran())
		}
		if !strings.Contains(j.Note, "1 not heard of") {
			t.Errorf("the note is %q", j.Note)
		}
	})
}

// TestForgedReceipts believes none that somebody makes up.
func TestForgedReceipts(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		old := w.sends["order-0"]
		w.die(100)
		w.deaf() // so that nothing true is said meanwhile
		w.letters(poison)
		forge := func(send string) brokers.Message {
			return dlq.Receipt{Send: send, Outcome: "handled", Topic: "orders"}.Message()
		}
		j := w.create(job.Spec{}, store.Filter{})
		done := make(chan store.Job)
		go func() { done <- w.run(j.ID) }()
		w.pass(10 * time.Second)
		forged := []brokers.Message{forge("2.1.AAAAAAAAAAAAAAAAAAAAAA"), forge("2.1."), forge(old), forge("1.2" + old[3:]), {Body: []byte("{}")}, {Body: []byte{0, 0xff}}}
		w.must(w.broker.Publish(t.Context(), "receipts", forged...))
		hearing, stop := context.WithCancel(t.Context())
		w.readReceipts(hearing)
		w.ends(<-done, store.JobPaused, store.Counts{Returned: 1})
		w.pass(time.Second)
		stop()
		// It failed, and was dead; what is of the first letter says nothing new.
		got, want := w.reader.Counts(), job.ReceiptCounts{Believed: 3, Forged: 3, Unreadable: 2}
		if got != want {
			t.Errorf("the receipts are %+v, want %+v", got, want)
		}
		if w.broker.Len("receipts") != 0 {
			t.Error("what is not believed is left in the topic")
		}
	})
}

// TestRefusals stops a job whose letters the broker does not take, and keeps them.
func TestRefusals(t *testing.T) {
	var n int
	refuse := func(_ memory.Op, f *memory.Fault) {
		if n++; n > 6 && n%2 == 0 {
			f.Err = fmt.Errorf("too large today: %w", brokers.ErrRefused)
		}
	}
	inWorld(t, refuse, func(t *testing.T, w *world) {
		w.prove()
		w.die(100)
		j := w.run(w.create(job.Spec{}, store.Filter{}).ID)
		refused := j.Tally.Collected
		if j.State != store.JobPaused || refused < 2 || refused > 15 || !strings.Contains(j.Note, "refused by the broker") {
			t.Errorf("the job is %s (%s), %+v", j.State, j.Note, j.Tally)
		}
		l, err := w.s.Letters(t.Context(), store.Filter{States: []store.State{store.StateCollected}}, store.Page{})
		w.must(err)
		noted := 0
		for _, l := range l.Letters {
			if l.Note == "refused: too large today: the broker refuses the message as it is: it was not stored" {
				noted++
			}
		}
		if int64(noted) != refused {
			t.Errorf("%d letters say that they were refused, want %d", noted, refused)
		}
		w.set(j.ID, store.JobCancelled)
		if c := w.count(); c.Collected+c.Confirmed+c.Sent != 101 {
			t.Errorf("the store has %+v, want all 101", c)
		}
	})
}

// TestUnknownOutcomes sends again, with the token as it was, until the broker has
// confirmed.
func TestUnknownOutcomes(t *testing.T) {
	for name, done := range map[string]bool{"not done": false, "done": true} {
		t.Run(name, func(t *testing.T) {
			lose := func(op memory.Op, f *memory.Fault) {
				if op.Nth == 1 && strings.HasSuffix(op.ID, "7") {
					f.Err, f.Done = brokers.ErrUnknownOutcome, done
				}
			}
			inWorld(t, lose, func(t *testing.T, w *world) {
				w.prove()
				w.die(100)
				w.ends(w.run(w.create(job.Spec{}, store.Filter{}).ID), store.JobDone, store.Counts{Confirmed: 100})
				if d := w.doubles(); d > 10 || !done && d > 0 {
					t.Errorf("%d doubles", d)
				}
			})
		})
	}
}

// TestMisconfiguredBroker asks, since waiting does not help.
func TestMisconfiguredBroker(t *testing.T) {
	broken := false
	fault := func(_ memory.Op, f *memory.Fault) {
		if broken {
			f.Err = fmt.Errorf("%w: the queue is gone", brokers.ErrMisconfigured)
		}
	}
	inWorld(t, fault, func(t *testing.T, w *world) {
		w.prove()
		broken = true
		w.die(3)
		w.letters(good)
		j := w.run(w.create(job.Spec{}, store.Filter{}).ID)
		if j.State != store.JobPaused || !strings.Contains(j.Note, "the queue is gone: mend that first") {
			t.Errorf("the job is %s: %s", j.State, j.Note)
		}
		broken = false
		w.set(j.ID, store.JobRunning)
		w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 3})
	})
}
