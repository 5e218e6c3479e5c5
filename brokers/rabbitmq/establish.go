package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// establish declares t, or verifies that it is there, as o says.
func (l *link) establish(t topology, o Options) error {
	for _, name := range t.found {
		if err := l.find(name); err != nil {
			return fmt.Errorf("queue %q: %w", name, err)
		}
	}
	for _, q := range t.queues {
		if err := l.establishQueue(q, o); err != nil {
			return fmt.Errorf("queue %q: %w", q.name, err)
		}
	}
	seen := make(map[string]bool) // exchanges, which most queues share
	for _, b := range t.bindings {
		if !seen[b.exchange] {
			seen[b.exchange] = true
			if err := l.establishExchange(b, o); err != nil {
				return fmt.Errorf("exchange %q: %w", b.exchange, err)
			}
		}
		if b.queue == "" {
			continue
		}
		if err := l.bind(b, o); err != nil {
			return fmt.Errorf("binding of queue %q to exchange %q: %w", b.queue, b.exchange, err)
		}
	}
	return nil
}

// find makes sure that a queue is there. One that deletes itself, with all that is
// in it, when its reader leaves is refused; users without the right to configure it
// are not told.
func (l *link) find(name string) error {
	if err := l.exists(name); err != nil {
		return err
	}
	args := comparing(amqp.Table{argType: "quorum"})
	for _, durable := range []bool{true, false} { // which the broker compares first
		err := l.request(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, durable, false, false, false, args)
			return err
		})
		d, _ := differenceIn(err, args)
		if d.name == "auto_delete" {
			return fmt.Errorf("%w: it deletes itself, with what is left in it, when its last consumer leaves (auto_delete), as this one would: "+
				"move its messages to a queue that stays", brokers.ErrMisconfigured)
		}
		if d.name != "durable" {
			break
		}
	}
	return nil
}

func (l *link) exists(name string) error {
	return l.request(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
}

func (l *link) establishQueue(q queue, o Options) error {
	args := q.args
	if o.Verify {
		if err := l.exists(q.name); err != nil {
			return err
		}
		args = comparing(args)
	}
	err := l.declare(q.name, args)
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.PreconditionFailed {
		return l.adopt(q, o, err)
	}
	if accepted := o.unverified(err, "its arguments cannot be verified: the broker compares them only for users with the right to configure the queue. "+
		"Grant that; or compare them yourself"); accepted != nil || err == nil {
		return accepted
	}
	l.unsure = append(l.unsure, q.name)
	return nil
}

func (l *link) declare(name string, args amqp.Table) error {
	return l.request(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

// establishExchange leaves it to the declaration to compare the kind.
func (l *link) establishExchange(b binding, o Options) error {
	if o.Verify {
		err := l.request(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(b.exchange, b.kind, true, false, false, false, b.args)
		})
		if err != nil {
			return err
		}
	}
	err := l.request(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(b.exchange, b.kind, true, false, false, false, b.args)
	})
	return o.unverified(err, fmt.Sprintf("it cannot be verified that it is a durable %s exchange: the broker compares that only for users "+
		"with the right to configure the exchange. Grant that; or look yourself", b.kind))
}

// bind makes sure of a binding. AMQP shows none, but making one again changes
// nothing and takes no right to configure.
func (l *link) bind(b binding, o Options) error {
	err := l.request(func(ch *amqp.Channel) error { return ch.QueueBind(b.queue, b.key, b.exchange, false, nil) })
	return o.unverified(err, fmt.Sprintf("it cannot be made sure of: that takes the rights to write to the queue and to read from the exchange. "+
		"Grant them; or see to the binding yourself (routing key %q)", b.key))
}

// unverified explains that the user may not do what verifying takes, unless
// that is accepted.
func (o Options) unverified(err error, why string) error {
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok || e.Code != amqp.AccessRefused:
		return err
	case !o.Verify:
		return fmt.Errorf("%w (if all of this is declared by somebody else, set Options.Verify)", err)
	case o.AllowUnverified:
		return nil
	}
	return fmt.Errorf("%w: %s and set Options.AllowUnverified: %w", brokers.ErrMisconfigured, why, e)
}

// comparing adds to args one that no queue of another kind than a stream is
// declared with, and that is not compared: so nothing is declared if the queue
// is gone by now.
func comparing(args amqp.Table) amqp.Table {
	args = maps.Clone(args)
	args["x-max-age"] = "1D"
	return args
}

// adopt accepts a queue that exists with other arguments, if these void no
// promise. err is what the broker said.
func (l *link) adopt(q queue, o Options, err error) error {
	found, err := l.differences(q, err)
	if i := slices.IndexFunc(found, func(d difference) bool { return d.name == argType }); i >= 0 {
		found = found[i : i+1] // the others follow from it
	}
	var faults []string
	fix := "Arguments cannot be changed: delete it when it is empty and let Run declare it anew, or use another name (" + existing + ")"
	byPolicy := false
	for _, d := range found {
		if d.name == argSingle && d.value == true {
			l.single = append(l.single, q.name)
		}
		if d.value == nil && d.name != argLimit {
			l.unsure = append(l.unsure, q.name)
		}
		if fault := d.fault(q, found, o.AllowUnverified); fault != "" {
			faults = append(faults, fault)
			byPolicy = byPolicy || d.fault(q, found, true) == ""
		}
	}
	if len(faults) == 0 {
		return err
	}
	if byPolicy {
		fix = "If a policy sets what is not set, set Options.AllowUnverified. " + fix
	}
	return fmt.Errorf("%w: %s. %s", brokers.ErrMisconfigured, strings.Join(faults, "; "), fix)
}

