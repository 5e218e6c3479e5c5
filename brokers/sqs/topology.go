package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const (
	longestName    = 80
	fifoSuffix     = ".fifo"
	leastRetention = 4 * 24 * time.Hour // the default of SQS
	mostReceives   = 1000               // that a RedrivePolicy can ask for
	calling        = 8                  // queues that are asked about at a time

	// longestBlock is the longest delay on a FIFO queue, where a retry waits in
	// place: it leaves an hour for the run before.
	longestBlock = maxTotal - time.Hour
)

// leastReceives is the least maxReceiveCount of a RedrivePolicy that cannot end
// a message before its attempts have: a receive is also a crash, a release, or
// a hop of a long delay. On a FIFO queue a message is received with up to nine
// before it in its group, too, whenever one of these is.
func leastReceives(topic string, maxAttempts int) int {
	receives := 3*maxAttempts + bystanders
	if isFIFO(topic) {
		receives *= batchSize
	}
	return receives
}

func isFIFO(topic string) bool { return strings.HasSuffix(topic, fifoSuffix) }

// checkName says what is wrong with a topic.
func checkName(topic string) error {
	name := topic
	if strings.Contains(topic, "://") {
		u, err := url.Parse(topic)
		if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || strings.Count(u.Path, "/") < 2 || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%q cannot be the URL of a queue: use one such as https://sqs.eu-central-1.amazonaws.com/123456789012/orders", printable(topic)[0])
		}
		name = u.Path[strings.LastIndexByte(u.Path, '/')+1:]
	}
	base := strings.TrimSuffix(name, fifoSuffix)
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}
	if base == "" || len(name) > longestName || strings.ContainsFunc(base, other) {
		return fmt.Errorf("%q cannot be the name of a queue: use at most %d letters, digits, hyphens and underscores, and the ending %s for a FIFO queue",
			printable(topic)[0], longestName, fifoSuffix)
	}
	return nil
}

// printable returns topics without what may be a password: all before the last @
// of a URL.
func printable(topics ...string) []string {
	out := slices.Clone(topics)
	for i, topic := range topics {
		scheme, rest, ok := strings.Cut(topic, "://")
		if at := strings.LastIndexByte(rest, '@'); ok && at >= 0 {
			out[i] = scheme + "://…" + rest[at:]
		}
	}
	return out
}

// check says what is wrong with a subscription, whatever the queues are like.
func check(sub brokers.Subscription, t terms) error {
	var faults []error
	if len(sub.Topics) == 0 {
		faults = append(faults, errors.New("no topic"))
	}
	for _, topic := range slices.Concat(sub.Topics, lasting(sub)) {
		if err := checkName(topic); err != nil {
			faults = append(faults, err)
		}
	}
	fifo := slices.ContainsFunc(sub.Topics, isFIFO)
	standard := slices.IndexFunc(sub.Topics, func(topic string) bool { return !isFIFO(topic) })
	if fifo && standard >= 0 {
		faults = append(faults, fmt.Errorf("%q is a standard queue and others are FIFO queues: subscribe to them with two consumers, as they keep order differently", sub.Topics[standard]))
	}
	if fifo && sub.MaxDelay > longestBlock {
		faults = append(faults, fmt.Errorf("delays of up to %v are too long for FIFO queues, where a retry waits in place, and SQS lets a message be held for 12 h in all: lower the cap of the retry policy to %v",
			sub.MaxDelay, longestBlock))
	}
	if t.lease > longestLease {
		faults = append(faults, fmt.Errorf("leases of %v are too long, SQS lets nobody hold a message for more than 12 h: ask for at most %v", t.lease, longestLease))
	}
	for _, topic := range sub.Topics {
		if dead := sub.DeadLetters[topic]; dead != "" && isFIFO(dead) != isFIFO(topic) {
			faults = append(faults, fmt.Errorf("%q is the dead-letter queue of %q, and one of them alone is a FIFO queue: make both of one type", dead, topic))
		}
	}
	return misconfigured(errors.Join(faults...))
}

// lasting are the topics whose messages are for people: dead letters and receipts.
func lasting(sub brokers.Subscription) []string {
	topics := slices.AppendSeq([]string{sub.Receipts}, maps.Values(sub.DeadLetters))
	slices.Sort(topics)
	return slices.DeleteFunc(slices.Compact(topics), func(topic string) bool { return topic == "" })
}

func misconfigured(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", brokers.ErrMisconfigured, err)
}

// site is what Open finds of a queue.
type site struct {
	url    string
	attrs  attributes
	hidden bool // the attributes cannot be read
}

