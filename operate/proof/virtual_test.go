package proof

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

var (
	scenarios = flag.Int("scenarios", 4, "how many scenarios TestScenarios plays")
	firstSeed = flag.Uint64("seed", 1, "seed of the first one; the others follow")
)

// TestScenarios plays scenarios in virtual time, as many at once as there are
// processors.
func TestScenarios(t *testing.T) {
	var next atomic.Int64
	var playing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		playing.Go(func() {
			for n := next.Add(1); n <= int64(*scenarios); n = next.Add(1) {
				playSeed(t, *firstSeed+uint64(n)-1)
			}
		})
	}
	playing.Wait()
}

func playSeed(t *testing.T, seed uint64) {
	var found []violation
	var r record
	synctest.Test(t, func(t *testing.T) {
		r = playVirtual(t, newScenario(seed))
		found = check(r)
	})
	t.Logf("seed %d: %s", seed, r.figures())
	for i, v := range found {
		if i == 5 {
			t.Errorf("seed %d: and %d more", seed, len(found)-i)
			break
		}
		t.Errorf("seed %d: %s\n%s", seed, v, r.explain(v.id))
	}
	if len(found) > 0 {
		t.Errorf("again: make letters SEED=%d SCENARIOS=1; goroutines are scheduled anew each time", seed)
	}
}

const shopConfig = `
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
  events: {kind: kafka, addresses: ["localhost:9092"]}
topics:
  - {name: orders, broker: shop, dead: [orders-dead], receipts: receipts, collect: true}
  - {name: refunds, broker: shop, dead: [refunds-dead], collect: true}
  - {name: payments, broker: events, dead: [payments-dead], receipts: receipts, groups: [billing, audit], collect: true}
store: {url: letters.db}
collect: {free_disk: 1%}
`

var topicsOf = map[string][]string{"shop": {"orders", "refunds"}, "events": {"payments"}}

// virtual is a scenario at work.
type virtual struct {
	*testing.T
	*play
	*scenario
	*operator
	began   time.Time
	url     string
	brokers map[string]*memory.Broker
	config  *config.Config
	working sync.WaitGroup

	shots sync.Mutex
	taken []snapshot
}

// playVirtual plays a scenario until nothing is left to do.
func playVirtual(t *testing.T, s *scenario) record {
	v := &virtual{T: t, play: &play{scripts: map[string]*script{}}, scenario: s, began: time.Now(), brokers: map[string]*memory.Broker{}}
	v.url = filepath.Join(fastDir(t), "letters.db")
	for name := range topicsOf {
		v.brokers[name] = memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault { return s.fault(v.now(), op) }})
		defer v.brokers[name].Close(context.Background())
	}
	// What tools only read has to be there.
	if _, err := v.brokers["shop"].Open(t.Context(), brokers.Subscription{Topics: []string{"refunds"}, DeadLetters: map[string]string{"refunds": "refunds-dead"}}); err != nil {
		t.Fatal(err)
	}
	own, err := store.Open(t.Context(), v.url)
	if err == nil {
		v.config, err = config.Parse("redrive.yaml", []byte(shopConfig))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	v.operator = &operator{own, serve.Targets(v.config)}
	ctx, stop := context.WithCancel(t.Context())
	live, endTraffic := context.WithCancel(ctx)
	v.start(ctx, live)
	v.finale(ctx, endTraffic)
	stop()
	v.working.Wait()
	v.shoot()
	r, err := v.record(v.play)
	if err != nil {
		t.Error(err)
	}
	r.snapshots = v.taken
	return r
}

// fastDir is a folder for a test, in memory if that can be: each commit waits for
// the disk.
func fastDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "redrive-proof-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (v *virtual) now() time.Duration { return time.Since(v.began) }

// at waits for a time of the scenario, and reports whether it came.
func (v *virtual) at(ctx context.Context, t time.Duration) bool { return pause(ctx, t-v.now()) }

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// start starts all that happens by itself, and live traffic until live ends.
func (v *virtual) start(ctx, live context.Context) {
	for n, life := range v.lives {
		work := v.serve
		switch n {
		case len(v.lives) - 2:
			work = v.worker("shop", "orders", "")
		case len(v.lives) - 1:
			work = v.worker("events", "payments", "billing")
		}
		v.working.Go(func() { v.supervise(ctx, n, life, work) })
	}
	for _, s := range v.sends {
		s.script.mended = v.began.Add(s.mended)
		v.working.Go(func() {
			if v.at(ctx, s.at) {
				v.send(ctx, &s.script)
			}
		})
	}
	for _, s := range v.letters {
		v.working.Go(func() {
			if v.at(ctx, s.at) {
				v.die(ctx, s)
			}
		})
	}
	for _, o := range v.orders {
		v.working.Go(func() {
			if v.at(ctx, o.at) {
				v.place(ctx, o)
			}
		})
	}
	v.working.Go(func() { v.traffic(live) })
	v.working.Go(func() { v.forge(ctx) })
	v.working.Go(func() { v.breakStore(ctx) })
}

func brokerOf(topic string) string {
	if strings.HasPrefix(topic, "payments") {
		return "events"
	}
	return "shop"
}

func (v *virtual) send(ctx context.Context, s *script) {
	v.add(s)
	for v.brokers[brokerOf(s.topic)].Publish(ctx, s.topic, brokers.Message{ID: s.id, Body: []byte(s.id)}) != nil {
		if !pause(ctx, time.Second) {
			return
		}
	}
	v.ledger.add(event{Kind: sent, ID: s.id, Topic: s.topic})
}

