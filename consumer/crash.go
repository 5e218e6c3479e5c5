package consumer

import (
	"errors"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
)

// A broker counts every delivery that ended without a settlement, and cannot say
// whether a handler had begun. So a message whose count is one below CrashLimit
// goes on trial: it goes back to its queue, with a mark, and when it comes again it
// runs at once or goes back. Deliveries that are lost from then on had begun to
// run.
//
// Leases that began together end together. So a message that ran beside one that kills
// its worker can come again beside it each time, and is lost as often. On the way to
// its trial each message waits for a time of its own, which parts the two.
var onSuspicion = deferral{reasonCrashLoop, errors.New("several deliveries ended without a settlement: the message goes back to its queue, to run at once when it comes again")}

// suspicion is what the lost deliveries of a message say about it.
type suspicion uint8

const (
	innocent suspicion = iota
	suspect
	guilty
)

// suspicion weighs the lost deliveries of d.
func (p *pipeline) suspicion(d *delivery) suspicion {
	limit := p.cfg.CrashLimit
	switch {
	case limit <= 0, d.Abandoned == 0, p.leases.inTrouble(time.Now()):
		return innocent
	case d.Abandoned >= limit && (d.onTrial() || p.caps.Ordered): // such a broker stores no mark
		return guilty
	case d.Abandoned >= limit-1 && !d.onTrial() && !p.caps.Ordered:
		return suspect
	}
	return innocent
}

// trialWait is the longest time that a message waits before its trial.
const trialWait = time.Minute

// putOnTrial sends d back to its queue if it is suspect, and reports whether it did.
func (p *pipeline) putOnTrial(d *delivery) bool {
	if p.suspicion(d) != suspect {
		return false
	}
	now := time.Now()
	m := d.metaNow()
	wait := time.Duration(p.cfg.Random() * float64(min(trialWait, p.longestDelay)))
	m.Crashes, m.DueAt = d.Abandoned, now.Add(wait)
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: onSuspicion.err, Decision: retry.Decision{Action: retry.ActionRetry, Delay: wait, Reason: onSuspicion.reason}})
	p.settle(d, brokers.Retry)
	return true
}

// onTrial reports whether d goes back to its queue if it cannot run at once.
func (d *delivery) onTrial() bool { return d.meta.Crashes > 0 }

// leaseWatch notices when leases are lost that no handler is to blame for: those
// of different messages together, or because they cannot be extended.
type leaseWatch struct {
	mu      sync.Mutex
	trouble time.Time // when that happened last
	lost    string    // the message whose lease was lost last
	lostAt  time.Time
}

const (
	lostTogether = 10 * time.Second // leases that are lost within this time
	troubleLasts = 10 * time.Minute // no lost delivery speaks against its message
)

// loss takes in that the lease of a message was lost at now.
func (w *leaseWatch) loss(id string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != w.lost && !w.lostAt.IsZero() && now.Sub(w.lostAt) <= lostTogether {
		w.trouble = now
	}
	w.lost, w.lostAt = id, now
}

// failed takes in that a lease could not be extended at now.
func (w *leaseWatch) failed(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble = now
}

func (w *leaseWatch) inTrouble(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.trouble.IsZero() && now.Sub(w.trouble) < troubleLasts
}
