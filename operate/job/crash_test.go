package job_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// process is a runner with a store of its own.
type process struct {
	*world
	s     *store.Store
	stop  context.CancelFunc
	ended chan struct{}
	err   error
}

// hooked is a broker that calls sent after each message that it has sent back.
type hooked struct {
	*memory.Broker
	sent func()
}

func (h hooked) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	defer h.sent()
	return h.Broker.SendBack(ctx, group, topic, msgs...)
}

// fork begins to work on a job in a process of its own.
func (w *world) fork(id int64) *process { return w.forkOn(w.broker, id) }

func (w *world) forkOn(broker brokers.Broker, id int64) *process {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	p := &process{world: w, s: w.open(), stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_, p.err = w.runnerOn(p.s, broker).Run(ctx, id)
	}()
	return p
}

// exit waits until a process has ended, and closes its store.
func (p *process) exit() error {
	<-p.ended
	p.stop()
	p.must(p.s.Close())
	return p.err
}

// TestGoesOn finishes what a process has left in any state.
func TestGoesOn(t *testing.T) {
	type lease = store.Lease
	queue := func(w *world, l lease, n int) {
		_, _, err := w.s.Queue(w.t.Context(), time.Now(), l, n, func(store.Letter) string { return "" })
		w.must(err)
	}
	claim := func(w *world, l lease) []store.Sending {
		claimed, err := w.s.Claim(w.t.Context(), time.Now(), l, 10)
		w.must(err)
		return claimed
	}
	for name, leave := range map[string]func(w *world, l lease){
		"leased": func(*world, lease) {},
		"queued": func(w *world, l lease) { queue(w, l, 1) },
		"claimed": func(w *world, l lease) {
			queue(w, l, 1)
			claim(w, l)
		},
		"sent": func(w *world, l lease) {
			queue(w, l, 1)
			c := claim(w, l)[0]
			c.Entry.Meta.Send = c.Token
			w.must(w.broker.SendBack(w.t.Context(), "", "orders", brokers.Item{Message: &c.Entry.Message, Meta: c.Entry.Meta}))
			w.must(w.s.Sent(w.t.Context(), time.Now(), l, []store.Outcome{{Letter: c.ID}}))
		},
		"in the next wave": func(w *world, l lease) {
			_, err := w.s.NextWave(w.t.Context(), time.Now(), l)
			w.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.prove()
				w.die(40)
				j := w.create(job.Spec{}, store.Filter{})
				l, err := w.s.Lease(t.Context(), time.Now(), j.ID, "somebody who crashed", 30*time.Second)
				w.must(err)
				leave(w, l)
				if _, err := w.runner().Run(t.Context(), j.ID); !errors.Is(err, store.ErrLeased) || !strings.Contains(err.Error(), "somebody who crashed") {
					t.Errorf("Run beside the lease: %v", err)
				}
				w.pass(31 * time.Second)
				w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 40})
				w.servedOnce()
			})
		})
	}
}

// TestTwoRunners lets only one of them work.
func TestTwoRunners(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(100)
		j := w.create(job.Spec{}, store.Filter{})
		first := w.fork(j.ID)
		for range 10 {
			w.pass(100 * time.Millisecond)
			if err := w.fork(j.ID).exit(); !errors.Is(err, store.ErrLeased) {
				t.Errorf("the second runner: %v, want ErrLeased", err)
			}
		}
		w.must(first.exit())
		w.ends(w.job(j.ID), store.JobDone, store.Counts{Confirmed: 100})
		w.servedOnce()
	})
}

// TestLeaseIsLost stops a runner whose job another has taken, as happens to a
// process that was frozen.
func TestLeaseIsLost(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.prove()
		w.die(500)
		j := w.create(job.Spec{}, store.Filter{})
		p := w.fork(j.ID)
		w.pass(7 * time.Second)
		_, err := w.s.Lease(t.Context(), time.Now().Add(time.Hour), j.ID, "another", time.Minute)
		w.must(err)
		before := w.ran()
		if err := p.exit(); !errors.Is(err, store.ErrLeased) {
			t.Errorf("the runner without the lease: %v", err)
		}
		w.pass(time.Minute)
		if after := w.ran(); after > before+20 || w.job(j.ID).State != store.JobRunning {
			t.Errorf("%d letters ran after that, and the job is %s", after-before, w.job(j.ID).State)
		}
	})
}

