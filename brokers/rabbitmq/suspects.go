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

// suspect is a delivery of such a message that waits to be handed out.
//
// Suspects are handed out a few at a time, drawn by lot, so that they part:
// with each death of a worker some of the innocent ones have been handled
// before, whereas the guilty one comes back. Handed out together, as they
// arrive, all of them would be lost each time, and be taken for guilty in the
// end.
type suspect struct {
	feed *feed
	item item
}

// try adds suspects to ds, up to most in all, if few enough are handed out. The
// lock of the source is held.
func (s *source) try(ds []*brokers.Delivery, most int) []*brokers.Delivery {
	if len(s.suspects) == 0 {
		return ds
	}
	var resting []suspect
	s.suspects = slices.DeleteFunc(s.suspects, func(u suspect) bool {
		if u.feed.paused.IsZero() {
			return false
		}
		resting = append(resting, u)
		return true
	})
	defer func() { s.suspects = append(s.suspects, resting...) }()
	s.trials = unsettled(s.trials)
	limit := 1 + len(s.suspects)/16
	if now := time.Now(); now.Sub(s.tried) >= trialPace {
		s.tried, s.trials = now, nil
		time.AfterFunc(trialPace, s.woken.Wake)
	}
	for len(ds) < most && len(s.trials) < limit && len(s.suspects) > 0 {
		i := rand.IntN(len(s.suspects))
		u := s.suspects[i]
		s.suspects = slices.Delete(s.suspects, i, i+1)
		s.trials = append(s.trials, u.item.token)
		ds = append(ds, s.delivery(u.feed, u.item, time.Now()))
	}
	return ds
}
