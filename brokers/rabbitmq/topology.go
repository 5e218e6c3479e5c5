package rabbitmq

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
)

// names makes the names of what the adapter declares.
type names struct{ prefix string }

// shelf names the exchange and the queue of a shelf.
func (n names) shelf(delay time.Duration) string {
	return n.prefix + ".delay.v1." + strconv.FormatInt(delay.Milliseconds(), 10)
}

// retry names the queue in which the messages of topic come back from their
// shelves. It is apart from the queue of the topic, so that a backlog there
// makes no retry late, and so that only workers write to it.
func (n names) retry(topic string) string { return n.prefix + ".retry.v1." + topic }

// dead names the exchange from the queues to their dead-letter queues, for
// what the broker itself gives up.
func (n names) dead() string { return n.prefix + ".dead.v1" }

func (n names) check(sub brokers.Subscription) error {
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
	room := longestName - len(n.retry(""))
	for _, topic := range sub.Topics {
		switch {
		case topic == "":
			fault("a topic of the subscription has no name")
		case len(topic) > room:
			fault("the topic %.40q... has %d bytes, the longest has %d", topic, len(topic), room)
		}
	}
	for topic, dead := range sub.DeadLetters {
		if dead == "" || len(dead) > longestName {
			fault("the dead-letter topic of %q has %d bytes: use 1 to %d", topic, len(dead), longestName)
		}
	}
	return errors.Join(faults...)
}

// queue is a queue to declare or verify.
type queue struct {
	name string
	args amqp.Table
}

// binding leads from an exchange to a queue.
type binding struct{ exchange, kind, key, queue string }

// topology is what a subscription needs, in the order of declaration.
type topology struct {
	queues   []queue
	bindings []binding
}

// plan lists the queues and exchanges for sub. All queues of topics are alike,
// whether dead letters are kept or not, since the arguments of a queue cannot
// be changed later; that is in the bindings.
func (n names) plan(sub brokers.Subscription, shelves shelfPlan) topology {
	var t topology
	seen := make(map[string]bool)
	topic := func(name, of string) {
		if !seen[name] {
			seen[name] = true
			t.queues = append(t.queues, queue{name, n.topicArgs(of)})
		}
	}
	for _, name := range sub.Topics {
		topic(name, name)
		topic(n.retry(name), name)
		dead, kept := sub.DeadLetters[name]
		if kept {
			topic(dead, dead)
			t.bindings = append(t.bindings, binding{n.dead(), amqp.ExchangeDirect, name, dead})
		} else {
			t.bindings = append(t.bindings, binding{exchange: n.dead(), kind: amqp.ExchangeDirect})
		}
	}
	for _, delay := range shelves {
		name := n.shelf(delay)
		t.queues = append(t.queues, queue{name, shelfArgs(delay)})
		t.bindings = append(t.bindings, binding{name, amqp.ExchangeFanout, "", name})
	}
	return t
}

// topicArgs are those of the queues whose messages, when the broker gives them
// up, are dead letters of topic.
func (n names) topicArgs(topic string) amqp.Table {
	return amqp.Table{
		"x-queue-type":              "quorum",
		"x-delivery-limit":          int64(deliveryLimit),
		"x-dead-letter-exchange":    n.dead(),
		"x-dead-letter-routing-key": topic,
		"x-dead-letter-strategy":    "at-least-once",
		"x-overflow":                "reject-publish",
	}
}

// shelfArgs make a queue that sends each message on after delay, to the queue
// that its routing key names, and keeps it until that queue has it.
func shelfArgs(delay time.Duration) amqp.Table {
	return amqp.Table{
		"x-queue-type":           "quorum",
		"x-message-ttl":          delay.Milliseconds(),
		"x-dead-letter-exchange": "", // the default one, to which every queue is bound by its name
		"x-dead-letter-strategy": "at-least-once",
		"x-overflow":             "reject-publish",
	}
}

// establish declares t, or verifies that it is there.
func (l *link) establish(t topology, verify bool) error {
	for _, q := range t.queues {
		if err := l.establishQueue(q, verify); err != nil {
			return fmt.Errorf("queue %q: %w", q.name, err)
		}
	}
	for _, b := range t.bindings {
		if err := l.establishBinding(b, verify); err != nil {
			return fmt.Errorf("exchange %q: %w", b.exchange, err)
		}
	}
	return nil
}

func (l *link) establishQueue(q queue, verify bool) error {
	if verify {
		err := l.once(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(q.name, true, false, false, false, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	return l.once(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.name, true, false, false, false, q.args)
		return err
	})
}

func (l *link) establishBinding(b binding, verify bool) error {
	return l.once(func(ch *amqp.Channel) error {
		if verify {
			return ch.ExchangeDeclarePassive(b.exchange, b.kind, true, false, false, false, nil)
		}
		if err := ch.ExchangeDeclare(b.exchange, b.kind, true, false, false, false, nil); err != nil || b.queue == "" {
			return err
		}
		return ch.QueueBind(b.queue, b.key, b.exchange, false, nil)
	})
}

// once runs f on a channel for requests; one that failed is replaced.
func (l *link) once(f func(*amqp.Channel) error) error {
	err := l.call(func() (err error) {
		if l.setup == nil || l.setup.IsClosed() {
			if l.setup, err = l.conn.Channel(); err != nil {
				return err
			}
		}
		return f(l.setup)
	})
	if err != nil {
		return explain(err)
	}
	return nil
}
