package proof

import (
	"context"
	"errors"
	"flag"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
)

var kills = flag.Int("kills", 0, "how often TestKills kills processes of the service on each of SQLite, and Postgres with Redis, and what else it breaks meanwhile; 0 for a few on SQLite, and nothing else")

const (
	limit = 5 * time.Minute  // for all that happens in a world, but for
	each  = 20 * time.Second // more for each kill
	down  = 3 * time.Second  // how long a server is, or a disk full
)

// TestKills kills processes of the service at random moments, while callers give them
// tasks and targets fail in all ways. Every task must come to an end, and every call
// of a target must be one that the service knows of.
func TestKills(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		if *kills == 0 {
			play(newWorld(t, setup{store: filepath.Join(t.TempDir(), "tasks.db")}, 1), 4)
			return
		}
		dir := breaktest.SmallDisk(t, "64m")
		if dir == "" {
			t.Skip("only root may mount a small disk")
		}
		w := newWorld(t, setup{store: filepath.Join(dir, "tasks.db")}, 1)
		play(w, *kills, func(ctx context.Context) { w.fillDisk(ctx, dir) })
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		if *kills == 0 {
			t.Skip("make service runs this")
		}
		postgres, schedule := postgrestest.New(t), redistest.New(t)
		w := newWorld(t, setup{store: postgres.URL, redis: schedule.Addr}, 2)
		play(w, *kills,
			func(ctx context.Context) { w.restart(ctx, "Postgres", postgres.Kill, postgres.Restart) },
			func(ctx context.Context) { w.restart(ctx, "Redis", schedule.Kill, schedule.Restart) },
			func(ctx context.Context) {
				w.restart(ctx, "Redis", func() error { return hang(ctx, schedule.Addr) }, func() error { return nil })
			})
	})
}

// play kills processes, and breaks things between, with processes and callers at work.
func play(w *world, kills int, faults ...func(context.Context)) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), limit+time.Duration(kills)*each)
	defer cancel()
	w.live(ctx, func(ctx context.Context) {
		part := kills / (len(faults) + 1)
		for _, fault := range faults {
			w.killing(ctx, part)
			w.Logf("%d kills", w.kills)
			var breaking sync.WaitGroup
			breaking.Go(func() { fault(ctx) })
			w.killing(ctx, part/4)
			breaking.Wait()
		}
		w.killing(ctx, kills-w.kills)
		w.settle(ctx)
		w.verify(ctx, 1)
		w.back(ctx)
		w.killing(ctx, 3)
		w.settle(ctx)
		w.verify(ctx, 2)
	})
	if w.kills < kills {
		w.Errorf("%d kills, want %d", w.kills, kills)
	}
}

// restart breaks a server that the service needs, and mends it again.
func (w *world) restart(ctx context.Context, name string, breaks, mends func() error) {
	if err := breaks(); err != nil {
		w.Errorf("break %s: %v", name, err)
	}
	w.feed(ctx, 50)
	pause(ctx, down)
	if err := mends(); err != nil {
		w.Errorf("mend %s: %v", name, err)
	}
}

// fillDisk leaves nothing of the disk, until a process has noticed.
func (w *world) fillDisk(ctx context.Context, dir string) {
	free := breaktest.Fill(dir)
	w.feed(ctx, 50)
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	noticed := func() bool { return w.full.Load() || strings.Contains(w.processes[0].Load().Log(), diskFull) }
	if !until(within, noticed) {
		w.Errorf("the disk is full, and no process says so:\n%s", tail(w.processes[0].Load().Log()))
	}
	pause(ctx, down)
	if err := free(); err != nil {
		w.Error(err)
	}
}

// hang has a Redis answer nobody while it is to be down.
func hang(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	return errors.Join(client.Do(ctx, "client", "pause", down.Milliseconds(), "all").Err(), client.Close())
}
