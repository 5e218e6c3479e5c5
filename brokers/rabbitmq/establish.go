package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// survey is what there is of a topology.
type survey struct {
	queues   []quality
	missing  []queue
	denied   []error            // why the user cannot declare some of them
	absent   map[string]binding // exchanges by name
	findings []inspect.Finding
}

// establish looks at all that t needs, and refuses it, or declares what is missing;
// with Options.Verify it declares nothing.
func (l *link) establish(ctx context.Context, t topology, b *Broker) (found survey, err error) {
	if found, err = l.survey(ctx, t, b); err != nil {
		return found, err
	}
	return found, l.complete(t, &found, b)
}

// complete refuses the queues that were found of t, or declares the missing ones.
func (l *link) complete(t topology, found *survey, b *Broker) (err error) {
	switch {
	case b.options.Verify:
		found.findings = append(found.findings, found.gaps(true)...)
	case found.denied != nil:
		return errors.Join(found.denied...)
	}
	if found.findings, err = adapter.Taken(found.findings); err != nil {
		return err
	}
	for name, x := range found.absent {
		if err := l.exchange(x, (*amqp.Channel).ExchangeDeclare); err != nil {
			return fmt.Errorf("exchange %q: %w", name, err)
		}
	}
	for _, q := range found.missing {
		if err := l.declare(q.name, q.args); err != nil {
			return fmt.Errorf("queue %q: %w", q.name, err)
		}
	}
	for _, x := range t.bindings {
		if err := l.bind(x, found); err != nil {
			return fmt.Errorf("binding of queue %q to exchange %q: %w", x.queue, x.exchange, err)
		}
	}
	return nil
}

// survey looks at all that t needs, and changes nothing. Its error is why it could
// not.
func (l *link) survey(ctx context.Context, t topology, b *Broker) (survey, error) {
	s := survey{absent: map[string]binding{}}
	var lost []error
	for _, name := range t.found {
		if err := l.find(name); err != nil {
			lost = append(lost, fmt.Errorf("queue %q: %w", name, err))
		}
	}
	if lost != nil {
		return s, errors.Join(lost...)
	}
	var rules policies
	if b.options.ManagementURL != "" && len(t.queues) > 0 {
		rules = b.readPolicies(ctx, l.vhost)
	}
	for _, q := range t.queues {
		is, exists, err := l.look(q)
		if err != nil {
			return s, fmt.Errorf("queue %q: %w", q.name, err)
		}
		if !exists {
			s.missing = append(s.missing, q)
			if is.denied != nil {
				s.denied = append(s.denied, fmt.Errorf("queue %q: %w", q.name, is.denied))
			}
			continue
		}
		is.vhost, is.drops = l.vhost, l.drops
		if b.options.ManagementURL != "" {
			if err := b.readManaged(ctx, &is, rules); err != nil {
				return s, fmt.Errorf("queue %q: %w", q.name, err)
			}
		}
		s.queues = append(s.queues, is)
		s.findings = append(s.findings, is.judge()...)
	}
	seen := make(map[string]bool) // exchanges, which most queues share
	for _, x := range t.bindings {
		if !seen[x.exchange] {
			seen[x.exchange] = true
			if err := l.lookAt(x, &s); err != nil {
				return s, fmt.Errorf("exchange %q: %w", x.exchange, err)
			}
		}
	}
	return s, nil
}

// gaps are what is missing: blocking where Open declares none of it.
func (s survey) gaps(verify bool) (gaps []inspect.Finding) {
	severity, why := inspect.Blocking, ", and Options.Verify lets Run declare none"
	fix := "import the definitions that redrive doctor --topology prints, with rabbitmqctl import_definitions"
	switch {
	case verify:
	case s.denied != nil:
		why = ", and the user may not declare what is missing"
	default:
		severity, why, fix = inspect.Noted, ": the first worker that starts declares it", "start a worker, or "+fix
	}
	missing := func(name, what string) {
		f := finding(severity, name, "there is no such "+what+why, fix)
		f.Missing = true
		gaps = append(gaps, f)
	}
	for _, q := range s.missing {
		missing(q.name, "queue")
	}
	for _, name := range slices.Sorted(maps.Keys(s.absent)) {
		missing(name, "exchange")
	}
	return gaps
}

