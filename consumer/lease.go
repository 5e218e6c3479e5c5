package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/visibility"
)

// leases keeps the leases of all deliveries in the process. It knows the sessions
// that they came in and the losses of the last minutes. It tells the holder of every
// lost lease, once.
type leases struct {
	*reporter
	source brokers.Source
	keeper *visibility.Keeper[*delivery] // nil if leases have no deadline
	holder holder

	mu       sync.Mutex
	sessions map[context.Context]func() bool // ends the watch over one
	trouble  time.Time                       // when leases were last lost that no handler is to blame for
	lost     string                          // the message whose lease was lost last
	lostAt   time.Time
}

// holder is told of leases that are lost.
type holder interface {
	lose(d *delivery, cause error)
	loseSession(session context.Context, cause error)
}

func newLeases(r *reporter, source brokers.Source, h holder) *leases {
	l := &leases{reporter: r, source: source, holder: h, sessions: map[context.Context]func() bool{}}
	if caps := source.Capabilities(); caps.Lease > 0 {
		l.keeper = &visibility.Keeper[*delivery]{
			Lease:    caps.Lease,
			MaxLease: caps.MaxLease,
			Extend:   l.extend,
			Times:    func(d *delivery) (time.Time, time.Time) { return d.ReceivedAt, d.LeaseUntil },
			Final:    final,
			Lost:     h.lose,
		}
	}
	return l
}

// track begins to keep the leases of ds.
func (l *leases) track(ds []*delivery) {
	if l.keeper != nil {
		l.keeper.Track(ds...)
	}
	for _, d := range ds {
		if d.Session != nil {
			l.watch(d.Session)
		}
	}
}

// watch has the deliveries of a session lost when it ends.
func (l *leases) watch(session context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[session] != nil {
		return
	}
	l.sessions[session] = context.AfterFunc(session, func() {
		l.mu.Lock()
		delete(l.sessions, session)
		l.mu.Unlock()
		l.holder.loseSession(session, leaseLost(context.Cause(session)))
	})
}

// forget stops keeping the leases of ds.
func (l *leases) forget(ds ...*delivery) {
	if l.keeper != nil {
		l.keeper.Forget(ds...)
	}
}

// close ends the watch over sessions: no delivery is left to lose.
func (l *leases) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stop := range l.sessions {
		stop()
	}
}

// expire loses what of job is over by the clock of this worker: it may have
// stood still since, its keeper too. A session tells by itself that it has
// ended. Where there is none, nothing else may tell of a machine that was
// suspended, in which the monotonic clock may stand still, so a lease is over if
// the wall clock says so. If that was only set forward, it comes again.
func (l *leases) expire(job []*delivery, now time.Time) {
	if l.keeper == nil {
		return
	}
	l.keeper.Expire(now, job...)
	if job[0].Session == nil {
		l.keeper.Expire(now.Round(0), job...)
	}
}

// extend is the keeper's way to the source.
func (l *leases) extend(ctx context.Context, lease time.Duration, ds []*delivery) []error {
	deliveries := make([]*brokers.Delivery, len(ds))
	for i, d := range ds {
		deliveries[i] = d.Delivery
	}
	errs := l.source.Extend(ctx, lease, deliveries)
	for i, d := range ds {
		switch {
		case errs == nil || i < len(errs) && errs[i] == nil:
			l.observe(d, Event{Kind: EventExtended})
		case i < len(errs) && !final(errs[i]):
			l.mu.Lock()
			l.trouble = time.Now()
			l.mu.Unlock()
			l.observe(d, Event{Kind: EventError, Operation: "extend", Err: fmt.Errorf("extend the lease: %w", errs[i])})
		}
	}
	return errs
}

const (
	lostTogether = 10 * time.Second // leases of different messages that are lost within this time
	troubleLasts = 10 * time.Minute // no lost delivery speaks against its message
)

// loss takes in that the lease of a message was lost at now.
func (l *leases) loss(id string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id != l.lost && !l.lostAt.IsZero() && now.Sub(l.lostAt) <= lostTogether {
		l.trouble = now
	}
	l.lost, l.lostAt = id, now
}

// inTrouble reports whether leases were lost lately that no handler is to blame
// for: those of different messages together, or because they cannot be extended.
func (l *leases) inTrouble(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.trouble.IsZero() && now.Sub(l.trouble) < troubleLasts
}
