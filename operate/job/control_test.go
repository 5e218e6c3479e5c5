package job_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// TestPauseByHand stops within a second of what another process says, and goes on.
func TestPauseByHand(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(600)
		j := w.create(job.Spec{}, store.Filter{})
		for range 2 {
			p := w.fork(j.ID)
			w.pass(5 * time.Second)
			began := time.Now()
			w.set(j.ID, store.JobPaused)
			if err := p.exit(); err != nil || time.Since(began) > time.Second {
				t.Errorf("Run = %v, %v after the pause", err, time.Since(began))
			}
			before := w.ran()
			w.pass(time.Minute)
			if after := w.ran(); after > before+10 || after == 600 {
				t.Errorf("%d letters ran during the pause, %d in all", after-before, after)
			}
			if j := w.run(j.ID); j.State != store.JobPaused || j.Note != "by hand" {
				t.Errorf("a paused job runs: %s %s", j.State, j.Note)
			}
			w.set(j.ID, store.JobRunning)
		}
		w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 600})
		w.servedOnce()
	})
}

// TestCancel leaves what was not sent as it was, and gives up on what nobody heard
// of when its time is over.
func TestCancel(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(500)
		j := w.create(job.Spec{}, store.Filter{})
		p := w.fork(j.ID)
		w.pass(8 * time.Second)
		w.deaf()
		w.pass(time.Second)
		w.set(j.ID, store.JobCancelled)
		w.must(p.exit())
		ran := w.ran()
		w.pass(time.Minute)
		c := w.count()
		if w.ran() != ran || ran == 500 || c.Sent == 0 || c.Collected != int64(500-ran) || c.Queued+c.Sending+c.Unknown != 0 {
			t.Errorf("%d letters ran, %d after the end: %+v", ran, w.ran()-ran, c)
		}
		if p := w.plan(job.Spec{}, store.Filter{}); p.Letters != int64(500-ran) || p.Other[store.StateSent] != c.Sent {
			t.Errorf("the next job would send %d, and leave %v", p.Letters, p.Other)
		}
		w.pass(5 * time.Minute)
		p2 := w.plan(job.Spec{}, store.Filter{})
		if now := w.count(); now.Unknown != c.Sent || now.Sent != 0 || p2.Letters != int64(500-ran)+c.Sent {
			t.Errorf("after its time there are %+v, and the next job would send %d", now, p2.Letters)
		}
		if warning := fmt.Sprintf("%d letters were sent from here before: they may have been handled", c.Sent); !slices.Contains(p2.Warnings, warning) {
			t.Errorf("the warnings are %q, want %q", p2.Warnings, warning)
		}
	})
}

// TestRedriveLimit sends a letter that always dies three times, and no more.
func TestRedriveLimit(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die(1)
		w.letters(poison)
		for range 3 {
			w.ends(w.run(w.create(job.Spec{}, store.Filter{}).ID), store.JobDone, store.Counts{Returned: 1})
			w.pass(time.Second)
		}
		p := w.plan(job.Spec{}, store.Filter{})
		if p.Letters != 0 || p.Skipped[job.SkipRedriveLimit] != 1 || p.Other[store.StateReturned] != 3 {
			t.Errorf("the plan is %+v", p)
		}
		w.letters(good)
		w.ends(w.run(w.create(job.Spec{Force: true}, store.Filter{}).ID), store.JobDone, store.Counts{Confirmed: 1})
		if w.ran() != 4 {
			t.Errorf("it ran %d times, want 4", w.ran())
		}
	})
}

// TestDeleted goes on without a letter that was deleted while it was sent.
func TestDeleted(t *testing.T) {
	down := true
	fault := func(_ memory.Op, f *memory.Fault) {
		if down {
			f.Err = errors.New("connection refused")
		}
	}
	inWorld(t, fault, func(t *testing.T, w *world) {
		w.die(3)
		w.letters(good)
		j := w.create(job.Spec{}, store.Filter{})
		p := w.fork(j.ID)
		w.pass(time.Minute)
		w.ends(w.job(j.ID), store.JobRunning, store.Counts{Sending: 3})
		if n, err := w.s.Delete(t.Context(), time.Now(), operator, "key"); n != 3 || err != nil {
			t.Errorf("Delete = %d, %v", n, err)
		}
		w.must(p.exit())
		w.ends(w.job(j.ID), store.JobDone, store.Counts{})
	})
}

