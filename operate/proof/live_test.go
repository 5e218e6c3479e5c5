package proof

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
)

var (
	onBrokers = flag.String("broker", "rabbitmq", "real brokers that TestLetters uses, of kafka, rabbitmq and sqs, with commas in between")
	onStores  = flag.String("store", "sqlite", "stores that it uses with each of them, of sqlite and postgres")
	kills     = flag.Int("kills", 0, "how often it kills redrive with each pair of them, with what else breaks meanwhile; 0 for a few, and nothing else")
)

// plan is how often processes of redrive are killed.
type plan struct {
	lanes          int // with commands of their own, beside the one of redrive serve
	collects       int // kills while one collects, in each of them
	sends          int // and while it works on a job
	served, worked int // the same of redrive serve
	faults         bool
}

func newPlan(kills int) plan {
	if kills == 0 {
		return plan{lanes: 1, collects: 2, served: 1}
	}
	const lanes = 4
	served := max(kills/20, 1)
	rest := (kills - 2*served + 2*lanes - 1) / (2 * lanes)
	return plan{lanes: lanes, collects: rest, sends: rest, served: served, worked: served, faults: true}
}

func (p plan) total() int { return p.lanes*(p.collects+p.sends) + p.served + p.worked }

// TestLetters has workers give up messages on real brokers, and the command redrive
// collect them and send them back while it is killed, again and again. Then it
// kills brokers and databases, and fills disks.
func TestLetters(t *testing.T) {
	program := filepath.Join(t.TempDir(), "redrive.exe")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/redrive").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	for product := range strings.SplitSeq(*onBrokers, ",") {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			all := harness.Brokers()
			i := slices.IndexFunc(all, func(b harness.Broker) bool { return string(b.Product) == product && !b.Nightly })
			if i < 0 {
				t.Fatalf("there is no broker %q", product)
			}
			playOn(t, all[i], livetest.Address(t, all[i].Env), program)
		})
	}
}

// limit is for all that happens on a broker.
const limit = 25 * time.Minute

// playOn plays on a broker with all stores at the same time.
func playOn(t *testing.T, broker harness.Broker, url, program string) {
	p := newPlan(*kills)
	var worlds []*world
	for kind := range strings.SplitSeq(*onStores, ",") {
		worlds = append(worlds, newWorld(t, &site{Broker: broker, url: url, tag: tagOf(kind)}, kind, program, p))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	killing, over := context.WithCancel(ctx)
	var playing, killed sync.WaitGroup
	for _, w := range worlds {
		playing.Go(func() { w.live(ctx) })
	}
	if p.faults && broker.Product != harness.SQS { // which forgets everything
		killed.Go(func() { killBroker(killing, t, broker, url, worlds) })
	}
	playing.Wait()
	over()
	killed.Wait()
	for _, w := range worlds {
		w.verify()
	}
}

// killBroker does so when half of the kills are done, in each of the worlds.
func killBroker(ctx context.Context, t *testing.T, broker harness.Broker, url string, worlds []*world) {
	if url != broker.URL() {
		t.Logf("%s is not ours to kill", url)
		return
	}
	h, err := harness.New(ctx, t.Output())
	if err != nil {
		t.Error(err)
		return
	}
	for _, w := range worlds {
		if !w.until(ctx, w.half) {
			return
		}
	}
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	if err := h.Kill(ctx, broker.Name); err != nil {
		t.Errorf("kill the broker: %v", err)
	}
	if err := h.Start(ctx, broker.Name); err != nil {
		t.Errorf("start the broker: %v", err)
	}
	for _, w := range worlds {
		w.ledger.add(event{Kind: troubled, Began: began, Err: "broker"})
	}
}

// storage is where a store is, and how to break it.
type storage struct {
	url   string
	fault func(ctx context.Context, w *world) // nil if there is none
}

func newStorage(t *testing.T, kind string) storage {
	t.Helper()
	switch kind {
	case "sqlite":
		dir := breaktest.SmallDisk(t, "64m")
		if dir == "" {
			return storage{url: filepath.Join(t.TempDir(), "letters.db")}
		}
		return storage{filepath.Join(dir, "letters.db"), func(ctx context.Context, w *world) { fillDisk(ctx, w, dir) }}
	case "postgres":
		server := postgrestest.New(t)
		return storage{server.URL, func(ctx context.Context, w *world) { killPostgres(ctx, w, server) }}
	}
	t.Fatalf("there is no store %q: use sqlite or postgres", kind)
	return storage{}
}

// down is how long a store is.
const down = 3 * time.Second

func killPostgres(ctx context.Context, w *world, server *postgrestest.Server) {
	began := time.Now()
	if err := server.Kill(); err != nil {
		w.Errorf("kill Postgres: %v", err)
	}
	pause(ctx, down)
	if err := server.Restart(); err != nil {
		w.Errorf("start Postgres: %v", err)
	}
	w.ledger.add(event{Kind: troubled, Began: began, Err: "Postgres"})
}

// fillDisk leaves nothing of the disk, until somebody has noticed.
func fillDisk(ctx context.Context, w *world, dir string) {
	began := time.Now()
	free := breaktest.Fill(dir)
	noticed := func() bool { return strings.Contains(w.serving().Log(), "disk") }
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !w.until(within, noticed) {
		w.Errorf("the disk is full, and redrive serve does not say so:\n%s", tail(w.serving().Log()))
	}
	pause(ctx, down)
	if err := free(); err != nil {
		w.Error(err)
	}
	w.ledger.add(event{Kind: troubled, Began: began, Err: "disk"})
}

func tagOf(kind string) string {
	return fmt.Sprintf("letters-%s-%d", kind, time.Now().UnixNano())
}