// difference is an argument, or another property, that a queue has other than
// it should. value is nil if it is not set.
type difference struct {
	name  string
	value any
}

// differences finds out what a queue is like: the broker names one difference
// at a time, so it is asked again with what it named before. The error is what
// it said at last, if that was nothing of the kind.
func (l *link) differences(q queue, err error) ([]difference, error) {
	args := comparing(q.args)
	var found []difference
	for {
		d, ok := differenceIn(err, args)
		if !ok || slices.ContainsFunc(found, func(f difference) bool { return f.name == d.name }) {
			return found, err
		}
		found = append(found, d)
		if d.name == argType || !strings.HasPrefix(d.name, "x-") {
			return found, err
		}
		if delete(args, d.name); d.value != nil {
			args[d.name] = d.value
		}
		if err = l.declare(q.name, args); err == nil {
			return found, nil
		}
	}
}

// differenceIn reads what the broker says: "inequivalent arg 'NAME' for queue
// ... but current is CURRENT", where CURRENT is none, 'VALUE' if it has the type
// of what was sent, or the value 'VALUE' of type 'TYPE'.
func differenceIn(err error, sent amqp.Table) (difference, bool) {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return difference{}, false
	}
	_, rest, ok := strings.Cut(e.Reason, "inequivalent arg '")
	name, rest, ok2 := strings.Cut(rest, "' for queue '")
	const before = " but current is "
	at := strings.LastIndex(rest, before)
	if !ok || !ok2 || at < 0 {
		return difference{}, false
	}
	value, ok := currentValue(rest[at+len(before):], sent[name])
	return difference{name, value}, ok
}

func currentValue(text string, like any) (value any, ok bool) {
	if text == "none" {
		return nil, true
	}
	typ := "longstr"
	switch like.(type) {
	case int64:
		typ = "long"
	case bool:
		typ = "bool"
	}
	if typed, ok := strings.CutPrefix(text, "the value "); ok {
		if text, typ, ok = strings.Cut(typed, " of type "); !ok {
			return nil, false
		}
	}
	text, typ = strings.Trim(text, "'"), strings.Trim(typ, "'")
	switch typ {
	case "longstr":
		return text, true
	case "bool":
		value, err := strconv.ParseBool(text)
		return value, err == nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// harmless are arguments that void no promise on a quorum queue that refuses
// what it has no room for.
var harmless = []string{
	"x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", argSingle,
	"x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size",
}

// fault says what is wrong with a difference, or nothing. With unverified it
// is accepted that a policy sets what the arguments of a queue do not.
func (d difference) fault(q queue, all []difference, unverified bool) string {
	want, wanted := q.args[d.name]
	_, shelf := q.args[argTTL]
	switch {
	case d.name == argType:
		return fmt.Sprintf("it is a %v queue, and must be a quorum queue", cmp.Or(d.value, "classic"))
	case !strings.HasPrefix(d.name, "x-"):
		return fmt.Sprintf("%s is %v, and must not be", d.name, d.value)
	case slices.Contains(harmless, d.name) && !wanted:
		return ""
	case !wanted && d.value == nil:
		return ""
	case !wanted:
		return fmt.Sprintf("%s is %#v, and must not be set", d.name, d.value)
	case shelf:
	case d.name == argLimit:
		if n, ok := d.value.(int64); !ok || n >= deliveryLimit {
			return "" // not set is 20 since RabbitMQ 4, and no limit before
		}
		return fmt.Sprintf("%s is %v, and must be at least %d", d.name, d.value, deliveryLimit)
	case d.isOwnDeadLettering(all):
		return ""
	case d.value == nil && unverified:
		return ""
	}
	if d.value == nil {
		return fmt.Sprintf("%s is not set, and must be %#v", d.name, want)
	}
	return fmt.Sprintf("%s is %#v, and must be %#v", d.name, d.value, want)
}

// isOwnDeadLettering reports whether the queue dead-letters to an exchange of
// its owner, who chooses the key, too.
func (d difference) isOwnDeadLettering(all []difference) bool {
	return (d.name == argExchange || d.name == argKey) && slices.ContainsFunc(all, func(d difference) bool {
		return d.name == argExchange && d.value != nil
	})
}

// request runs f on a channel for requests; one that failed is replaced.
func (l *link) request(f func(*amqp.Channel) error) error {
	return explain(untilLed(l.ctx, func() error {
		l.asking.Lock()
		defer l.asking.Unlock()
		return l.call(func() (err error) {
			if l.setup == nil || l.setup.IsClosed() {
				if l.setup, err = l.conn.Channel(); err != nil {
					return err
				}
			}
			return f(l.setup)
		})
	}))
}

const (
	elections     = 20 // times that a leader is asked for
	electionPause = 250 * time.Millisecond
)

// untilLed runs f, and again while its queue has no leader, as between the
// declaration by another worker and the first election.
func untilLed(ctx context.Context, f func() error) error {
	for tries := 1; ; tries++ {
		err := f()
		if !lacksLeader(err) || tries == elections {
			return err
		}
		select {
		case <-time.After(electionPause):
		case <-ctx.Done():
			return err
		}
	}
}
