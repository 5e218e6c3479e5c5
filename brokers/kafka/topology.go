package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

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

	largest int   // batch that a topic of the subscription takes, 0 if the cluster does not say
	tight   error // the topics that take what comes in, and have no room for more headers
}

type delayTopic struct {
	name    string
	longest time.Duration // delay
	needed  time.Duration // the longest that the subscription asks for
}

// plan names the topics of sub, or says what is wrong with it.
func (o Options) plan(sub brokers.Subscription) (plan, error) {
	p := plan{group: sub.Group, readOnly: sub.ReadOnly(), topics: slices.Compact(slices.Sorted(slices.Values(sub.Topics)))}
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

// adopt has the group read the topics for longer delays, too, if there are any:
// an earlier policy may have left retries in them.
func (b *Broker) adopt(ctx context.Context, p plan) (plan, error) {
	var names []string
	for _, t := range p.longer {
		names = append(names, t.name)
	}
	states, err := b.client.topics(ctx, names...)
	if err != nil {
		return plan{}, err
	}
	for _, t := range p.longer {
		if !states[t.name].missing {
			p.delays = append(p.delays, t)
		}
	}
	return p, nil
}

// establish creates what is missing, and verifies all of it. It returns what
// the group reads.
func (b *Broker) establish(ctx context.Context, p *plan) (map[string]topicState, error) {
	delays := make([]string, len(p.delays))
	for i, t := range p.delays {
		delays[i] = t.name
	}
	states, err := b.client.topics(ctx, slices.Concat(p.topics, p.dead, p.receipts, delays)...)
	if err != nil {
		return nil, err
	}
	for _, name := range p.topics {
		if states[name].missing {
			return nil, fmt.Errorf("%w: the topic %q does not exist: create it", brokers.ErrMisconfigured, name)
		}
	}
	p.largest, err = b.largest(ctx, p.topics)
	if p.readOnly && errors.Is(err, kafka.TopicAuthorizationFailed) { // to describe settings is a right of its own
		err = nil
	}
	if err != nil {
		return nil, err
	}
	limit := min(max(p.largest, b.options.MessageLimit), math.MaxInt32-headroom)
	settings := map[string]string{"cleanup.policy": "delete", "max.message.bytes": strconv.Itoa(limit + headroom)}
	settings["retention.bytes"] = "-1"
	settings["retention.ms"] = "-1"
	for _, name := range p.dead {
		if err := b.provide(ctx, name, states[name], states[p.topics[0]].partitions, settings); err != nil {
			return nil, err
		}
	}
	for _, name := range p.receipts { // whatever the cluster keeps by default: a lost receipt loses no message
		if err := b.provide(ctx, name, states[name], 0, map[string]string{"cleanup.policy": "delete"}); err != nil {
			return nil, err
		}
	}
	for _, t := range p.delays {
		settings := maps.Clone(settings)
		settings["retention.ms"] = strconv.FormatInt((t.longest + outage).Milliseconds(), 10)
		if err := b.provide(ctx, t.name, states[t.name], b.options.DelayPartitions, settings); err != nil {
			return nil, err
		}
	}
	if err := b.verify(ctx, p); err != nil {
		return nil, err
	}
	return b.client.topics(ctx, p.consumed()...)
}

// largest is the largest message that a topic of names takes, 0 if the cluster
// does not say.
func (b *Broker) largest(ctx context.Context, names []string) (int, error) {
	configs, err := b.client.configs(ctx, names...)
	if err != nil {
		return 0, err
	}
	most := 0
	for _, config := range configs {
		if n, err := strconv.Atoi(config["max.message.bytes"]); err == nil {
			most = max(most, n)
		}
	}
	return most, nil
}

func (b *Broker) provide(ctx context.Context, name string, state topicState, partitions int, settings map[string]string) error {
	switch {
	case !state.missing:
		return nil
	case b.options.Verify:
		return fmt.Errorf("%w: the topic %q does not exist: create it, with %v, or let Run do so (Options.Verify is false)", brokers.ErrMisconfigured, name, settings)
	}
	return b.client.create(ctx, name, partitions, b.options.Replication, settings)
}

// verify refuses settings of topics that lose what is stored in them, or do not
// take messages as large as those that come in. It notes what has no room for
// their headers besides.
func (b *Broker) verify(ctx context.Context, p *plan) error {
	names := make([]string, len(p.delays))
	for i, t := range p.delays {
		names[i] = t.name
	}
	configs, err := b.client.configs(ctx, slices.Concat(names, p.dead)...)
	if err != nil {
		return err
	}
	var faults []error
	wrong := func(topic, key, want, why string) {
		faults = append(faults, fmt.Errorf("the topic %q has %s=%s: set it to %s, as %s", topic, key, configs[topic][key], want, why))
	}
	for _, t := range p.delays {
		config := configs[t.name]
		if config["cleanup.policy"] != "delete" {
			wrong(t.name, "cleanup.policy", "delete", "compaction drops retries with equal keys")
		}
		if config["retention.bytes"] != "-1" {
			wrong(t.name, "retention.bytes", "-1", "retries must not be deleted because there are many")
		}
		least := (t.needed + leastOutage).Milliseconds()
		if ms, err := strconv.ParseInt(config["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < least {
			wrong(t.name, "retention.ms", fmt.Sprintf("%d or more", least),
				fmt.Sprintf("retries wait there for up to %v, and for the end of an outage", t.needed))
		}
	}
	for _, name := range p.dead {
		if configs[name]["cleanup.policy"] != "delete" {
			wrong(name, "cleanup.policy", "delete", "compaction drops dead letters with equal keys")
		}
	}
	var tight []error
	for _, name := range slices.Concat(names, p.dead) {
		n, err := strconv.Atoi(configs[name]["max.message.bytes"])
		switch want := p.largest + headroom; {
		case err != nil || n >= want:
		case n < p.largest:
			wrong(name, "max.message.bytes", fmt.Sprintf("%d or more", want),
				fmt.Sprintf("messages of up to %d bytes come in, and their copies have more headers", p.largest))
		default:
			tight = append(tight, fmt.Errorf("the topic %q has max.message.bytes=%d, which leaves no room for the headers of copies "+
				"of the largest messages, of up to %d bytes: those that do not fit are not copied, or lose their body; set it to %d or more", name, n, p.largest, want))
		}
	}
	p.tight = errors.Join(tight...)
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%w: %w", brokers.ErrMisconfigured, err)
	}
	return nil
}
