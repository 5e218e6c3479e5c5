package main

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// scenario is a run from its first message to its last, derived from a seed.
// What the consumer draws by itself (jitter) and the order in which goroutines
// run are not part of it.
type scenario struct {
	seed      uint64
	pace      pace
	served    bool // by a broker that does not tell which of its failures took effect, to workers that are processes
	broker    string
	copies    bool // no retry in place
	fifo      bool // queues that keep the order of each key
	options   memory.Options
	topics    []topic
	messages  []message
	calls     []call
	slots     []slot
	incidents []incident
	controls  []control // by hand
	faults    faultPlan
	outageEnd time.Duration // of the environment
	kills     int           // how many workers the handlers may take with them
	calm      time.Duration // from here on nothing goes wrong
	limit     time.Duration // everything is over by then
}

type topic struct {
	name      string
	policy    retry.Policy
	dead      string // "" discards
	timeout   time.Duration
	maxBody   int
	batchSize int // 0: one by one
	batchWait time.Duration
	noRepeat  bool
	tenants   bool   // each is a dependency of its own
	outage    outage // of what its handlers depend on
}

// outage is a time in which every handler of a topic fails in one way.
type outage struct {
	window
	how  outcome // interrupted: the handler hangs until its context ends
	hint time.Duration
}

type message struct {
	brokers.Message
	topic  int
	call   int    // by which it is published
	script []step // the last one is repeated
}

// call is one Publish of the producer.
type call struct {
	at    time.Duration
	topic int
	ids   []int
}

// slot is a place for a worker; when one stops, the next takes its place.
type slot struct {
	config   consumer.Config
	observed bool
}

// incident is the end of a worker.
type incident struct {
	at    time.Duration
	slot  int
	crash bool
	point point         // where a process is killed
	pause time.Duration // until the next worker starts
}

// pace is how long things take: hours in virtual time, seconds in real time.
type pace struct {
	calm     time.Duration
	lease    [2]time.Duration
	timeout  [2]time.Duration
	base     [2]time.Duration
	longest  time.Duration    // delay
	age      [2]time.Duration // of a message that nothing succeeds beside
	pause    time.Duration    // the longest that a message waits without a failure, or put aside
	drain    time.Duration
	closing  time.Duration // what the adapter waits for when its source is closed
	work     time.Duration // of a quick handler
	slack    time.Duration // what a busy machine may add
	rounding time.Duration // of times on their way through the broker
	good     float64       // share of the messages that succeed at once
	slow     float64       // how many of the slow handlers there shall be
	liveness time.Duration // what a lost worker and a failing broker may add
	tokens   time.Duration // what each message may add, because budgets pace the retries of all
}

var virtual = pace{
	calm:     4 * time.Minute,
	lease:    [2]time.Duration{time.Second, time.Minute},
	timeout:  [2]time.Duration{time.Second, 5 * time.Minute},
	base:     [2]time.Duration{time.Millisecond, 20 * time.Second},
	longest:  15 * time.Minute,
	age:      [2]time.Duration{20 * time.Minute, time.Hour},
	pause:    time.Hour,
	drain:    30 * time.Second,
	work:     100 * time.Millisecond,
	good:     0.55,
	slow:     1,
	liveness: 12 * time.Hour,
}

// dice draws a scenario.
type dice struct {
	*rand.Rand
	pace pace
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

// between draws evenly over the orders of magnitude.
func (d dice) between(low, high time.Duration) time.Duration {
	f := float64(low) * math.Pow(float64(high)/float64(low), d.Float64())
	return min(time.Duration(f), high)
}

func (d dice) upTo(longest time.Duration) time.Duration {
	return time.Duration(d.Int64N(int64(longest) + 1))
}

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// newScenario derives a scenario with n messages from seed.
func newScenario(seed uint64, n int, p pace) *scenario {
	d := dice{rand.New(rand.NewPCG(seed, 0)), p}
	s := &scenario{seed: seed, pace: p, calm: p.calm/2 + d.upTo(p.calm/2)}
	s.outageEnd = d.upTo(s.calm / 2)
	s.kills = d.IntN(4)
	s.options = memory.Options{
		Lease:        d.between(p.lease[0], p.lease[1]),
		Ordered:      d.chance(0.2),
		HeaderLimit:  pick(d, 0, 0, 0, 2<<10, 4<<10),
		MessageLimit: pick(d, 0, 0, 0, 1100),
	}
	dead := pick(d, "*.dead", "*.dead", "graveyard")
	for i := range 1 + d.IntN(5) {
		s.topics = append(s.topics, d.topic(i, dead))
	}
	if d.chance(0.1) { // it must leave room for every handler
		longest := s.options.Lease
		for _, t := range s.topics {
			longest = max(longest, t.timeout)
		}
		s.options.MaxLease = longest + time.Second + d.upTo(2*longest)
	}
	d.workers(s)
	for i := range n {
		s.messages = append(s.messages, d.message(s, i, n))
	}
	d.calls(s)
	d.incidents(s)
	s.faults = d.faults(s)
	s.limit = s.calm + d.longest(s)
	if p.slack == 0 {
		byHand := dice{rand.New(rand.NewPCG(seed, 1)), p}
		s.controls = byHand.controls(s)
	}
	return s
}

// digest tells scenarios apart.
func (s *scenario) digest() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%+v", *s)
	return h.Sum64()
}

