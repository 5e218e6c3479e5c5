package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

const (
	// headerRoom is what properties and headers may take of a frame together,
	// so that there is room for what the broker notes when the message leaves
	// a delay queue.
	headerRoom = 120 << 10

	// set aside are headers and properties that would have an effect on the
	// copy: its routing, its expiry, or a check of who publishes it.
	setAside = "redrive-amqp-"

	// How many lost deliveries do not count against a message, since the broker
	// charges everything that a lost connection held. Before the trial few are
	// enough: suspicion costs a copy only. On trial more are needed, because a
	// message may be lost before it runs, and the trial can end in a dead letter.
	// Ordered messages have the most, because a copy loses its place. With the
	// pipeline's CrashLimit of 3 each leaves room below deliveryLimit, where the
	// broker would end the message without a word.
	bystanders        = 4
	bystandersTrial   = 8
	bystandersOrdered = 14
)

// margin is how many lost deliveries of t do not count against its message.
func (t *token) margin(onTrial bool) int {
	switch {
	case onTrial:
		return bystandersTrial
	case t.intake.ordered:
		return bystandersOrdered
	}
	return bystanders
}

// often reports whether one more lost delivery would count against the message of t.
// A release of it is therefore done by a copy, whose count begins at zero.
func (t *token) often() bool { return t.count >= t.margin(false) }

// abandoned is Delivery.Abandoned.
func (t *token) abandoned(m *brokers.Meta) int { return max(0, t.count-t.margin(m.Crashes > 0)) }

type property struct {
	name string
	get  func(*amqp.Publishing) *string
}

// The properties that travel as headers of type "property".
var properties = []property{
	{"content-type", func(p *amqp.Publishing) *string { return &p.ContentType }},
	{"content-encoding", func(p *amqp.Publishing) *string { return &p.ContentEncoding }},
	{"correlation-id", func(p *amqp.Publishing) *string { return &p.CorrelationId }},
	{"reply-to", func(p *amqp.Publishing) *string { return &p.ReplyTo }},
	{"type", func(p *amqp.Publishing) *string { return &p.Type }},
	{"app-id", func(p *amqp.Publishing) *string { return &p.AppId }},
	{"expiration", func(p *amqp.Publishing) *string { return &p.Expiration }},
	{"user-id", func(p *amqp.Publishing) *string { return &p.UserId }},
}

const (
	propertyPriority  = "priority"
	propertyTimestamp = "timestamp"
)

// isAside reports whether a header is set aside on copies.
func isAside(h brokers.Header) bool {
	if h.Type == typeProperty {
		return h.Name == "expiration" || h.Name == "user-id"
	}
	return h.Name == "CC" || h.Name == "BCC"
}

// isTrace reports whether a header is a note of the broker about the queues
// that a message was in. RabbitMQ 3 believes such notes also when a client
// publishes them, and then takes a second retry for a cycle.
func isTrace(name string) bool {
	return name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") ||
		name == "x-delivery-count" || name == "x-acquired-count"
}

// publishing builds the message for the wire, or says why the broker would
// never take it. h are all of its headers, those of the framework included.
func (b *Broker) publishing(m brokers.Message, h brokers.Headers) (amqp.Publishing, error) {
	p := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: m.Body, MessageId: propertyID(m)}
	size := len(p.MessageId)
	plain := make(brokers.Headers, 0, len(h))
	for _, header := range h {
		switch {
		case isTrace(header.Name):
		case isAside(header):
			header.Name = setAside + header.Name
			if header.Type == typeProperty {
				header.Type = ""
			}
			plain = append(plain, header)
		case header.Name == unreadable && header.Type == typeInt64:
			return p, fmt.Errorf("its headers of %s bytes fit no frame, and were left with the broker: %w", header.Value, brokers.ErrRefused)
		case header.Type == typeProperty:
			size += len(header.Value) + 1
			if err := setProperty(&p, header); err != nil {
				return p, err
			}
		default:
			plain = append(plain, header)
		}
		if len(header.Name) > longestName {
			return p, fmt.Errorf("the header name %.40q... has %d bytes, AMQP allows %d: %w",
				header.Name, len(header.Name), longestName, brokers.ErrRefused)
		}
	}
	if len(plain) > 0 {
		p.Headers = toTable(plain)
		size += tableSize(p.Headers)
	}
	if size > headerRoom {
		return p, fmt.Errorf("the headers take %d bytes, the broker's frames have room for %d: %w", size, headerRoom, brokers.ErrRefused)
	}
	if total := size + len(m.Body); total > b.options.MessageLimit {
		return p, fmt.Errorf("%d bytes, Options.MessageLimit is %d: %w", total, b.options.MessageLimit, brokers.ErrRefused)
	}
	return p, nil
}

