package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const (
	longestName    = 80
	fifoSuffix     = ".fifo"
	leastRetention = 4 * 24 * time.Hour // the default of SQS
	mostReceives   = 1000               // that a RedrivePolicy can ask for

	// longestBlock is the longest delay on a FIFO queue, where a retry waits in
	// place: it leaves an hour for the run before.
	longestBlock = maxTotal - time.Hour
)

// leastReceives is the least maxReceiveCount of a RedrivePolicy that leaves it to
// workers to end a message: each attempt may cost two receives more, by a crash, a
// release or a hop of a long delay. On top come the receives that are forgiven before
// Delivery.Abandoned counts, on standard queues with some room.
func leastReceives(topic string, maxAttempts int) int {
	if isFIFO(topic) {
		return 3*max(1, maxAttempts) + bystandersFIFO
	}
	return 3*max(1, maxAttempts) + 10
}

func isFIFO(topic string) bool { return strings.HasSuffix(topic, fifoSuffix) }

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.fifo)?$`)

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
	if len(name) > longestName || !plainName.MatchString(name) {
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
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", brokers.ErrMisconfigured, errors.Join(faults...))
	}
	return nil
}

// lasting are the topics whose messages are for people: dead letters and receipts.
func lasting(sub brokers.Subscription) []string {
	topics := slices.AppendSeq([]string{sub.Receipts}, maps.Values(sub.DeadLetters))
	slices.Sort(topics)
	return slices.DeleteFunc(slices.Compact(topics), func(topic string) bool { return topic == "" })
}

// survey looks at all queues that sub needs, and changes nothing. They are found by
// topic. Its error is why it could not look.
func (b *Broker) survey(ctx context.Context, sub brokers.Subscription) (map[string]*site, error) {
	topics, kept := stages(sub)
	all := slices.Concat(kept, topics)
	sites := make(map[string]*site, len(all))
	for _, topic := range all {
		sites[topic] = &site{topic: topic}
	}
	err := allOf(len(all), func(i int) error { return b.look(ctx, sites[all[i]]) })
	if err != nil {
		return sites, err
	}
	return sites, b.connect(ctx, sub, sites)
}

// allOf calls f with every number below n, many at once, and joins the errors.
func allOf(n int, f func(i int) error) error {
	errs := make([]error, n)
	each(n, callsAtOnce, func(i int) { errs[i] = f(i) })
	return errors.Join(errs...)
}

// look looks at a queue, and asks for its URL if that is not known.
func (b *Broker) look(ctx context.Context, s *site) (err error) {
	if s.url == "" {
		s.url, err = b.client.resolve(ctx, s.topic)
	}
	if err == nil {
		s.attrs, err = b.client.inspect(ctx, s.url)
		s.hidden = isDenied(err)
	}
	if s.missing = isGone(err); s.missing || s.hidden {
		return nil
	}
	return err
}

// connect finds out where the dead letters of each topic go.
func (b *Broker) connect(ctx context.Context, sub brokers.Subscription, sites map[string]*site) error {
	byARN := make(map[string]*site)
	for _, s := range sites {
		if s.attrs.arn != "" {
			byARN[s.attrs.arn] = s
		}
	}
	topics, _ := stages(sub)
	return allOf(len(topics), func(i int) (err error) {
		s := sites[topics[i]]
		s.letters = sites[sub.DeadLetters[s.topic]]
		if s.attrs.deadLetter == "" || sub.ReadOnly() {
			return nil
		}
		if s.net = byARN[s.attrs.deadLetter]; s.net == nil {
			s.net, err = b.lookByARN(ctx, s)
		}
		if s.net.missing && s.letters != nil && s.letters.missing && queueName(s.letters.topic) == s.net.topic {
			s.net = s.letters // not the fault of the policy
		}
		return err
	})
}

// lookByARN looks at the target of a RedrivePolicy, which is in the account and
// region of its ARN. What is no ARN cannot be looked at.
func (b *Broker) lookByARN(ctx context.Context, of *site) (*site, error) {
	s := &site{topic: arnName(of.attrs.deadLetter)}
	u, err := url.Parse(of.url)
	parts := strings.Split(of.attrs.deadLetter, ":")
	if err != nil || len(parts) != 6 {
		s.hidden = true
		return s, nil
	}
	u.Path = path.Join("/", u.Path, "../..", parts[4], parts[5])
	s.url = u.String()
	return s, b.look(ctx, s)
}

func arnName(arn string) string { return arn[strings.LastIndexByte(arn, ':')+1:] }

// findings are all that is wrong with the queues of sub. What is missing is, unless it
// will be created.
func findings(sub brokers.Subscription, sites map[string]*site, create bool) []inspect.Finding {
	rows := mixed(sub)
	for _, topic := range slices.Sorted(maps.Keys(sites)) {
		switch s := sites[topic]; {
		case s.missing && !(create && creatable(topic)):
			rows = append(rows, s.gap(sub, false))
		case sub.ReadOnly(): // takes them as they are
		case s.hidden:
			rows = append(rows, s.unread())
		case !slices.Contains(sub.Topics, topic):
		case s.missing:
			rows = append(rows, s.tooLong(sub, retention))
		default:
			rows = append(rows, s.judge(sub)...)
		}
	}
	return findingsOf(existing, rows...)
}

// creatable reports whether a topic is a name: a URL may be of another account.
func creatable(topic string) bool { return !strings.Contains(topic, "://") }

// establish looks at all that sub needs, and refuses it, or creates what is missing
// if Options.Create says so. It returns what it has created, too.
func (b *Broker) establish(ctx context.Context, sub brokers.Subscription) (sites map[string]*site, found []inspect.Finding, created []string, err error) {
	create := b.options.Create && !sub.ReadOnly()
	sites, err = b.survey(ctx, sub)
	found, refused := adapter.Taken(findings(sub, sites, create))
	if err := errors.Join(err, refused); err != nil {
		return nil, nil, nil, err
	}
	if created, err = b.create(ctx, sub, sites); err != nil || len(created) == 0 {
		return sites, found, created, err
	}
	// Somebody else may have been first, with other settings.
	if err := b.connect(ctx, sub, sites); err != nil {
		return nil, nil, created, err
	}
	found, err = adapter.Taken(findings(sub, sites, false))
	if refused, ok := errors.AsType[*brokers.TopologyError](err); ok {
		err = fmt.Errorf("%w: somebody else has made queues meanwhile: %v", brokers.ErrMisconfigured, refused.Findings)
	}
	return sites, found, created, err
}

// create creates the queues that are missing: those of topics when all that their
// policies lead to is there.
func (b *Broker) create(ctx context.Context, sub brokers.Subscription, sites map[string]*site) (created []string, err error) {
	topics, kept := stages(sub)
	for _, group := range [][]string{kept, topics} {
		missing := slices.DeleteFunc(group, func(topic string) bool { return !sites[topic].missing })
		err = allOf(len(missing), func(i int) (err error) {
			s, target := sites[missing[i]], ""
			if letters := sites[sub.DeadLetters[s.topic]]; letters != nil {
				target = letters.attrs.arn
			}
			if s.url, err = b.client.create(ctx, s.topic, wanted(sub, s.topic, target)); err != nil {
				return err
			}
			return b.look(ctx, s)
		})
		if err != nil {
			return created, err
		}
		created = append(created, missing...)
	}
	return created, nil
}

// stages are the topics of sub, and those to create before them.
func stages(sub brokers.Subscription) (topics, kept []string) {
	topics = slices.Compact(slices.Sorted(slices.Values(sub.Topics)))
	return topics, slices.DeleteFunc(lasting(sub), func(topic string) bool { return slices.Contains(topics, topic) })
}

// wanted are the attributes of a queue to create. The dead letters of a topic go to
// target, if to any.
func wanted(sub brokers.Subscription, topic, target string) map[string]string {
	isTopic, keep := slices.Contains(sub.Topics, topic), retention
	if isTopic {
		keep = min(max(leastRetention, (sub.MaxAge+sub.MaxDelay).Truncate(time.Second)+time.Second), retention)
	}
	attrs := map[string]string{nameRetention: inSeconds(keep)}
	if isFIFO(topic) {
		attrs[nameFIFO] = "true"
	}
	if isTopic && target != "" {
		attrs[namePolicy] = policy(target, min(leastReceives(topic, sub.MaxAttempts), mostReceives))
	}
	return attrs
}

// learnAll remembers the queues, and returns those to receive from.
func (b *Broker) learnAll(sub brokers.Subscription, sites map[string]*site) []queue {
	var queues []queue
	for topic, s := range sites {
		q := queue{
			topic: topic, url: s.url, fifo: isFIFO(topic), limit: s.attrs.limit, retention: cmp.Or(s.attrs.retention, leastRetention), maxDelay: furthest(topic, sub.MaxDelay), seal: b.seal,
		}
		if !sub.ReadOnly() {
			q.tight, q.receives = s.tight(sub), s.attrs.maxReceives
		}
		b.learn(q)
		if slices.Contains(sub.Topics, topic) {
			queues = append(queues, q)
		}
	}
	slices.SortFunc(queues, func(a, b queue) int { return strings.Compare(a.topic, b.topic) })
	return queues
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
