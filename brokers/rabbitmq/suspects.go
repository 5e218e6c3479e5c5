package rabbitmq

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// suspicious is from how many lost deliveries on a message may be the one that
// kills its workers. The broker cannot tell it from the others that were with
// the worker: all of them are charged alike.
const suspicious = 3

// trialPace is how long a trial of what has been lost so often may keep others
// waiting. Most of what kills does so sooner, and who receives must get on
// without settling.
const trialPace = 200 * time.Millisecond

// seclusion is for how long a message that has been lost count times may keep
// others from being prefetched beside it, or from being handed out after it: the
// likelier it is the one that kills, the longer, up to 6.4 s.
func seclusion(count int) time.Duration {
	if count < suspicious {
		return 0
	}
	return trialPace << min(count-suspicious, 5)
}

// addSuspects adds suspects to ds, up to most in all, if few enough are handed out. The
// lock of the source is held.
//
// Suspects are handed out a few at a time, drawn by lot, so that they part:
// with each death of a worker some of the innocent ones have been handled
// before, whereas the guilty one comes back. Handed out together, as they
// arrive, all of them would be lost each time, and be taken for guilty in the
// end.
func (n *session) addSuspects(ds []*brokers.Delivery, most int) []*brokers.Delivery {
	var waiting []int // indexes of those whose topics are not paused
	for i, t := range n.suspects {
		if t.intake.paused.IsZero() {
			waiting = append(waiting, i)
		}
	}
	if waiting == nil {
		return ds
	}
	now := time.Now()
	n.trials = unsettled(n.trials)
	if now.Sub(n.tried) >= trialPace {
		n.tried, n.trials = now, nil
		time.AfterFunc(trialPace, n.source.woken.Wake)
	}
	room := min(most-len(ds), 1+len(waiting)/16-len(n.trials))
	rand.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	drawn := slices.Sorted(slices.Values(waiting[:max(0, min(room, len(waiting)))]))
	for _, i := range slices.Backward(drawn) {
		t := n.suspects[i]
		n.suspects = slices.Delete(n.suspects, i, i+1)
		n.trials = append(n.trials, t)
		ds = append(ds, n.source.next(t, now))
	}
	return ds
}
