package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// delayRanges are the delays that share a topic. What waits for an hour keeps
// the low-water mark of its topic back for as long, so it shares none with what
// waits for a minute. The last one takes longer delays, too.
var delayRanges = []struct {
	name    string
	longest time.Duration
}{
	{"1m", time.Minute},
	{"15m", 15 * time.Minute},
	{"3h", 3 * time.Hour},
	{"24h", 24 * time.Hour},
}

const (
	// outage is for how long workers may be down without a retry falling off
	// its topic, where Open creates it.
	outage = 7 * 24 * time.Hour

	// leastOutage is what a delay topic must allow that exists already.
	leastOutage = time.Hour

	// headroom is how much larger a copy may be than its original.
	headroom = 64 << 10

	longestName = 249
)

// plan is what a subscription needs of the cluster.
type plan struct {
	group    string
	readOnly bool // of topics, and nothing else is asked for
	topics   []string
	dead     []string
	receipts []string     // a topic, or none
	delays   []delayTopic // by rising delay
	longer   []delayTopic // which the subscription does not need
	maxDelay time.Duration

	largest int            // batch that a topic of the subscription takes, 0 if the cluster does not say
	known   map[string]int // partitions that the topics had at first: Options.Start is for them
}

type delayTopic struct {
	name    string
	longest time.Duration // delay
	needed  time.Duration // the longest that the subscription asks for
}

// plan names the topics of sub, or says what is wrong with it.
func (o Options) plan(sub brokers.Subscription) (plan, error) {
	p := plan{group: sub.Group, readOnly: sub.ReadOnly(), maxDelay: sub.MaxDelay, topics: slices.Compact(slices.Sorted(slices.Values(sub.Topics)))}
	if sub.Receipts != "" {
		p.receipts = []string{sub.Receipts}
	}
	var faults []error
	if p.group == "" {
		faults = append(faults, errors.New("no group: set consumer.Config.Group or Options.Group, the name that workers share"))
	} else if !isName(p.group) && !p.readOnly {
		faults = append(faults, fmt.Errorf("the group %q is part of the names of topics: use letters, digits, dots, hyphens and underscores", p.group))
	}
	if len(p.topics) == 0 {
		faults = append(faults, errors.New("no topic"))
	}
	p.dead = slices.Compact(slices.Sorted(maps.Values(sub.DeadLetters)))
	for _, name := range slices.Concat(p.topics, p.dead, p.receipts) {
		if !isName(name) {
			faults = append(faults, fmt.Errorf("%q cannot be the name of a topic: use at most %d letters, digits, dots, hyphens and underscores", name, longestName))
		}
	}
	ranges := delayRanges
	if p.readOnly {
		ranges = nil
	}
	for i, r := range ranges {
		longest := r.longest
		if i == len(delayRanges)-1 {
			longest = max(longest, sub.MaxDelay)
		}
		t := delayTopic{o.delayTopic(p.group, r.name), longest, min(longest, sub.MaxDelay)}
		if len(t.name) > longestName {
			faults = append(faults, fmt.Errorf("the topic %q has %d characters, the longest has %d: shorten the group or Options.Prefix", t.name, len(t.name), longestName))
		}
		if i > 0 && sub.MaxDelay <= delayRanges[i-1].longest {
			p.longer = append(p.longer, t)
		} else {
			p.delays = append(p.delays, t)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return plan{}, fmt.Errorf("%w: %w", brokers.ErrMisconfigured, err)
	}
	return p, nil
}

// delayTopic names the topic of a group for one of delayRanges.
func (o Options) delayTopic(group, delays string) string {
	return fmt.Sprintf("%s.delay.v1.%s.%s", o.Prefix, group, delays)
}

// returnTopic names the topic in which the messages of topic come back to group.
func (o Options) returnTopic(group, topic string) (string, error) {
	name := o.delayTopic(group, delayRanges[0].name)
	switch {
	case group == "":
		return "", fmt.Errorf("%w: no group: name the one that gave the message up, or publish to %q, which every group sees", brokers.ErrMisconfigured, topic)
	case !isName(group), !isName(name):
		return "", fmt.Errorf("%w: no worker can have the group %q, whose delay topic would be %q", brokers.ErrMisconfigured, group, name)
	case !isName(topic):
		return "", fmt.Errorf("%w: %q cannot be the name of a topic", brokers.ErrMisconfigured, topic)
	}
	return name, nil
}

// pick returns the topic for a delay.
func (p plan) pick(delay time.Duration) string {
	for _, t := range p.delays {
		if delay <= t.longest {
			return t.name
		}
	}
	return p.delays[len(p.delays)-1].name
}

// consumed are the topics that the group reads.
func (p plan) consumed() []string {
	names := slices.Clone(p.topics)
	for _, t := range p.delays {
		names = append(names, t.name)
	}
	return names
}

func isName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > longestName {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
