package connect

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/config"
)

// Subscriptions are what workers ask of a broker, as far as the configuration says:
// one for all topics, but one for each group on Kafka, and one for each topic on SQS,
// where topics share nothing. A topic has one topic for dead letters in each: the nth,
// from 0, or its last. There are none if no topic has so many. Topics of Kafka without
// groups are in none.
func Subscriptions(c *config.Config, broker string, nth int) (subs []brokers.Subscription) {
	kind, most := c.Brokers[broker].Kind, 0
	for _, t := range c.Topics {
		if t.Broker != broker {
			continue
		}
		most = max(most, len(t.Dead))
		groups := t.Groups
		if kind != config.Kafka {
			groups = []string{""}
		}
		for _, group := range groups {
			i := slices.IndexFunc(subs, func(s brokers.Subscription) bool {
				return kind != config.SQS && s.Group == group && s.Receipts == t.Receipts
			})
			if i < 0 {
				i = len(subs)
				subs = append(subs, brokers.Subscription{Group: group, Receipts: t.Receipts, DeadLetters: map[string]string{}})
			}
			add(&subs[i], t, nth)
		}
	}
	if nth >= most {
		return nil
	}
	if kind != config.SQS {
		shareDelays(subs)
	}
	return subs
}

func add(s *brokers.Subscription, t config.Topic, nth int) {
	s.Topics = append(s.Topics, t.Name)
	s.DeadLetters[t.Name] = t.Dead[min(nth, len(t.Dead)-1)]
	s.MaxAttempts = max(s.MaxAttempts, t.Retry.Attempts)
	s.MaxDelay = max(s.MaxDelay, time.Duration(t.Retry.MaxDelay))
	s.MaxAge = max(s.MaxAge, time.Duration(t.Retry.MaxAge))
}

// shareDelays has all subscriptions of a group ask for the longest delay of any: the
// queues and topics in which retries wait are the same.
func shareDelays(subs []brokers.Subscription) {
	longest := map[string]time.Duration{}
	for _, s := range subs {
		longest[s.Group] = max(longest[s.Group], s.MaxDelay)
	}
	for i, s := range subs {
		subs[i].MaxDelay = longest[s.Group]
	}
}