func finding(severity inspect.Severity, topic, why, fix string) inspect.Finding {
	return inspect.Finding{Severity: severity, Topic: topic, Why: why, Fix: fix, See: existing}
}

// of returns what is known of a queue that exists.
func (s survey) of(name string) (quality, bool) {
	i := slices.IndexFunc(s.queues, func(q quality) bool { return q.name == name })
	if i < 0 {
		return quality{}, false
	}
	return s.queues[i], true
}

// find makes sure that a queue is there. One that deletes itself, with all that is
// in it, when its reader leaves is refused; users without the right to configure it
// are not told.
func (l *link) find(name string) error {
	if err := l.exists(name); err != nil {
		return err
	}
	is, _, err := l.look(queue{name: name, args: amqp.Table{argType: typeQuorum}})
	if is.args[propertyAutoDelete] != nil {
		return fmt.Errorf("%w: it deletes itself, with what is left in it, when its last consumer leaves (auto_delete), as this one would: "+
			"move its messages to a queue that stays", brokers.ErrMisconfigured)
	}
	return err
}

func (l *link) exists(name string) error { return l.request(passively(name, nil)) }

// passively returns a request that fails if the queue does not exist. It sets q,
// unless that is nil.
func passively(name string, q *amqp.Queue) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		found, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if q != nil {
			*q = found
		}
		return err
	}
}

// Properties of a queue, which stand among its arguments here.
const (
	propertyDurable    = "durable"
	propertyAutoDelete = "auto_delete"
	propertyExclusive  = "exclusive"
)

func (l *link) declare(name string, args amqp.Table) error {
	args = maps.Clone(args)
	durable, autoDelete := args[propertyDurable] != false, args[propertyAutoDelete] == true
	delete(args, propertyDurable)
	delete(args, propertyAutoDelete)
	return l.request(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, durable, autoDelete, false, false, args)
		return err
	})
}

// argNone is an argument that no queue of another kind than a stream can be declared
// with, and that is not compared: with it nothing is declared.
const argNone = "x-max-age"

// look finds out what a queue is like, and declares none. The broker shows no
// arguments, but compares those of a declaration, and names one difference at a
// time: so it is asked again with what it named before.
func (l *link) look(q queue) (is quality, exists bool, err error) {
	args := maps.Clone(q.args)
	args[argNone], args[propertyDurable], args[propertyAutoDelete] = "1D", true, false
	known := map[string]bool{}
	for {
		err := l.declare(q.name, args)
		e, _ := errors.AsType[*amqp.Error](err)
		switch name, value, differs := differenceIn(err, args); {
		case err == nil:
			delete(args, argNone)
			maps.DeleteFunc(args, func(name string, value any) bool { return textOf(value) == lasting[name] })
			return quality{queue: q, kind: cmp.Or(textOf(args[argType]), typeClassic), args: args, declared: args}, true, nil
		case differs && value == typeStream:
			return quality{queue: q, kind: typeStream}, true, nil
		case differs && !known[name]:
			known[name] = true
			if delete(args, name); value != nil {
				args[name] = value
			}
		case e == nil:
			return is, false, err
		case strings.Contains(e.Reason, saysInvalid+argNone):
			return is, false, nil
		case e.Code == amqp.ResourceLocked:
			return quality{queue: q, args: amqp.Table{propertyExclusive: true}}, true, nil
		case e.Code != amqp.AccessRefused:
			return is, false, err
		default: // the user may not configure it
			denied := err
			err := l.exists(q.name)
			if errors.Is(err, brokers.ErrNotFound) {
				return quality{denied: errors.Join(err, denied)}, false, nil
			}
			return quality{queue: q, unknown: true}, err == nil, err
		}
	}
}