func setProperty(p *amqp.Publishing, h brokers.Header) error {
	switch h.Name {
	case propertyPriority:
		n, err := strconv.ParseUint(h.Value, 10, 8)
		if err != nil {
			return fmt.Errorf("the property priority is %.40q, and must be 0 to 255: %w", h.Value, brokers.ErrRefused)
		}
		p.Priority = uint8(n)
		return nil
	case propertyTimestamp:
		seconds, err := strconv.ParseInt(h.Value, 10, 64)
		if err != nil {
			return fmt.Errorf("the property timestamp is %.40q, and must be in seconds since 1970: %w", h.Value, brokers.ErrRefused)
		}
		p.Timestamp = time.Unix(seconds, 0)
		return nil
	}
	for _, property := range properties {
		if property.name != h.Name {
			continue
		}
		if len(h.Value) > longestName {
			return fmt.Errorf("the property %s has %d bytes, AMQP allows %d: %w", h.Name, len(h.Value), longestName, brokers.ErrRefused)
		}
		*property.get(p) = h.Value
		return nil
	}
	return fmt.Errorf("AMQP has no property %.40q: %w", h.Name, brokers.ErrRefused)
}

// headersOf returns headers and properties of what was received, without the
// notes of the broker.
func headersOf(d *amqp.Delivery) brokers.Headers {
	var h brokers.Headers
	p := amqp.Publishing{
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, CorrelationId: d.CorrelationId,
		ReplyTo: d.ReplyTo, Type: d.Type, AppId: d.AppId, Expiration: d.Expiration, UserId: d.UserId,
	}
	for _, property := range properties {
		if value := *property.get(&p); value != "" {
			h = append(h, brokers.Header{Name: property.name, Value: value, Type: typeProperty})
		}
	}
	if d.Priority > 0 {
		h = append(h, brokers.Header{Name: propertyPriority, Value: strconv.Itoa(int(d.Priority)), Type: typeProperty})
	}
	if !d.Timestamp.IsZero() {
		h = append(h, brokers.Header{Name: propertyTimestamp, Value: strconv.FormatInt(d.Timestamp.Unix(), 10), Type: typeProperty})
	}
	for _, header := range fromTable(d.Headers) {
		if isTrace(header.Name) {
			continue
		}
		if name, ok := strings.CutPrefix(header.Name, setAside); ok {
			header.Name = name
			if name == "expiration" || name == "user-id" {
				header.Type = typeProperty
			}
		}
		h = append(h, header)
	}
	return h
}

// IDPlace is where producers put the ID of a message: a property, such as
// correlation-id, or else a header. A text of more than 255 bytes is no ID.
type IDPlace struct {
	Property, Header string
}

// CeleryID is where Celery puts the ID of a task, for Options.IDFrom.
func CeleryID() []IDPlace { return []IDPlace{{Header: "id"}, {Property: "correlation-id"}} }

func (p IDPlace) check() error {
	isProperty := slices.ContainsFunc(properties, func(known property) bool { return known.name == p.Property })
	switch {
	case p.Property == "" && p.Header == "", p.Property != "" && p.Header != "":
		return errors.New("names no place, or two: set Property or Header")
	case p.Property != "" && !isProperty:
		return fmt.Errorf("names the property %.40q: use one that is a text, such as correlation-id", p.Property)
	}
	return nil
}

