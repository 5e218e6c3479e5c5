package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/store"
)

// letters is how many die each time.
const letters = 60

// lane has letters die, has them collected and sent back, and kills whoever does
// so, as often as planned.
func (w *world) lane(ctx context.Context, lane int) {
	collects, sends := w.plan.collects, w.plan.sends
	if lane == 0 {
		collects, sends = w.plan.served, w.plan.worked
	}
	for ctx.Err() == nil && (collects > 0 || sends > 0) {
		before := w.stored(ctx, lane)
		if !w.feed(ctx, lane, letters) {
			return
		}
		if collects > 0 && w.killCollecting(ctx, lane, before+rand.IntN(letters)) {
			w.kills.collects.Add(1)
			collects--
		}
		w.collect(ctx, lane)
		if sends > 0 && w.killSending(ctx, lane, 1+rand.IntN(letters/2)) {
			w.kills.sends.Add(1)
			sends--
		}
	}
}

// patience is how long a process has until it is killed whatever it does: a job may
// have paused.
const patience = 2 * time.Minute

// moment waits for a moment, in which a process does what it does after it has done
// something else.
func moment(ctx context.Context) { pause(ctx, time.Duration(rand.Int64N(int64(20*time.Millisecond)))) }

// killCollecting kills who collects in a lane when the store has so many letters.
func (w *world) killCollecting(ctx context.Context, lane, n int) bool {
	p := w.serving()
	if lane > 0 {
		p = w.start(configOf(lane), "dlq", "collect", w.topic(lane))
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.until(within, func() bool { return p.Ended() || w.stored(ctx, lane) >= n })
	moment(ctx)
	return w.end(ctx, lane, p)
}

// end kills a process, after which another serves if it is that one.
func (w *world) end(ctx context.Context, lane int, p *breaktest.Process) bool {
	topic := w.topic(lane)
	if lane == 0 {
		topic = "" // it serves all
	}
	killed := w.kill(p, topic)
	if lane == 0 {
		w.until(ctx, func() bool { return w.serving() != p })
	}
	if !killed {
		w.Logf("lane %d: redrive ended before it was killed: %v\n%s", lane, p.Err(), tail(p.Log()))
	}
	return killed
}

// collect has what is left in a lane collected, if there is anything, and if that
// can be.
func (w *world) collect(ctx context.Context, lane int) {
	if lane > 0 && w.stored(ctx, lane) < w.count(0, died, lane) {
		w.call(ctx, lane, "dlq", "collect", w.topic(lane))
	}
}

// call waits for a command in a lane that nobody kills. Stores and brokers may be
// down.
func (w *world) call(ctx context.Context, lane int, args ...string) *breaktest.Process {
	p := w.start(configOf(lane), args...)
	select {
	case <-p.Done():
	case <-ctx.Done():
		w.kill(p, w.topic(lane))
	}
	return p
}

func configOf(lane int) string {
	if lane == 0 {
		return "serve"
	}
	return fmt.Sprint(lane)
}

// killSending kills who sends the letters of a lane when so many have arrived.
func (w *world) killSending(ctx context.Context, lane, n int) bool {
	from := len(w.ledger.until())
	args := []string{"dlq", "send", "--topic", w.topic(lane), "--yes", "--because", "it is mended", "--wait", "20s",
		"--rate", fmt.Sprint(100 << rand.IntN(3))}
	if rand.IntN(2) == 0 || w.count(0, ran, lane) == 0 { // or no receipt was ever seen
		args = append(args, "--without-receipts")
	}
	if rand.IntN(2) == 0 {
		args = append(args, "--waves", "none")
	}
	p := w.serving()
	if lane > 0 {
		p = w.start(configOf(lane), args...)
	} else if order := w.call(ctx, lane, append(args, "--detach")...); order.Err() != nil {
		w.Logf("lane 0: nothing is sent: %v\n%s", order.Err(), tail(order.Log()))
		return false
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if rand.IntN(3) > 0 {
		t := &trap{kill: p}
		t.left.Store(int64(n))
		w.traps[lane].Store(t)
		w.until(within, p.Ended)
	} else {
		w.until(within, func() bool { return p.Ended() || w.count(from, ran, lane) >= n })
		moment(ctx)
	}
	return w.end(ctx, lane, p)
}

// settle has everything collected and sent back, until nothing is left.
func (w *world) settle(ctx context.Context) {
	for ctx.Err() == nil {
		for lane := range 1 + w.plan.lanes {
			w.collect(ctx, lane)
		}
		done, err := w.finish(ctx)
		missing := w.missing(ctx)
		if err == nil && done && missing == 0 {
			return
		}
		pause(ctx, time.Second)
	}
	w.Errorf("%s has no end: %d letters are not in the store; redrive serve says:\n%s", w.name(), w.missing(ctx), tail(w.serving().Log()))
}

func tail(log string) string { return log[max(0, len(log)-2000):] }

func (w *world) name() string { return fmt.Sprintf("%s with %s", w.site.Name, w.kind) }

// missing counts dead letters that the store does not have, and messages that nobody
// has handled.
func (w *world) missing(ctx context.Context) (n int) {
	rows, err := w.all(ctx)
	if err != nil {
		return -1
	}
	stored := map[death]bool{}
	for _, l := range rows {
		stored[deathOf(l.MessageID, l.DeadAt)] = true
	}
	open := map[string]bool{}
	for _, e := range w.ledger.until() {
		switch {
		case e.Kind == sent:
			open[e.ID] = true
		case e.Kind == died && !stored[deathOf(e.ID, e.DeadAt)]:
			n++
		}
	}
	for _, e := range w.ledger.until() {
		if e.Kind == ran && e.Err == "" {
			delete(open, e.ID)
		}
	}
	return n + len(open)
}

// verify holds what has happened against the promises.
func (w *world) verify() {
	w.Helper()
	r, err := w.record(w.play)
	if err != nil {
		w.Error(err)
		return
	}
	r.events = append(r.events, arrivals(r)...)
	slices.SortStableFunc(r.events, func(a, b event) int { return a.At.Compare(b.At) })
	stored := make([]store.Letter, len(r.letters))
	for i, l := range r.letters {
		stored[i] = l.Letter
	}
	r.snapshots = []snapshot{{before: r.events, after: r.events, stored: stored}}
	found := check(r)
	for i, v := range found {
		if i == 5 {
			w.Errorf("%s: and %d more", w.name(), len(found)-i)
			break
		}
		w.Errorf("%s: %s\n%s", w.name(), v, r.explain(v.id))
	}
	w.logged()
	twice, most, where := doubles(r)
	if most > 1 {
		w.Errorf("%s: %s", w.name(), where)
	}
	w.Attr("double_sends_per_kill", fmt.Sprint(most))
	w.Logf("%s: %d kills in collecting, %d in jobs, %d sends twice, at most %.2f of a batch by a job after a kill: %s",
		w.name(), w.kills.collects.Load(), w.kills.sends.Load(), twice, most, r.figures())
	if got := int(w.kills.collects.Load() + w.kills.sends.Load()); got != w.plan.total() {
		w.Errorf("%s: %d kills, want %d", w.name(), got, w.plan.total())
	}
}

// logged finds all dead letters in the log, where there is one: they stay there.
func (w *world) logged() {
	if w.Product != harness.Kafka {
		return
	}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	missing := map[death]bool{}
	for _, e := range w.ledger.until() {
		if e.Kind == died {
			missing[deathOf(e.ID, e.DeadAt)] = true
		}
	}
	var topics []string
	for lane := range 1 + w.plan.lanes {
		topics = append(topics, w.dead(lane))
	}
	broker, err := w.connect()
	if err != nil {
		w.Error(err)
		return
	}
	defer broker.Close(context.WithoutCancel(ctx))
	source, err := broker.Open(ctx, collect.Subscription(w.tag+"-log", topics...))
	for err == nil && len(missing) > 0 {
		var ds []*brokers.Delivery
		ds, err = source.Receive(ctx, 500)
		for _, d := range ds {
			if e, notOne := dlq.Decode(d.Message); notOne == nil {
				delete(missing, deathOf(e.Message.ID, e.DeadAt))
			}
		}
		acks := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			acks[i] = brokers.Settlement{Delivery: d}
		}
		_ = source.Settle(ctx, acks) // so that there is room for more
	}
	if len(missing) > 0 {
		w.Errorf("%s: %d letters are not in the log: %v", w.name(), len(missing), err)
	}
}
