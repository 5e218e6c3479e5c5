package rabbitmq

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

const (
	longestName   = 255 // of a queue, exchange or routing key, in bytes
	longestPrefix = 64

	// deliveryLimit is how often the broker delivers one copy of a message
	// before it dead-letters it by itself. It is the default of RabbitMQ 4,
	// and more than the crashes that the pipeline tolerates.
	deliveryLimit = 20

	// unlimited is the delivery limit where no dead-letter queue follows. It
	// is a number because RabbitMQ 3 takes -1 for less than 0, and RabbitMQ 4
	// takes no limit for 20.
	unlimited = math.MaxInt32
)

// names makes the names of what the adapter declares.
type names struct{ prefix string }

// delay names a delay queue and its exchange.
func (n names) delay(delay time.Duration) string {
	return n.prefix + ".delay.v2." + strconv.FormatInt(delay.Milliseconds(), 10)
}

// retry names the queue in which the messages of topic come back from their
// delay queues. It is apart from the queue of the topic, so that a backlog there
// makes no retry late, and so that only workers write to it.
func (n names) retry(topic string) string { return n.prefix + ".retry.v1." + topic }

// topic is whose messages come back to a queue, or the queue itself.
func (n names) topic(queue string) string { return strings.TrimPrefix(queue, n.retry("")) }

// returns names the exchange from the delay queues to the queues of retries.
func (n names) returns() string { return n.prefix + ".return.v1" }

// unroutable names the exchange and the queue for what comes back from a delay queue
// after its queue was deleted: a delay queue keeps what it cannot route, and moves
// nothing else when 32 of that are on their way.
func (n names) unroutable() string { return n.prefix + ".unroutable.v1" }

// copies names the exchange that workers publish to what needs no delay: copies
// for the queues of retries, dead letters, and receipts. Unlike the default
// exchange it leads to these queues alone, each bound by its name; and unlike
// returns it has no alternate, so that what has lost its queue is refused.
func (n names) copies() string { return n.prefix + ".copy.v1" }

// dead names the exchange from the queues to their dead-letter queues, for
// what the broker itself gives up.
func (n names) dead() string { return n.prefix + ".dead.v1" }

// check says what is wrong with a subscription. Its topics leave room for the names of
// their queues of retries.
func (n names) check(sub brokers.Subscription) error {
	longest := longestName
	if !sub.ReadOnly() {
		longest -= len(n.retry(""))
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format+": %w", append(args, brokers.ErrMisconfigured)...))
	}
	if len(sub.Topics) == 0 {
		fault("the subscription names no topic")
	}
	if sorted := slices.Sorted(slices.Values(sub.Topics)); len(slices.Compact(sorted)) < len(sub.Topics) {
		fault("the subscription names a topic twice")
	}
	for _, topic := range sub.Topics {
		switch {
		case topic == "":
			fault("a topic of the subscription has no name")
		case len(topic) > longest:
			fault("the topic %.40q... has %d bytes, the longest has %d", topic, len(topic), longest)
		}
	}
	if len(sub.Receipts) > longestName {
		fault("the topic for receipts has %d bytes, the longest has %d", len(sub.Receipts), longestName)
	}
	for topic, dead := range sub.DeadLetters {
		if dead == "" || len(dead) > longestName {
			fault("the dead-letter topic of %q has %d bytes: use 1 to %d", topic, len(dead), longestName)
		}
	}
	return errors.Join(faults...)
}

// Arguments of queues.
const (
	argType      = "x-queue-type"
	argLimit     = "x-delivery-limit"
	argExchange  = "x-dead-letter-exchange"
	argKey       = "x-dead-letter-routing-key"
	argStrategy  = "x-dead-letter-strategy"
	argOverflow  = "x-overflow"
	argTTL       = "x-message-ttl"
	argSingle    = "x-single-active-consumer"
	argExpires   = "x-expires"
	argMaxLength = "x-max-length"
	argMaxBytes  = "x-max-length-bytes"

	atLeastOnce    = "at-least-once"
	overflowReject = "reject-publish"
	overflowDrop   = "drop-head"

	argAlternate = "alternate-exchange" // of an exchange
)