// id is the ID of a message without the property message-id, or "".
func (b *Broker) id(h brokers.Headers) string {
	for _, place := range b.options.IDFrom {
		for _, header := range h {
			isProperty := header.Type == typeProperty
			if header.Value != "" && len(header.Value) <= longestName && (isProperty && header.Name == place.Property || !isProperty && header.Name == place.Header) {
				return header.Value
			}
		}
	}
	return ""
}

// understand turns what came from the queue of topic, or from its retries,
// into a message. How far it has come is read where only workers write, and
// anybody may have forged it elsewhere. What is due later than any delay queue or
// policy of this worker has it is no note of one like it.
func (b *Broker) understand(d *amqp.Delivery, topic string, retried bool, limits wire.Limits) (brokers.Message, brokers.Meta) {
	h := headersOf(d)
	if retried {
		h, limits.Trusted = b.seal.Progress(h, topic, d.MessageId, d.Body)
		limits.MaxDelay = max(limits.MaxDelay, longestDelay)
	}
	m, meta := wire.Decode(h, limits)
	if d.MessageId != "" {
		m.ID = d.MessageId
	}
	m.ID = cmp.Or(m.ID, b.id(h))
	m.Topic, m.Body = topic, d.Body
	if m.PublishedAt.IsZero() && !d.Timestamp.After(limits.Now) {
		m.PublishedAt = d.Timestamp
	}
	if meta.Origin == nil {
		meta.Origin = b.names.origin(d, topic, retried)
	}
	return m, meta
}

// origin says where d comes from. Of a first delivery that the broker had
// dead-lettered by itself it says why, from which queue, and how often: the last time,
// and the first, which tells where the message comes from. The broker's notes are
// dropped from the headers, and this is all that they tell: such a message has no
// story.
func (n names) origin(d *amqp.Delivery, topic string, retried bool) brokers.Headers {
	h := brokers.Headers{{Name: "queue", Value: topic}}
	note := func(name string, field any) {
		if _, value := describe(field); value != "" && len(value) <= longestName {
			h = append(h, brokers.Header{Name: name, Value: value})
		}
	}
	note("exchange", d.Exchange)
	note("routing-key", d.RoutingKey)
	deaths, _ := d.Headers["x-death"].([]any)
	if retried || len(deaths) == 0 {
		return h
	}
	last, _ := deaths[0].(amqp.Table)
	first := firstDeath(deaths)
	for _, name := range []string{"reason", "queue", "count", "time"} {
		note("death-"+name, last[name])
	}
	for _, name := range []string{"reason", "count", "time", "exchange"} {
		note("first-death-"+name, first[name])
	}
	if queue, ok := first["queue"].(string); ok {
		note("first-death-queue", n.topic(queue))
	}
	if keys, _ := first["routing-keys"].([]any); len(keys) > 0 {
		note("first-death-routing-key", keys[0])
	}
	return h
}

// firstDeath is the oldest one that is no expiry, which may have ended a wait
// before the message was for anybody; where all are, the oldest one.
func firstDeath(deaths []any) amqp.Table {
	for _, death := range slices.Backward(deaths) {
		if death, ok := death.(amqp.Table); ok && death["reason"] != "expired" {
			return death
		}
	}
	oldest, _ := deaths[len(deaths)-1].(amqp.Table)
	return oldest
}

// count is how often the broker has delivered this copy before. On a first
// delivery it says nothing, and the header is that of whoever sent the message.
func count(d *amqp.Delivery) int {
	if !d.Redelivered {
		return 0
	}
	switch n := d.Headers["x-delivery-count"].(type) {
	case int64:
		return int(min(max(n, 0), deliveryLimit))
	case int32:
		return int(min(max(n, 0), deliveryLimit))
	}
	return 0
}

// unreadableError says why screen has put other headers in place of those of d.
func unreadableError(d *amqp.Delivery) error {
	switch v := d.Headers[unreadable].(type) {
	case []byte:
		return fmt.Errorf("its headers, %d bytes, are nested deeper than %d, have more than %d fields in one place, or are no table: "+
			"they are in the header %s as they came", len(v), deepestField, mostFields, unreadable)
	case int64:
		return fmt.Errorf("its headers, %d bytes, are larger than a frame may be", v)
	}
	return nil
}