// exchange declares the exchange of a binding, or looks for it.
func (l *link) exchange(x binding, declare func(ch *amqp.Channel, name, kind string, durable, autoDelete, internal, noWait bool, args amqp.Table) error) error {
	return l.request(func(ch *amqp.Channel) error {
		return declare(ch, x.exchange, x.kind, true, false, false, false, x.args)
	})
}

// lookAt looks for an exchange. A declaration of one that exists compares its kind.
func (l *link) lookAt(x binding, s *survey) error {
	err := l.exchange(x, (*amqp.Channel).ExchangeDeclarePassive)
	if errors.Is(err, brokers.ErrNotFound) {
		s.absent[x.exchange] = x
		return nil
	}
	if err == nil {
		err = l.exchange(x, (*amqp.Channel).ExchangeDeclare)
	}
	e, _ := errors.AsType[*amqp.Error](err)
	switch {
	case e == nil:
		return err
	case e.Code == amqp.AccessRefused:
		s.findings = append(s.findings, finding(inspect.Unverified, x.exchange,
			fmt.Sprintf("that it is a durable %s exchange could not be compared: the broker does that only for users with the right to configure it", x.kind),
			"grant that right, or look yourself"))
	case e.Code == amqp.PreconditionFailed:
		s.findings = append(s.findings, finding(inspect.Blocking, x.exchange,
			fmt.Sprintf("the exchange must be a durable %s exchange, and retries and dead letters would not arrive: %s", x.kind, e.Reason),
			"delete it when it is empty and let Run declare it anew"))
	default:
		return err
	}
	return nil
}

// bind makes sure of a binding. AMQP shows none, but making one again changes
// nothing and takes no right to configure. Where the user may not, it is there
// already, or else queue and exchange are new.
func (l *link) bind(x binding, s *survey) error {
	if x.queue == "" {
		return nil
	}
	err := l.request(func(ch *amqp.Channel) error { return ch.QueueBind(x.queue, x.key, x.exchange, false, nil) })
	e, _ := errors.AsType[*amqp.Error](err)
	_, fresh := s.absent[x.exchange]
	_, old := s.of(x.queue)
	if e == nil || e.Code != amqp.AccessRefused || fresh || !old {
		return err
	}
	s.findings = append(s.findings, finding(inspect.Unverified, x.queue,
		fmt.Sprintf("its binding to the exchange %q (routing key %q) could not be made sure of: that takes the rights to write to the queue and to read from the exchange", x.exchange, x.key),
		"grant them, or see to the binding yourself"))
	return nil
}

// differenceIn is an argument, or another property, that a queue has other than it
// should, by what the broker says. The value is nil if it is not set.
func differenceIn(err error, sent amqp.Table) (name string, value any, ok bool) {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return "", nil, false
	}
	parts := saysDifferent.FindStringSubmatch(e.Reason)
	if parts == nil {
		return "", nil, false
	}
	name, text, typ := parts[1], parts[3], parts[4]
	if typ == "" { // that of what was sent
		typ, _ = describe(sent[name])
	}
	switch {
	case parts[2] == "none":
		return name, nil, true
	case typ == "longstr" || typ == "" || typ == "void":
		return name, text, true
	case typ != "bool":
		typ = typeInt64 // the broker has several names for numbers
	}
	value, err = read(typ, text)
	return name, value, err == nil
}

// request calls try, and repeats it while the queue has no leader.
func (l *link) request(f func(*amqp.Channel) error) error {
	return explain(untilLed(l.ctx, func() error { return l.try(f) }))
}

// try runs f on a channel for requests, and replaces the channel if it failed.
func (l *link) try(f func(*amqp.Channel) error) error {
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
		if !lacksLeader(err) || tries == elections || !adapter.Rest(ctx, electionPause) {
			return err
		}
	}
}