func (v *virtual) die(ctx context.Context, s stranger) {
	v.add(&s.script)
	for v.brokers[brokerOf(s.topic)].Publish(ctx, s.topic, s.letter) != nil {
		if !pause(ctx, time.Second) {
			return
		}
	}
	entry, _ := dlq.Decode(s.letter) // nothing is known of one that is none
	v.ledger.add(deathEvent(s.letter, entry))
}

// traffic is live, and always goes well.
func (v *virtual) traffic(ctx context.Context) {
	for n := 0; pause(ctx, time.Second/2); n++ {
		topic := []string{"orders", "payments"}[n%2]
		m := message{id: fmt.Sprint("live-", n), topic: topic}
		if topic == "payments" {
			m.group = "billing"
		}
		v.send(ctx, &script{message: m, fate: good})
	}
}

// forge publishes receipts of sends that never were, or are over.
func (v *virtual) forge(ctx context.Context) {
	d := dice{rand.New(rand.NewPCG(v.seed, 1))}
	for pause(ctx, d.between(time.Second, 20*time.Second)) {
		letter := 1 + d.IntN(len(v.sends)+len(v.letters))
		r := dlq.Receipt{Send: fmt.Sprintf("%d.%d.AAAAAAAAAAAAAAAAAAAAAA", letter, 1+d.IntN(3)), Outcome: pick(d, "failed", "handled", "dead")}
		for _, e := range v.ledger.until() {
			if e.Kind == ran && e.Send != "" && e.Err == "" && d.chance(0.1) {
				r.Send, r.Outcome = e.Send, "handled" // as it said itself
			}
		}
		_ = v.brokers[pick(d, "shop", "events")].Publish(ctx, "receipts", r.Message())
	}
}

// breakStore has the store take nothing for some time.
func (v *virtual) breakStore(ctx context.Context) {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(v.url)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		v.Error(err)
		return
	}
	defer db.Close()
	for _, w := range v.outages {
		if !v.at(ctx, w.from) {
			return
		}
		began := time.Now()
		for _, on := range []string{"insert on letters", "update on letters", "insert on room", "update on jobs", "insert on acts", "insert on waves"} {
			v.do(db, fmt.Sprintf("create trigger if not exists %q before %[1]s begin select raise(abort, 'the disk is full'); end", on))
		}
		v.at(ctx, w.to)
		for _, on := range []string{"insert on letters", "update on letters", "insert on room", "update on jobs", "insert on acts", "insert on waves"} {
			v.do(db, fmt.Sprintf("drop trigger if exists %q", on))
		}
		v.ledger.add(event{Kind: troubled, Began: began, Err: "store"})
	}
}

func (v *virtual) do(db *sql.DB, statement string) {
	if _, err := db.Exec(statement); err != nil {
		v.Error(err)
	}
}

// place creates a job, and looks after it.
func (v *virtual) place(ctx context.Context, o order) {
	for try := 0; try < 20; try++ {
		id, err := v.create(ctx, o.spec, o.filter)
		if err == nil && id != 0 {
			v.attend(ctx, id, o.patient)
			return
		}
		if !pause(ctx, 15*time.Second) { // there is nothing to send, or the store is down
			return
		}
	}
}

// attend resumes a job that pauses, or cancels it.
func (v *virtual) attend(ctx context.Context, id int64, patient bool) {
	state := store.JobRunning
	if !patient {
		state = store.JobCancelled
	}
	for pause(ctx, 30*time.Second) {
		if j, err := v.store.Job(ctx, id); err == nil && j.State == store.JobPaused {
			_ = v.store.SetJob(ctx, time.Now(), actor, id, state, "by hand") // again in a while
		}
	}
}

// finale has every letter sent back that can be, when nothing fails any more, and
// then ends the live traffic.
func (v *virtual) finale(ctx context.Context, endTraffic func()) {
	v.at(ctx, calm)
	quiet := false
	for v.now() < calm+2*time.Hour {
		if !pause(ctx, 20*time.Second) {
			return
		}
		done, err := v.finish(ctx)
		if err != nil {
			v.Errorf("seed %d: %v", v.seed, err)
			return
		}
		switch live, others := v.left(); {
		case !done || others > 0:
		case live == 0 && quiet:
			return
		default:
			endTraffic()
			quiet = true
		}
	}
	v.Errorf("seed %d: it has no end", v.seed)
}

// left counts the messages in the brokers.
func (v *virtual) left() (live, others int) {
	s := v.look()
	for id := range s.queued {
		if strings.HasPrefix(id, "live-") {
			live++
		} else {
			others++
		}
	}
	return live, others + len(s.dead)
}

// look finds out where everything is, in the order in which it moves.
func (v *virtual) look() snapshot {
	s := snapshot{before: v.ledger.until(), queued: map[string]bool{}, dead: map[death]int{}}
	for name, topics := range topicsOf {
		for _, topic := range topics {
			for _, m := range v.brokers[name].Messages(topic) {
				s.queued[m.ID] = true
			}
			for _, m := range v.brokers[name].Messages(topic + "-dead") {
				e, _ := dlq.Decode(m) // one that is none has no time of death
				s.dead[deathOf(m.ID, e.DeadAt)]++
			}
		}
	}
	var err error
	if s.stored, err = v.all(context.Background()); err != nil {
		v.Error(err)
	}
	s.after = v.ledger.until()
	return s
}

// shoot keeps where everything is for the checker.
func (v *virtual) shoot() {
	s := v.look()
	v.shots.Lock()
	defer v.shots.Unlock()
	v.taken = append(v.taken, s)
}