// TestRateOfTarget is that of the topic, where that is lower.
func TestRateOfTarget(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(60)
		w.letters(good)
		r := w.runner()
		r.Targets = job.Targets{targets[0]}
		r.Targets[0].Rate = 2
		j := w.create(job.Spec{Waves: []int{}}, store.Filter{})
		began := time.Now()
		j, err := r.Run(t.Context(), j.ID)
		w.must(err)
		w.ends(j, store.JobDone, store.Counts{Confirmed: 60})
		if took := time.Since(began); took < 28500*time.Millisecond || took > 31500*time.Millisecond {
			t.Errorf("it took %v, want half a minute", took)
		}
	})
}

// TestConfigurationChanges sends nothing where a configuration does not lead any
// more.
func TestConfigurationChanges(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die(2)
		w.letters(good)
		j := w.create(job.Spec{}, store.Filter{})
		l, err := w.s.Lease(t.Context(), time.Now(), j.ID, "another", time.Second)
		w.must(err)
		_, _, err = w.s.Queue(t.Context(), time.Now(), l, 1, func(store.Letter) string { return "" })
		w.must(err)
		w.must(w.s.Release(t.Context(), l))
		r := w.runner()
		r.Targets = nil
		j, err = r.Run(t.Context(), j.ID)
		w.must(err)
		w.ends(j, store.JobDone, store.Counts{Collected: 1, Skipped: 1})
		if w.ran() != 0 || j.Note != "1 refused by the broker, 1 skipped" {
			t.Errorf("%d letters ran: %s", w.ran(), j.Note)
		}
	})
}

// groups is a broker with consumer groups. It notes what it is given.
type groups struct {
	*memory.Broker
	calls []string
	msgs  []brokers.Message
}

func (g *groups) SendBack(_ context.Context, group, topic string, msgs ...brokers.Item) error {
	for _, m := range msgs {
		g.calls = append(g.calls, fmt.Sprintf("return %s to %s of %s, send %t", m.Message.Body, group, topic, m.Meta.Send != ""))
	}
	return nil
}

func (g *groups) Publish(_ context.Context, topic string, msgs ...brokers.Message) error {
	for _, m := range msgs {
		g.calls = append(g.calls, fmt.Sprintf("publish %s to %s", m.Body, topic))
		g.msgs = append(g.msgs, m)
	}
	return nil
}

// TestGroups gives letters back to the group that gave them up, and to all only if
// somebody says so.
func TestGroups(t *testing.T) {
	targets := job.Targets{{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}, Grouped: true, Groups: []string{"billing", "audit"}}}
	s := openStore(t)
	for i, group := range []string{"billing", "audit", "", "others", "billing"} {
		collect(t, s, dead(1, func(c *store.Collected) {
			c.Entry.Group, c.Entry.Message.Body = group, fmt.Append(nil, i)
			c.Entry.Message.Headers = brokers.Headers{{Name: "tenant", Value: "acme"}, {Name: "redrive-send", Value: "forged"}}
			c.Entry.Meta.IdempotencyKey, c.Entry.Meta.RedriveCount = "key", 1
		}))
	}
	broker := &groups{Broker: memory.New(memory.Options{})}
	r := job.Runner{
		Store: s, Targets: targets, Owner: "anna", Logger: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, name string) (brokers.Broker, error) {
			if name != "rabbit" {
				return nil, errors.New("another broker was asked for")
			}
			return broker, nil
		},
	}
	spec := job.Spec{AllGroups: true, Wait: time.Second}
	j, err := plan(t, s, targets, spec, store.Filter{}).Create(t.Context(), s, time.Now(), operator)
	if err != nil {
		t.Fatal(err)
	}
	if j, err = r.Run(t.Context(), j.ID); err != nil || j.State != store.JobDone || j.Tally.Unknown != 4 || j.Skipped[job.SkipUnknownGroup] != 1 {
		t.Fatalf("Run = %+v, %v", j, err)
	}
	slices.Sort(broker.calls)
	want := []string{
		"publish 2 to orders", "return 0 to billing of orders, send true", "return 1 to audit of orders, send true", "return 4 to billing of orders, send true",
	}
	if !slices.Equal(broker.calls, want) {
		t.Errorf("the broker was asked to %q, want %q", broker.calls, want)
	}
	h := broker.msgs[0].Headers
	if h.Get("tenant") != "acme" || h.Get("redrive-count") != "2" || h.Get("redrive-idempotency-key") != "key" || !strings.HasPrefix(h.Get("redrive-send"), "3.1.") {
		t.Errorf("what all groups see has the headers %v", h)
	}
}

