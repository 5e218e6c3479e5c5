package consumer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// names is what is known of the names that messages of a topic depend on
// (TopicConfig.DependencyOf): tenants, or hosts. A name is in trouble after a run that
// timed out, until one succeeds, and while a run takes far longer than usual. It
// has one slot then, and all names in trouble share half of the slots. The last slot
// is for names whose runs are quick, if others than one have messages.
//
// Names share buckets by their hash, so that any number of them takes the same
// memory. A name may so be taken for another, which costs it some waiting.
type names struct {
	slots int
	most  int // runs of names in trouble at once

	mu      sync.Mutex
	buckets []bucket
	out     []run
	longest time.Duration // of the recent successes
	latest  uint64        // the name that started last
	mixed   time.Time     // when that was another than the one before
}

// bucketCount is how many names are told apart.
const bucketCount = 1 << 13

type bucket struct {
	lastSuccess time.Time
	trouble     bool
	long        bool // the last run took longer than slowLeast
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

// mixedFor is how long a slot is kept for other names, after one has come.
const mixedFor = time.Minute

func newNames(slots, buckets int) *names {
	return &names{slots: slots, most: max(1, slots/2), buckets: make([]bucket, buckets)}
}

func (n *names) of(name uint64) *bucket { return &n.buckets[name%uint64(len(n.buckets))] }

// timedOut is the name that messages share which have none and whose last run timed
// out.
const timedOut = 1

// start counts a run for name, if it may start.
func (n *names) start(now time.Time, name uint64, usual time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name != n.latest {
		n.latest, n.mixed = name, now
	}
	slow := max(slowLeast, slowTimes*usual, 2*n.longest)
	trouble, long, own, troubled, longs := n.of(name).trouble, n.of(name).long, 0, 0, 0
	for _, r := range n.out {
		took, b := now.Sub(r.began), n.of(r.name)
		if r.name == name {
			own++
			trouble, long = trouble || took > slow, long || took > slowLeast
		}
		if b.trouble || took > slow {
			troubled++
		}
		if b.long || took > slowLeast {
			longs++
		}
	}
	switch {
	case trouble && (own > 0 || troubled >= n.most):
		return false
	case long && longs > 0 && longs >= n.slots-1 && now.Sub(n.mixed) < mixedFor:
		return false
	}
	n.out = append(n.out, run{name, now})
	return true
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
		*b = bucket{lastSuccess: now, long: now.Sub(began) > slowLeast}
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

// nameOf identifies what the message of d depends on by TopicConfig.DependencyOf; 0 if
// nothing is named. A function that panics is the user's fault, not the message's:
// the dependency of the topic is enough then.
func (d *delivery) nameOf() (name uint64, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("TopicConfig.DependencyOf panicked: %v; only the dependency of the topic paces the message", v)
		}
	}()
	if s := d.sub.dependencyOf(&d.Message); s != "" {
		return numberOf(s), nil
	}
	return 0, nil
}

// numberOf is the number that stands for a name, above that of timedOut.
func numberOf(s string) uint64 { return max(identity(s), timedOut+1) }