// establish finds the queues of a subscription, or creates them, and verifies
// them.
func (b *Broker) establish(ctx context.Context, sub brokers.Subscription) ([]queue, error) {
	topics := slices.Compact(slices.Sorted(slices.Values(sub.Topics)))
	if sub.ReadOnly() {
		sites, err := b.find(ctx, topics, nil)
		if err != nil {
			return nil, err
		}
		return b.learnAll(sub, sites), nil
	}
	kept := slices.DeleteFunc(lasting(sub), func(topic string) bool { return slices.Contains(topics, topic) })
	sites, err := b.find(ctx, kept, func(topic string) (map[string]string, error) {
		return settings(topic, retention, "", 0), nil
	})
	found, fault := b.find(ctx, topics, func(topic string) (map[string]string, error) {
		if err != nil {
			return nil, fmt.Errorf("the queue %q is missing, and is not created before all dead-letter queues, and that for receipts, are there", topic)
		}
		keep := max(leastRetention, (sub.MaxAge+sub.MaxDelay).Truncate(time.Second)+time.Second)
		if keep > retention {
			return nil, misconfigured(tooLong(topic, sub, retention))
		}
		return settings(topic, keep, sites[sub.DeadLetters[topic]].attrs.arn, leastReceives(topic, sub.MaxAttempts)), nil
	})
	if err := errors.Join(err, fault); err != nil {
		return nil, err
	}
	maps.Copy(sites, found)
	if err := b.verify(ctx, sub, sites); err != nil {
		return nil, err
	}
	return b.learnAll(sub, sites), nil
}

// learnAll remembers the queues, and returns those to receive from.
func (b *Broker) learnAll(sub brokers.Subscription, sites map[string]site) []queue {
	var queues []queue
	for topic, s := range sites {
		q := queue{topic: topic, url: s.url, fifo: isFIFO(topic), limit: s.attrs.limit, maxDelay: furthest(topic, sub.MaxDelay), seal: b.seal}
		if q.limit == 0 {
			q.limit = largest
		}
		b.learn(q)
		if slices.Contains(sub.Topics, topic) {
			queues = append(queues, q)
		}
	}
	slices.SortFunc(queues, func(a, b queue) int { return strings.Compare(a.topic, b.topic) })
	return queues
}

// settings are the attributes of a queue to create.
func settings(topic string, keep time.Duration, deadARN string, receives int) map[string]string {
	attrs := map[string]string{"MessageRetentionPeriod": strconv.Itoa(int(keep / time.Second))}
	if isFIFO(topic) {
		attrs["FifoQueue"] = "true"
	}
	if deadARN != "" {
		policy, _ := json.Marshal(map[string]string{ // strings cannot fail
			"deadLetterTargetArn": deadARN,
			"maxReceiveCount":     strconv.Itoa(min(receives, mostReceives)),
		})
		attrs["RedrivePolicy"] = string(policy)
	}
	return attrs
}

// find looks up topics, a few at a time. Those that are missing are created
// with attrs if Options.Create says so. Attrs is nil if they are only read: then
// nothing is created, and nothing need be known of them.
func (b *Broker) find(ctx context.Context, topics []string, attrs func(topic string) (map[string]string, error)) (map[string]site, error) {
	found := make([]site, len(topics))
	errs := make([]error, len(topics))
	slots := make(chan struct{}, calling)
	var work sync.WaitGroup
	for i, topic := range topics {
		slots <- struct{}{}
		work.Go(func() {
			found[i], errs[i] = b.findOne(ctx, topic, attrs)
			<-slots
		})
	}
	work.Wait()
	sites := make(map[string]site, len(topics))
	for i, topic := range topics {
		sites[topic] = found[i]
	}
	return sites, errors.Join(errs...)
}

func (b *Broker) findOne(ctx context.Context, topic string, attrs func(string) (map[string]string, error)) (site, error) {
	address, err := b.client.resolve(ctx, topic)
	reads := attrs == nil
	if isGone(err) && b.options.Create && !reads && !strings.Contains(topic, "://") {
		var set map[string]string
		if set, err = attrs(topic); err == nil {
			address, err = b.client.create(ctx, topic, set)
		}
	}
	if err != nil {
		return site{}, err
	}
	s := site{url: address}
	s.attrs, err = b.client.inspect(ctx, address)
	if err != nil && (b.options.AllowUnverified || reads) && isDenied(err) {
		s.hidden, err = true, nil
	}
	return s, err
}

// verify refuses what would end, drop or hide messages before their time.
func (b *Broker) verify(ctx context.Context, sub brokers.Subscription, sites map[string]site) error {
	var faults []error
	for _, topic := range sub.Topics {
		s := sites[topic]
		if s.hidden {
			continue
		}
		faults = append(faults, verifyQueue(topic, sub, s.attrs)...)
		if dead := sub.DeadLetters[topic]; dead != "" && !sites[dead].hidden {
			faults = append(faults, verifyDead(topic, dead, s.attrs, sites[dead].attrs)...)
			faults = append(faults, verifyRoom(topic, dead, s.attrs, sites[dead].attrs))
		}
		native, err := b.native(ctx, s, sites)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("the RedrivePolicy of %q leads to %q, which cannot be verified: %w", topic, s.attrs.deadLetter, err))
		case native != nil && s.attrs.deadLetter != sites[sub.DeadLetters[topic]].attrs.arn:
			faults = append(faults, verifyDead(topic, arnName(s.attrs.deadLetter), s.attrs, *native)...)
		}
	}
	return misconfigured(errors.Join(faults...))
}