// TestHostileLetters sends what has anything in it, as it is.
func TestHostileLetters(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		body := "\x00\xff\x1b[31m'; drop table letters; --" + strings.Repeat("x", 1<<20)
		e := dlq.Entry{
			Message: brokers.Message{ID: "\x00\xff", Key: "\xfe\n", Topic: "orders", Body: []byte(body), Headers: brokers.Headers{{Name: "\x00", Value: "\xff"}, {Name: "n", Value: strings.Repeat("y", 1<<20)}}},
			Reason:  "poison", DeadAt: time.Now(),
		}
		raw := brokers.Message{ID: "raw", Body: []byte("raw"), Headers: brokers.Headers{{Name: "redrive-count", Value: "-1"}, {Name: "redrive-dlq-v", Value: "x"}}}
		_, err := w.s.Collect(t.Context(), time.Now(), []store.Collected{
			{Broker: "memory", Source: "orders.dead", Format: "redrive", Raw: e.Encode(0), Entry: e},
			{Broker: "memory", Source: "orders.dead", Format: "raw", Raw: raw, Entry: dlq.Entry{Message: raw}},
		})
		w.must(err)
		w.letters(good)
		w.ends(w.run(w.create(job.Spec{}, store.Filter{}).ID), store.JobDone, store.Counts{Confirmed: 2})
		if w.served[body] != 1 {
			t.Errorf("the worker got %.40q", w.runs)
		}
	})
}

// TestServe works on all jobs that run, whoever has created them, and cleans up
// after those that have ended.
func TestServe(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(120)
		ctx, stop := context.WithCancelCause(t.Context())
		served := make(chan error)
		go func() { served <- w.runner().Serve(ctx) }()
		w.pass(time.Second)
		first := w.create(job.Spec{}, store.Filter{IDs: []int64{2, 4, 6}})
		w.pass(2 * time.Second)
		second := w.create(job.Spec{}, store.Filter{})
		broken, err := w.s.CreateJob(t.Context(), time.Now(), operator, store.Filter{}, []byte("no spec"))
		w.must(err)
		w.pass(time.Minute)
		w.ends(w.job(first.ID), store.JobDone, store.Counts{Confirmed: 3})
		w.ends(w.job(second.ID), store.JobDone, store.Counts{Confirmed: 117})
		w.ends(w.job(broken.ID), store.JobRunning, store.Counts{})
		w.set(broken.ID, store.JobCancelled)

		w.die(100)
		w.deaf()
		silent := w.create(job.Spec{}, store.Filter{})
		w.pass(10 * time.Second)
		w.set(silent.ID, store.JobCancelled)
		w.pass(4 * time.Minute)
		w.ends(w.job(silent.ID), store.JobCancelled, store.Counts{Sent: 1})
		w.pass(2 * time.Minute)
		w.ends(w.job(silent.ID), store.JobCancelled, store.Counts{Unknown: 1})

		last := w.create(job.Spec{}, store.Filter{})
		w.pass(3 * time.Second)
		stop(errors.New("the end"))
		if err := <-served; err == nil || err.Error() != "the end" {
			t.Errorf("Serve = %v", err)
		}
		if j := w.job(last.ID); j.State != store.JobRunning || j.Owner != "" || w.doubles() != 1 {
			t.Errorf("the last job is %+v, with %d doubles, want that of the letter nobody heard of", j, w.doubles())
		}
	})
}

// TestLog has a line for what matters, and few where something does not work.
func TestLog(t *testing.T) {
	var down atomic.Bool
	fault := func(_ memory.Op, f *memory.Fault) {
		if down.Load() {
			f.Err = errors.New("connection refused")
		}
	}
	inWorld(t, fault, func(t *testing.T, w *world) {
		w.prove()
		w.die(30)
		var log bytes.Buffer
		r := w.runner()
		r.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "since" || a.Key == "after" {
				return slog.Attr{}
			}
			return a
		}}))
		down.Store(true)
		time.AfterFunc(7*time.Minute, func() { down.Store(false) })
		_, err := r.Run(t.Context(), w.create(job.Spec{}, store.Filter{}).ID)
		w.must(err)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		refused := `level=WARN msg="broker does not work: nothing is lost, and it is tried again" job=2 error="connection refused"`
		want := []string{
			refused, refused, `level=INFO msg="broker works again" job=2`,
			`level=INFO msg="wave passed" job=2 wave=1 letters=1 confirmed=1`, `level=INFO msg="wave passed" job=2 wave=2 letters=5 confirmed=5`,
			`level=INFO msg="job done" job=2 note="30 confirmed"`,
		}
		if !slices.Equal(lines, want) {
			t.Errorf("the log is\n%s\nwant\n%s", log.String(), strings.Join(want, "\n"))
		}
	})
}