func (d dice) topic(i int, dead string) topic {
	t := topic{name: "topic-" + strconv.Itoa(i), policy: d.policy(), timeout: d.between(d.pace.timeout[0], d.pace.timeout[1]),
		noRepeat: d.chance(0.1), tenants: d.chance(0.15)}
	t.dead = strings.ReplaceAll(dead, "*", t.name)
	if d.chance(0.08) {
		t.dead = ""
	}
	if d.chance(0.1) {
		t.maxBody = 200
	}
	if d.chance(0.3) {
		t.outage = d.outage()
	}
	if d.chance(0.15) {
		t.batchSize, t.batchWait = 1+d.IntN(10), d.between(time.Millisecond, d.pace.lease[0]/2)
	}
	return t
}

func (d dice) outage() outage {
	o := outage{how: pick(d, interrupted, interrupted, refusing, baffling, broken, throttled, permanent)}
	o.hint = d.between(d.pace.base[0], d.pace.longest)
	o.from = d.upTo(d.pace.calm / 2)
	o.to = o.from + d.upTo(d.pace.calm/2)
	return o
}

// dependency is what a message with these headers depends on, beside its topic.
func (t *topic) dependency(h brokers.Headers) string {
	if tenant := h.Get("tenant"); t.tenants && tenant != "" {
		return t.name + " of " + tenant
	}
	return ""
}

func (d dice) policy() retry.Policy {
	b := retry.Backoff{
		Base:       d.between(d.pace.base[0], d.pace.base[1]),
		Multiplier: pick(d, 0, 1, 1.5, 2, 3),
		Jitter:     pick(d, retry.FullJitter, retry.FullJitter, retry.EqualJitter, retry.DecorrelatedJitter, retry.NoJitter),
	}
	b.Cap = d.between(b.Base, d.pace.longest)
	if d.chance(0.25) {
		b.Multiplier, b.Step = 0, b.Base
	}
	if d.chance(0.3) {
		b.Floor = d.upTo(b.Base)
	}
	p := retry.Policy{
		MaxAttempts:      1 + d.IntN(8),
		Backoff:          b,
		MaxRetryAfter:    d.between(d.pace.base[1], d.pace.longest),
		FreeThrottles:    pick(d, -1, 0, 1, 3),
		EnvironmentDelay: d.between(d.pace.base[1]/10, d.pace.longest/10),
	}
	p.MaxAge = b.Floor + d.between(d.pace.age[0], d.pace.age[1])
	if d.chance(0.1) {
		p.MaxAge = b.Floor + d.between(d.pace.base[1], d.pace.longest)
	}
	return p
}

// workers draws the places for workers. All of them share what a message can
// notice, and differ in the rest.
func (d dice) workers(s *scenario) {
	byKey := pick(d, false, true)
	lease := pick(d, 0, 0, d.between(d.pace.lease[0], d.pace.lease[1]))
	if s.options.MaxLease > 0 {
		lease = 0
	}
	crashLimit := pick(d, 0, 0, 2, -1)
	observed := d.chance(0.7)
	hold := d.pace.longest
	if s.options.MaxLease > 0 {
		hold = s.options.MaxLease / 2
	}
	for range 3 + d.IntN(3) {
		held := 0
		if d.pace.slack == 0 { // a dead letter without a place waits for minutes
			held = pick(d, 0, 0, 1+d.IntN(10))
		}
		s.slots = append(s.slots, slot{observed: observed, config: consumer.Config{
			Concurrency:  1 + d.IntN(12),
			Prefetch:     pick(d, 1, 0, 0, 1+d.IntN(20)),
			DrainTimeout: pick(d, -1, d.upTo(d.pace.drain)+1),
			HoldLimit:    pick(d, -1, 0, d.between(d.pace.base[0], hold)),
			MaxHeld:      held,
			OrderByKey:   byKey,
			Lease:        lease,
			CrashLimit:   crashLimit,
		}})
	}
}