func verifyQueue(topic string, sub brokers.Subscription, attrs attributes) (faults []error) {
	if attrs.retention > 0 && sub.MaxAge+sub.MaxDelay > attrs.retention {
		faults = append(faults, tooLong(topic, sub, attrs.retention))
	}
	if attrs.deadLetter == "" {
		return faults
	}
	if least := leastReceives(topic, sub.MaxAttempts); attrs.maxReceives < least {
		faults = append(faults, fmt.Errorf("the RedrivePolicy of %q has maxReceiveCount %d and would end messages before their %d attempts, as crashes, releases and long delays count, too: set it to %d or more, or remove the policy",
			topic, attrs.maxReceives, sub.MaxAttempts, least))
	}
	if isFIFO(attrs.deadLetter) != isFIFO(topic) {
		faults = append(faults, fmt.Errorf("the RedrivePolicy of %q leads to %q, and one of them alone is a FIFO queue: make both of one type", topic, arnName(attrs.deadLetter)))
	}
	return faults
}

func tooLong(topic string, sub brokers.Subscription, kept time.Duration) error {
	return fmt.Errorf("retries may take %v (an age of %v and a delay of %v), and %q keeps messages for %v: raise its MessageRetentionPeriod, which can be 14 days, or lower the age or the cap of the retry policy",
		sub.MaxAge+sub.MaxDelay, sub.MaxAge, sub.MaxDelay, topic, kept)
}

func verifyDead(topic, dead string, attrs, deadAttrs attributes) (faults []error) {
	if attrs.retention > 0 && deadAttrs.retention > 0 && deadAttrs.retention < attrs.retention {
		faults = append(faults, fmt.Errorf("the dead-letter queue %q keeps messages for %v, and %q for %v: a dead letter may be gone before anybody has seen it; raise MessageRetentionPeriod of %q to at least %d",
			dead, deadAttrs.retention, topic, attrs.retention, dead, int(attrs.retention/time.Second)))
	}
	return faults
}

// verifyRoom refuses a dead-letter queue that does not take what its queue takes:
// it would be tried again and again, and be gone when the retention ends.
func verifyRoom(topic, dead string, attrs, deadAttrs attributes) error {
	if attrs.limit == 0 || deadAttrs.limit == 0 || deadAttrs.limit >= attrs.limit {
		return nil
	}
	return fmt.Errorf("the dead-letter queue %q takes messages of up to %d bytes, and %q of up to %d: a larger one could never be dead-lettered; raise MaximumMessageSize of %q to at least %d, which can be done while it is in use",
		dead, deadAttrs.limit, topic, attrs.limit, dead, attrs.limit)
}

// native asks about the target of a RedrivePolicy that is not among sites. The
// target is in the account and region of its ARN.
func (b *Broker) native(ctx context.Context, s site, sites map[string]site) (*attributes, error) {
	if s.attrs.deadLetter == "" {
		return nil, nil
	}
	for _, other := range sites {
		if other.attrs.arn == s.attrs.deadLetter {
			return &other.attrs, nil
		}
	}
	u, err := url.Parse(s.url)
	parts := strings.Split(s.attrs.deadLetter, ":")
	if err != nil || len(parts) != 6 {
		return nil, fmt.Errorf("%q is no ARN of a queue", s.attrs.deadLetter)
	}
	base := strings.TrimSuffix(u.Path, "/")
	for range 2 {
		base = base[:max(0, strings.LastIndexByte(base, '/'))]
	}
	u.Path = base + "/" + parts[4] + "/" + parts[5]
	attrs, err := b.client.inspect(ctx, u.String())
	switch {
	case err == nil:
		return &attrs, nil
	case b.options.AllowUnverified && isDenied(err):
		return nil, nil
	}
	return nil, err
}

func arnName(arn string) string { return arn[strings.LastIndexByte(arn, ':')+1:] }

// isDenied reports whether err is a matter of rights.
func isDenied(err error) bool {
	code, _ := codeOf(err)
	return code == "AccessDenied"
}

// furthest is how far ahead the due time of a message of topic may lie: a retry
// under an earlier policy may wait for a day. On a FIFO queue, where it would hold up
// its group, it waits in place, and what a copy claims is no more than the policy has.
func furthest(topic string, maxDelay time.Duration) time.Duration {
	if isFIFO(topic) || maxDelay == 0 {
		return maxDelay
	}
	return max(maxDelay, 24*time.Hour)
}
