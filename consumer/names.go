package consumer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// names is what is known of the names that messages of a topic depend on
// (Topic.DependencyOf): tenants, or hosts. A name is in trouble after a run that
// timed out, until one succeeds, and while a run takes far longer than usual. It
// has one slot then, and all names in trouble share half of the slots.
//
// Names share buckets by their hash, so that any number of them takes the same
// memory. A name may so be taken for another, which costs it some waiting.
type names struct {
	most int // runs of names in trouble at once

	mu      sync.Mutex
	buckets []bucket
	out     []run
	longest time.Duration // of the recent successes
}

// bucketCount is how many names are told apart.
const bucketCount = 1 << 13

type bucket struct {
	lastSuccess time.Time
	trouble     bool
}

// run is a handler that runs for a name.
type run struct {
	name  uint64
	began time.Time
}

// A run takes far longer than usual if it is out for longer than all of these.
const (
	slowLeast = time.Second
	slowTimes = 10 // the usual duration
)

func newNames(slots int) *names {
	return &names{most: max(1, slots/2), buckets: make([]bucket, bucketCount)}
}

func (n *names) of(name uint64) *bucket { return &n.buckets[name%bucketCount] }

// start counts a run for name, if it may start.
func (n *names) start(now time.Time, name uint64, usual time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	slow := max(slowLeast, slowTimes*usual, 2*n.longest)
	if n.troubled(now, name, slow) {
		running, troubled := false, 0
		for _, r := range n.out {
			running = running || r.name == name
			if n.of(r.name).trouble || now.Sub(r.began) > slow {
				troubled++
			}
		}
		if running || troubled >= n.most {
			return false
		}
	}
	n.out = append(n.out, run{name, now})
	return true
}

// troubled reports whether name is in trouble. mu is held.
func (n *names) troubled(now time.Time, name uint64, slow time.Duration) bool {
	return n.of(name).trouble || slices.ContainsFunc(n.out, func(r run) bool { return r.name == name && now.Sub(r.began) > slow })
}

// done takes in how a run for name ended.
func (n *names) done(now, began time.Time, name uint64, o flow.Outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.Index(n.out, run{name, began}); i >= 0 {
		n.out[i] = n.out[len(n.out)-1]
		n.out = n.out[:len(n.out)-1]
	}
	switch b := n.of(name); o {
	case flow.Success:
		*b = bucket{lastSuccess: now}
		n.longest = max(now.Sub(began), n.longest-n.longest/256)
	case flow.Timeout:
		b.trouble = true
	}
}

// lastSuccess is when a run for name last succeeded.
func (n *names) lastSuccess(name uint64) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of(name).lastSuccess
}

// nameOf identifies what the message of d depends on by Topic.DependencyOf; 0 if
// nothing is named, or d was sent back and has slots apart. A function that panics is the user's fault, not the message's:
// the dependency of the topic is enough then.
func (p *pipeline) nameOf(d *delivery) (name uint64) {
	if d.sub.names == nil || d.returned() {
		return 0
	}
	defer func() {
		if v := recover(); v != nil {
			p.observe(d, Event{Kind: EventError, Operation: "dependency-of",
				Err: fmt.Errorf("Topic.DependencyOf panicked: %v; only the dependency of the topic paces the message", v)})
		}
	}()
	if s := d.sub.dependencyOf(&d.Message); s != "" {
		return max(identity(s), 1)
	}
	return 0
}