// queue is a queue to declare or verify.
type queue struct {
	name string
	role role
	kept bool // its topic has dead letters
	args amqp.Table
}

// binding leads from an exchange to a queue.
type binding struct {
	exchange, kind, key, queue string
	args                       amqp.Table // of the exchange
}

// topology is what a subscription needs, in the order of declaration.
type topology struct {
	found    []string // queues that must be there, whatever they are like
	queues   []queue
	bindings []binding
}

// plan lists the queues and exchanges for sub.
func (n names) plan(sub brokers.Subscription, delays delayPlan) topology {
	if sub.ReadOnly() {
		return topology{found: sub.Topics}
	}
	var t topology
	seen := make(map[string]bool)
	add := func(name, of string, limit int64, as role) {
		if !seen[name] {
			seen[name] = true
			t.queues = append(t.queues, queue{name, as, limit == deliveryLimit, n.topicArgs(of, limit)})
		}
	}
	for _, name := range sub.Topics {
		dead, kept := sub.DeadLetters[name]
		bound, limit := binding{exchange: n.dead(), kind: amqp.ExchangeDirect}, int64(unlimited)
		if kept {
			bound.key, bound.queue, limit = name, dead, deliveryLimit
		}
		add(name, name, limit, entry)
		add(n.retry(name), name, limit, ours)
		if kept {
			add(dead, dead, unlimited, letters)
		}
		t.bindings = append(t.bindings, bound, binding{
			exchange: n.returns(), kind: amqp.ExchangeDirect, key: n.retry(name), queue: n.retry(name),
			args: amqp.Table{argAlternate: n.unroutable()},
		}, n.copiesTo(n.retry(name)))
		if kept {
			t.bindings = append(t.bindings, n.copiesTo(dead))
		}
	}
	if sub.Receipts != "" {
		add(sub.Receipts, sub.Receipts, unlimited, receipts)
		t.bindings = append(t.bindings, n.copiesTo(sub.Receipts))
	}
	add(n.unroutable(), n.unroutable(), unlimited, ours)
	t.bindings = append(t.bindings, binding{exchange: n.unroutable(), kind: amqp.ExchangeFanout, queue: n.unroutable()})
	for _, delay := range delays {
		name := n.delay(delay)
		t.queues = append(t.queues, queue{name: name, args: n.delayArgs(delay)})
		t.bindings = append(t.bindings, binding{exchange: name, kind: amqp.ExchangeFanout, queue: name})
	}
	return t
}

// part is the part of t for one queue: the queue itself, and the bindings to it.
func (t topology) part(name string) (p topology) {
	for _, q := range t.queues {
		if q.name == name {
			p.queues = append(p.queues, q)
		}
	}
	for _, x := range t.bindings {
		if x.queue == name {
			p.bindings = append(p.bindings, x)
		}
	}
	return p
}

// copiesTo leads from the exchange of copies to queue.
func (n names) copiesTo(queue string) binding {
	return binding{exchange: n.copies(), kind: amqp.ExchangeDirect, key: queue, queue: queue}
}

// topicArgs are those of the queues whose messages, when the broker gives them
// up after limit deliveries, are dead letters of topic.
func (n names) topicArgs(topic string, limit int64) amqp.Table {
	return amqp.Table{
		argType:     typeQuorum,
		argLimit:    limit,
		argExchange: n.dead(),
		argKey:      topic,
		argStrategy: atLeastOnce,
		argOverflow: overflowReject,
	}
}

// delayArgs make a queue that sends each message on after delay, to the queue
// that its routing key names, and keeps it until that queue has it.
func (n names) delayArgs(delay time.Duration) amqp.Table {
	return amqp.Table{
		argType:     typeQuorum,
		argTTL:      delay.Milliseconds(),
		argExchange: n.returns(),
		argStrategy: atLeastOnce,
		argOverflow: overflowReject,
	}
}
