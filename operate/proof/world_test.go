package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// world is a real broker with a store: a worker for each lane, which is a topic, in
// this process, and redrive in processes that are killed. Lane 0 is that of redrive
// serve; in each other one commands collect and send.
type world struct {
	*testing.T
	*play
	*operator
	*site
	plan    plan
	kind    string // of the store
	storage storage
	program string
	dir     string

	publisher brokers.Broker
	sent      atomic.Int64
	kills     struct{ collects, sends atomic.Int64 }

	traps  []atomic.Pointer[trap] // by lane
	mu     sync.Mutex
	server *breaktest.Process // redrive serve
}

// trap kills a process when so many letters have arrived in a lane: at best while
// others of their batch are under way.
type trap struct {
	left atomic.Int64
	kill *breaktest.Process
}

// arrive is what a run begins with.
func (w *world) arrive(ctx context.Context, lane int) {
	if t := w.traps[lane].Load(); t != nil && consumer.MetaFrom(ctx).RedriveCount > 0 && t.left.Add(-1) == 0 {
		t.kill.Shoot()
	}
}

func newWorld(t *testing.T, s *site, kind, program string, p plan) *world {
	t.Helper()
	w := &world{T: t, play: &play{scripts: map[string]*script{}}, site: s, plan: p, kind: kind, program: program, dir: t.TempDir()}
	w.traps = make([]atomic.Pointer[trap], 1+p.lanes)
	w.storage = newStorage(t, kind)
	w.configure("serve", 0, 1+p.lanes)
	for lane := 1; lane <= p.lanes; lane++ {
		w.configure(configOf(lane), lane, lane+1)
	}
	all, err := config.Load(w.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := store.Open(t.Context(), w.storage.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	w.operator = &operator{own, serve.Targets(all)}
	t.Cleanup(w.clean)
	return w
}

// Names of what belongs to a lane.
func (w *world) topic(lane int) string    { return fmt.Sprintf("%s-%d", w.tag, lane) }
func (w *world) dead(lane int) string     { return w.topic(lane) + "-dead" }
func (w *world) receipts(lane int) string { return w.topic(lane) + "-receipts" }

func (w *world) config(name string) string { return filepath.Join(w.dir, name+".yaml") }

// configure writes a configuration for lanes. A group of readers is killed alone
// where each lane has one of its own.
func (w *world) configure(name string, from, to int) {
	w.Helper()
	var brokers, topics strings.Builder
	for lane := from; lane < to; lane++ {
		fmt.Fprintf(&brokers, "  lane%d: %s\n", lane, w.entry(fmt.Sprintf("%s-readers-%d", w.tag, lane)))
		fmt.Fprintf(&topics, "  - {name: %s, broker: lane%d, dead: [%s], receipts: %s, collect: %t", w.topic(lane), lane, w.dead(lane), w.receipts(lane), name != "serve" || lane == 0)
		if w.group(lane) != "" {
			fmt.Fprintf(&topics, ", groups: [%s]", w.group(lane))
		}
		fmt.Fprintln(&topics, "}")
	}
	text := fmt.Sprintf("brokers:\n%stopics:\n%sstore: {url: %q}\ncollect: {free_disk: 1%%}\nserve: {listen: \"127.0.0.1:0\"}\n", &brokers, &topics, w.storage.url)
	if err := os.WriteFile(w.config(name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *world) group(lane int) string {
	if w.Product != harness.Kafka {
		return ""
	}
	return fmt.Sprintf("%s-workers-%d", w.tag, lane)
}

// live has everything happen, and returns when nothing is left to do.
func (w *world) live(ctx context.Context) {
	working, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	var topics []string
	for lane := range 1 + w.plan.lanes {
		topics = append(topics, w.topic(lane))
	}
	if err := w.declare(ctx, topics...); err != nil {
		w.Errorf("create the topics: %v", err)
		return
	}
	for lane := range topics {
		workers.Go(func() { w.work(working, lane) })
	}
	var err error
	if w.publisher, err = w.connect(); err != nil {
		w.Error(err)
		return
	}
	defer w.publisher.Close(context.WithoutCancel(ctx))
	if !w.feedAll(ctx) {
		return
	}
	serving, end := context.WithCancel(ctx)
	workers.Go(func() { w.serve(serving) })
	defer end()
	w.until(ctx, func() bool { return w.serving() != nil })
	var lanes sync.WaitGroup
	for lane := range topics {
		lanes.Go(func() { w.lane(ctx, lane) })
	}
	if w.plan.faults && w.storage.fault != nil {
		lanes.Go(func() {
			w.until(ctx, w.half)
			w.storage.fault(ctx, w)
		})
	}
	lanes.Wait()
	w.settle(ctx)
}

// serve keeps redrive serve running, as a supervisor does: it ends when it is killed,
// and when it begins while its store is down.
func (w *world) serve(ctx context.Context) {
	for ctx.Err() == nil {
		p := w.start("serve", "serve")
		w.mu.Lock()
		w.server = p
		w.mu.Unlock()
		select {
		case <-p.Done():
			pause(ctx, 200*time.Millisecond)
		case <-ctx.Done():
			if err := p.Stop(); err != nil {
				w.Errorf("redrive serve: %v\n%s", err, p.Log())
			}
		}
	}
}

// half reports whether half of the kills are done.
func (w *world) half() bool {
	return 2*int(w.kills.collects.Load()+w.kills.sends.Load()) >= w.plan.total()
}

// clean removes what the world leaves on the broker.
func (w *world) clean() {
	var queues []string
	for lane := range 1 + w.plan.lanes {
		queues = append(queues, w.topic(lane), w.dead(lane), w.receipts(lane))
	}
	if err := w.remove(context.Background(), queues...); err != nil {
		w.Errorf("clean up: %v", err)
	}
}

// feedAll has dead letters in every lane, so that all topics are there.
func (w *world) feedAll(ctx context.Context) bool {
	for lane := range 1 + w.plan.lanes {
		if !w.feed(ctx, lane, 1) {
			w.Errorf("nothing died in lane %d", lane)
			return false
		}
	}
	return true
}

// work keeps the worker of a lane running. It ends itself when its broker is gone
// for long.
func (w *world) work(ctx context.Context, lane int) {
	for ctx.Err() == nil {
		b, err := w.connect()
		if err == nil {
			worker := &worker{
				play: w.play, Broker: b, topic: w.topic(lane), receipts: w.receipts(lane), group: w.group(lane),
				dead: "*-dead", work: func(ctx context.Context) { w.arrive(ctx, lane) },
			}
			err = worker.run(ctx)
			_ = b.Close(context.WithoutCancel(ctx))
		}
		if ctx.Err() == nil {
			w.Logf("the worker of lane %d has ended, and another begins: %v", lane, err)
			pause(ctx, time.Second)
		}
	}
}

// feed publishes messages of which n die, a third of all, and returns when they
// have.
func (w *world) feed(ctx context.Context, lane, n int) bool {
	from := len(w.ledger.until())
	var batch []brokers.Message
	for i := range 3 * n {
		s := &script{message: message{id: fmt.Sprintf("%d-%06d", lane, w.sent.Add(1)), topic: w.topic(lane), group: w.group(lane)}, fate: good}
		if i%3 == 0 {
			s.needs = 1
			if rand.IntN(30) == 0 {
				s.needs = 2
			}
			if rand.IntN(10) == 0 {
				s.fate = flaky
			}
		}
		w.add(s)
		batch = append(batch, brokers.Message{ID: s.id, Key: s.id, Body: []byte(s.id)})
	}
	for len(batch) > 0 {
		err := w.publisher.Publish(ctx, w.topic(lane), batch...)
		var again []brokers.Message
		for i, m := range batch {
			if answer(err, i) != nil {
				again = append(again, m)
				continue
			}
			w.ledger.add(event{Kind: sent, ID: m.ID, Topic: w.topic(lane)})
		}
		if batch = again; len(batch) > 0 && !pause(ctx, 200*time.Millisecond) {
			return false
		}
	}
	return w.until(ctx, func() bool { return w.count(from, died, lane) >= n })
}

// count counts events of a lane in the ledger.
func (w *world) count(from int, k kind, lane int) (n int) {
	for _, e := range w.ledger.until()[from:] {
		if e.Kind == k && e.Topic == w.topic(lane) && (k != ran || e.Redrives > 0) {
			n++
		}
	}
	return n
}

// until waits until something is so, and reports whether it is.
func (w *world) until(ctx context.Context, so func() bool) bool {
	for !so() {
		if !pause(ctx, 3*time.Millisecond) {
			return false
		}
	}
	return true
}

// stored is how many letters the store has of a lane; 0 if it does not say.
func (w *world) stored(ctx context.Context, lane int) (n int) {
	stats, err := w.store.Stats(ctx, time.Now())
	if err != nil {
		return 0
	}
	for _, t := range stats.Topics {
		for _, s := range store.States() {
			if t.Topic == w.topic(lane) {
				n += int(t.Counts.Of(s))
			}
		}
	}
	return n
}

func (w *world) serving() *breaktest.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server
}

// start starts redrive with a configuration.
func (w *world) start(name string, args ...string) *breaktest.Process {
	cmd := exec.Command(w.program, args...)
	cmd.Env = append(w.environment(), config.Variable+"="+w.config(name))
	return breaktest.Start(cmd)
}

// kill kills a process that works in a topic, or in all of them if that is empty. It
// reports whether that is how the process has ended.
func (w *world) kill(p *breaktest.Process, topic string) bool {
	killed := p.Kill()
	if killed {
		w.ledger.add(event{Kind: crashed, Topic: topic})
	}
	return killed
}
