package proof

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// calm is when nothing goes wrong any more, and every message is mended.
const calm = 5 * time.Minute

// scenario is what happens in a run, derived from a seed. In which order goroutines
// do what they do at one moment is not part of it.
type scenario struct {
	seed    uint64
	rate    float64 // of faults of the broker
	sends   []sending
	letters []stranger
	orders  []order
	lives   [][]doom // of each process of redrive, and of each worker
	outages []window // of the store
	silence window   // of the topic of receipts
}

// sending is a message of the producer.
type sending struct {
	at     time.Duration
	script script // mended counts from the start
	mended time.Duration
}

// stranger is a dead letter that no worker here has written.
type stranger struct {
	at     time.Duration
	topic  string // where it is published
	script script
	letter brokers.Message
}

// order is a job that somebody creates, and resumes or cancels when it pauses.
type order struct {
	at      time.Duration
	spec    job.Spec
	filter  store.Filter
	patient bool
}

// point is where a process dies.
type point string

const (
	received     point = "received"
	beforeAck    point = "before the ack"
	afterAck     point = "after the ack"
	beforeReturn point = "before the return"
	afterReturn  point = "after the return"
)

// doom is the end of a process: when it has been so often at a point, or at last
// after some time.
type doom struct {
	point point
	nth   int
	at    time.Duration
	pause time.Duration // until the next one starts
}

type window struct{ from, to time.Duration }

func (w window) holds(t time.Duration) bool { return w.from <= t && t < w.to }

type dice struct{ *rand.Rand }

func (d dice) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.Int64N(int64(high-low)))
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

func newScenario(seed uint64) *scenario {
	d := dice{rand.New(rand.NewPCG(seed, 0))}
	s := &scenario{seed: seed, rate: 0.3 * d.Float64() * d.Float64()}
	mended := d.between(0, calm) // not before
	for n := range 20 + d.IntN(100) {
		s.sends = append(s.sends, d.sending(n, mended))
	}
	for n := range 4 + d.IntN(12) {
		s.letters = append(s.letters, d.stranger(n)...)
	}
	for range 3 + d.IntN(5) {
		s.orders = append(s.orders, d.order())
	}
	redrives := 1 + d.IntN(2)
	for range redrives {
		s.lives = append(s.lives, d.dooms(d.IntN(6), received, beforeAck, afterAck, beforeReturn, afterReturn))
	}
	for range 2 { // one of each topic
		s.lives = append(s.lives, d.dooms(d.IntN(2), received, beforeAck))
	}
	for range d.IntN(3) {
		from := d.between(0, calm-time.Minute)
		s.outages = append(s.outages, window{from, from + d.between(time.Second, time.Minute)})
	}
	if d.chance(0.4) {
		s.silence.from = d.between(0, calm/2)
		s.silence.to = s.silence.from + d.between(0, calm/2)
	}
	return s
}

func (d dice) sending(n int, mended time.Duration) sending {
	topic := pick(d, "orders", "payments")
	m := message{id: fmt.Sprintf("%s-%d", topic, n), topic: topic}
	if topic == "payments" {
		m.group = "billing"
	}
	return sending{
		at: d.between(0, time.Minute), mended: d.between(mended, calm),
		script: script{message: m, fate: pick(d, poison, poison, transient, flaky)},
	}
}

// stranger draws dead letters of others: of one ID and second, of no known form,
// that came back before, and that claim what is not so.
func (d dice) stranger(n int) []stranger {
	died := time.Date(1999, 12, 31, 12, n, 0, 0, time.UTC)
	s := stranger{at: d.between(0, calm/2), topic: "orders-dead", script: script{message: message{id: fmt.Sprint("stranger-", n), topic: "orders"}, fate: good}}
	e := dlq.Entry{Message: brokers.Message{ID: s.script.id, Topic: "orders", Body: []byte("{}")}, Reason: "poison", DeadAt: died}
	both := false
	switch d.IntN(8) {
	case 0:
		both = true
	case 1:
		s.letter = brokers.Message{ID: s.script.id, Body: []byte{0xff, 0}}
		return []stranger{s}
	case 2:
		e.Meta.RedriveCount = 2
	case 3:
		e.Meta.RedriveCount = 3
	case 4:
		e.Message.Topic, s.script.skip = "refunds", job.SkipWrongSource
	case 5:
		e.Message.Topic, s.script.skip = "secrets", job.SkipUnknownTopic
	case 6:
		s.topic, s.script.topic, s.script.group = "payments-dead", "payments", allGroups
		e.Message.Topic = "payments"
	case 7:
		s.topic, s.script.skip = "payments-dead", job.SkipUnknownGroup
		e.Message.Topic, e.Group = "payments", "reports"
	}
	s.letter = e.Encode(0)
	if !both {
		return []stranger{s}
	}
	twin := s
	e.Message.Body = []byte("{ }")
	twin.letter = e.Encode(0)
	return []stranger{s, twin}
}

func (d dice) order() order {
	o := order{at: d.between(20*time.Second, calm), patient: d.chance(0.7)}
	o.spec = job.Spec{
		Rate: pick(d, 20., 50, 200), Wait: d.between(5*time.Second, time.Minute),
		WithoutReceipts: d.chance(0.3), Force: d.chance(0.1), AllGroups: d.chance(0.3),
	}
	if d.chance(0.3) {
		o.spec.Waves = []int{}
	}
	o.filter.Topic = pick(d, "", "", "orders", "payments")
	return o
}

func (d dice) dooms(n int, points ...point) (list []doom) {
	for range n {
		list = append(list, doom{pick(d, points...), 1 + d.IntN(3), d.between(time.Second, calm/2), d.between(0, 20*time.Second)})
	}
	return list
}

var errHiccup = errors.New("connection refused")

// fault is what goes wrong with an operation of the broker.
func (s *scenario) fault(now time.Duration, op memory.Op) (f memory.Fault) {
	fresh := op.Operation == memory.Publish && (op.Topic == "orders" || op.Topic == "payments")
	if now >= calm || fresh || op.Operation == memory.Extend {
		return f
	}
	if op.Operation == memory.Publish && op.Topic == "receipts" && s.silence.holds(now) {
		return memory.Fault{Err: errHiccup}
	}
	h := fnv.New64a()
	fmt.Fprint(h, op)
	d := dice{rand.New(rand.NewPCG(s.seed, h.Sum64()))}
	if !d.chance(s.rate) {
		return f
	}
	unknown := memory.Fault{Err: brokers.ErrUnknownOutcome}
	done := memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}
	slow := memory.Fault{Latency: d.between(0, 10*time.Second)}
	of := []memory.Fault{{Err: errHiccup}, unknown, done, slow}
	switch op.Operation {
	case memory.Receive:
		of = []memory.Fault{{Err: errHiccup}, slow}
	case memory.Deliver:
		of = []memory.Fault{{Duplicate: true}, {Lost: true}, {Err: errHiccup, Done: true}}
	case memory.Settle:
		of = append(of, memory.Fault{Lost: true})
	case memory.SendBack:
		of = append(of, memory.Fault{Err: brokers.ErrRefused}, memory.Fault{Duplicate: true})
	}
	return pick(d, of...)
}