// TestStop lets the batch under way end, and gives the job to whoever comes next.
func TestStop(t *testing.T) {
	slow := func(_ memory.Op, f *memory.Fault) { f.Latency = 2 * time.Second }
	inWorld(t, slow, func(t *testing.T, w *world) {
		w.prove()
		w.die(300)
		j := w.create(job.Spec{}, store.Filter{})
		for range 5 {
			ctx, stop := context.WithTimeoutCause(t.Context(), 7*time.Second, errors.New("interrupted"))
			began := time.Now()
			if _, err := w.runner().Run(ctx, j.ID); err == nil || err.Error() != "interrupted" || time.Since(began) > 9*time.Second {
				t.Errorf("Run = %v after %v", err, time.Since(began))
			}
			stop()
			if c := w.job(j.ID).Tally; c.Sending != 0 || c.Queued != 0 {
				t.Errorf("the batch is left: %+v", c)
			}
		}
		w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 300})
		w.servedOnce()
	})
}

// TestHangingBroker stops in the end, too.
func TestHangingBroker(t *testing.T) {
	hang := func(_ memory.Op, f *memory.Fault) { f.Latency = time.Hour }
	inWorld(t, hang, func(t *testing.T, w *world) {
		w.die(1)
		j := w.create(job.Spec{}, store.Filter{})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if _, err := w.runner().Run(ctx, j.ID); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 12*time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(began))
		}
		w.ends(w.job(j.ID), store.JobRunning, store.Counts{Sending: 1})
	})
}

// TestStoreDown waits for a store that cannot be written, and forgets nothing
// meanwhile that the broker has said.
func TestStoreDown(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die(20)
		w.letters(good)
		w.deaf() // or a receipt could tell the store first
		j := w.create(job.Spec{}, store.Filter{})
		db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(w.url)+"?_pragma=busy_timeout(10000)")
		w.must(err)
		do := func(statement string) {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Error(err)
			}
		}
		var once sync.Once
		p := w.forkOn(hooked{w.broker, func() {
			once.Do(func() {
				do("create trigger down before update on letters begin select raise(abort, 'down'); end")
				time.AfterFunc(10*time.Minute, func() { do("drop trigger down") })
			})
		}}, j.ID)
		w.pass(9 * time.Minute)
		w.ends(w.job(j.ID), store.JobRunning, store.Counts{Sending: 10})
		w.must(p.exit())
		w.ends(w.job(j.ID), store.JobDone, store.Counts{Unknown: 20})
		w.servedOnce()
		w.must(db.Close())
	})
}

// TestClocks goes on with a job whose process had another time.
func TestClocks(t *testing.T) {
	for name, shift := range map[string]time.Duration{"ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.prove()
				w.die(100)
				w.letters(good)
				now := time.Now().Add(shift)
				plan, err := job.NewPlan(t.Context(), w.s, now, targets, job.Spec{}, store.Filter{})
				w.must(err)
				j, err := plan.Create(t.Context(), w.s, now, operator)
				w.must(err)
				l, err := w.s.Lease(t.Context(), now, j.ID, "another", 30*time.Second)
				w.must(err)
				_, _, err = w.s.Queue(t.Context(), now, l, 1, func(store.Letter) string { return "" })
				w.must(err)
				claimed, err := w.s.Claim(t.Context(), now, l, 1)
				w.must(err)
				w.must(w.s.Sent(t.Context(), now, l, []store.Outcome{{Letter: claimed[0].ID}}))
				w.must(w.s.Release(t.Context(), l))

				began := time.Now()
				j = w.run(j.ID) // nobody has sent the first letter in truth
				if took := time.Since(began); j.State != store.JobPaused || took > 6*time.Minute {
					t.Errorf("the job is %s after %v: %s", j.State, took, j.Note)
				}
				w.set(j.ID, store.JobRunning)
				w.ends(w.run(j.ID), store.JobDone, store.Counts{Confirmed: 99, Unknown: 1})
			})
		})
	}
}