func (d dice) message(s *scenario, i, n int) message {
	m := message{topic: d.IntN(len(s.topics)), script: d.script(s)}
	m.ID = "m" + strconv.Itoa(i)
	m.Body = make([]byte, pick(d, 0, 1, d.IntN(60), d.IntN(60), d.IntN(300)))
	for j := range m.Body {
		m.Body[j] = byte(d.Uint32())
	}
	if d.chance(0.5) {
		m.Key = "key-" + strconv.Itoa(d.IntN(max(10, n/6)))
	}
	for range d.IntN(4) {
		m.Headers = append(m.Headers, brokers.Header{Name: pick(d, "trace", "tenant", "Tenant", "x-death"), Value: fmt.Sprint("value ", d.IntN(100))})
	}
	if d.chance(0.03) {
		m.Headers = append(m.Headers, brokers.Header{Name: "redrive-attempt", Value: "99"}, brokers.Header{Name: "redrive-due-at", Value: "2100-01-01T00:00:00Z"})
	}
	return m
}

// message returns the message with this id, nil if there is none.
func (s *scenario) message(id string) *message {
	if len(id) < 2 || id[0] != 'm' {
		return nil
	}
	i, err := strconv.Atoi(id[1:])
	if err != nil || i < 0 || i >= len(s.messages) {
		return nil
	}
	return &s.messages[i]
}

func (s *scenario) topic(name string) *topic {
	for i := range s.topics {
		if s.topics[i].name == name {
			return &s.topics[i]
		}
	}
	return nil
}

// names are those of all topics.
func (s *scenario) names() (names []string) {
	for _, t := range s.topics {
		names = append(names, t.name)
	}
	return append(names, s.dead()...)
}

// dead are the dead-letter topics.
func (s *scenario) dead() (names []string) {
	for _, t := range s.topics {
		if t.dead != "" && !slices.Contains(names, t.dead) {
			names = append(names, t.dead)
		}
	}
	return names
}

func (s *scenario) isDead(topic string) bool { return slices.Contains(s.dead(), topic) }

// calls spreads the messages over the first part of the run.
func (d dice) calls(s *scenario) {
	for i := 0; i < len(s.messages); {
		c := call{at: d.upTo(s.calm / 2), topic: s.messages[i].topic}
		for n := 1 + d.IntN(20); i < len(s.messages) && n > 0 && s.messages[i].topic == c.topic; n-- {
			c.ids = append(c.ids, i)
			s.messages[i].call = len(s.calls)
			i++
		}
		s.calls = append(s.calls, c)
	}
	slices.SortFunc(s.calls, func(a, b call) int { return int(a.at - b.at) })
}

func (d dice) incidents(s *scenario) {
	for range 1 + d.IntN(6) {
		s.incidents = append(s.incidents, incident{
			at:    d.upTo(s.calm),
			slot:  d.IntN(len(s.slots)),
			crash: d.chance(0.5),
			pause: d.upTo(s.calm / 20),
		})
	}
	slices.SortFunc(s.incidents, func(a, b incident) int { return int(a.at - b.at) })
}

// longest is a generous bound on what is left to do once nothing goes wrong
// any more.
func (d dice) longest(s *scenario) time.Duration {
	var all time.Duration
	for _, t := range s.topics {
		attempts, delay, _ := t.policy.Limits()
		free := max(t.policy.FreeThrottles, 0) + 3
		if t.policy.FreeThrottles == 0 {
			free += 5
		}
		all = max(all, time.Duration(attempts+free+4)*(delay+delay/8+3*s.options.Lease+t.timeout))
	}
	return all + d.pace.liveness + time.Duration(len(s.messages))*d.pace.tokens
}
