package outage

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/breaker"
)

// Report is what a run was like.
type Report struct {
	// Amplification is how many calls there were in the outage for each message
	// that was published in it; PerDelivery, for each that ran for the first
	// time in it.
	Amplification, PerDelivery float64

	// ReceivedOpen is how many messages workers received while their breaker
	// was open, and ProbeBatch the most that one received at once while it was
	// half-open. ReceivedHalfOpen and Probes are how many were received and how
	// many ran then in the outage; what was received before is probed with first.
	ReceivedOpen, ProbeBatch, ReceivedHalfOpen, Probes int

	// Attempts is the most that a message has used up, and Burnt how many were
	// used up in all; BurntOpen, how many of them by runs that began when the
	// breaker of their worker was not closed any more.
	Attempts, Burnt, BurntOpen int
	DeadLetters                int
	Wasted                     int // calls that were answered too late

	// PeakOffered and PeakServed are the most calls that came, and that were
	// answered in time, in a second after the outage.
	PeakOffered, PeakServed int

	// Settled is how long after the outage all messages from before its end
	// were done, and Drain, how long until fewer messages waited than come in a
	// second. 0 means that Patience ended before.
	Settled, Drain time.Duration

	Load Load
}

// tally counts what happens.
type tally struct {
	Scenario
	ready      chan struct{} // a worker is
	started    chan struct{} // closed once the following is set
	began      time.Time
	dependency *dependency

	mu       sync.Mutex
	messages []progress // by number
	before   int        // how many of them are from before the end of the outage
	during   int        // and how many of those from the outage
	done     int
	old      int // of them, from before the end of the outage
	fresh    int // how many ran for the first time in the outage
	ended    bool
	report   Report
}

// progress is how far a message has come.
type progress struct{ ran, done bool }

func newTally(s Scenario) *tally {
	return &tally{Scenario: s, ready: make(chan struct{}, s.Workers), started: make(chan struct{})}
}

func (t *tally) publishing(due time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages = append(t.messages, progress{})
	if due < t.recovery() {
		t.before++
	}
	if t.down(due) {
		t.during++
	}
}

func (t *tally) received(n int, s breaker.State) {
	if n == 0 {
		return
	}
	<-t.started
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s {
	case breaker.Open, breaker.Isolated:
		t.report.ReceivedOpen += n
	case breaker.HalfOpen:
		t.report.ProbeBatch = max(t.report.ProbeBatch, n)
		if t.down(time.Since(t.began)) {
			t.report.ReceivedHalfOpen += n
		}
	}
}

func (t *tally) ran(m *brokers.Message, s breaker.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.messages[number(m)]
	if t.down(time.Since(t.began)) {
		if !p.ran {
			t.fresh++
		}
		if s == breaker.HalfOpen {
			t.report.Probes++
		}
	}
	p.ran = true
}

// failed takes in a failure; spared says that the run began behind an open
// breaker.
func (t *tally) failed(e consumer.Event, spared bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Attempts = max(t.report.Attempts, e.Meta.Attempt)
	if e.Decision.Counted {
		t.report.Burnt++
		if spared {
			t.report.BurntOpen++
		}
	}
}

func (t *tally) buried() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.DeadLetters++
}

func (t *tally) handled(m *brokers.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := number(m)
	p := &t.messages[n]
	if p.done {
		return // a duplicate
	}
	p.done = true
	t.done++
	if n < t.before {
		t.old++
	}
	after := time.Since(t.began) - t.recovery()
	if after < 0 || t.ended {
		return
	}
	if t.report.Settled == 0 && t.old == t.before {
		t.report.Settled = after
	}
	if t.report.Drain == 0 && len(t.messages)-t.done < t.Rate {
		t.report.Drain = after
	}
}

// over reports whether nothing is left to wait for.
func (t *tally) over(at time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	after := at - t.recovery()
	t.ended = after > t.Patience || after > 0 && t.report.Settled > 0 && t.report.Drain > 0
	return t.ended
}

func (t *tally) result() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, r := t.dependency, t.report
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Amplification = float64(d.during) / float64(max(1, t.during))
	r.PerDelivery = float64(d.during) / float64(max(1, t.fresh))
	r.Wasted, r.Load = d.wasted, d.load
	r.PeakOffered, r.PeakServed = peak(r.Load.Offered, t.recovery()), peak(r.Load.Served, t.recovery())
	return r
}

// peak returns the most in one second from a time on.
func peak(bins []int, from time.Duration) int {
	first := min(int(from/time.Second), len(bins))
	return slices.Max(append([]int{0}, bins[first:]...))
}

// number is which message m is.
func number(m *brokers.Message) int {
	n, err := strconv.Atoi(m.ID)
	if err != nil {
		panic(fmt.Sprintf("outage: message %q is not from here", m.ID))
	}
	return n
}
