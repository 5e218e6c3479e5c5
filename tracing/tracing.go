package tracing

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// Conventions is the version of the semantic conventions that spans follow.
const Conventions = "1.43.0"

// scope names this package to the provider.
const scope = "github.com/redrive-go/redrive/tracing"

// Attributes of redrive.
const (
	attemptKey     = attribute.Key("retry.attempt")
	delayKey       = attribute.Key("retry.delay_ms")
	exhaustedKey   = attribute.Key("retry.budget_exhausted")
	countKey       = attribute.Key("redrive.count")
	outcomeKey     = attribute.Key("redrive.outcome")
	reasonKey      = attribute.Key("redrive.reason")
	fingerprintKey = attribute.Key("redrive.fingerprint")
	linkKey        = attribute.Key("redrive.link")
)

// Tracer is a [consumer.Tracer], for Config.Tracer. Make one with [New]; several
// Consumers may share it.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	longWait   time.Duration // 0 means that no wait is long
	starts     sync.Pool     // of *start
	base       atomic.Pointer[base]
	names      names
}

var _ consumer.Tracer = (*Tracer)(nil)

// Option changes a setting of [New].
type Option func(*Tracer)

// New returns a Tracer whose spans go to provider, such as that of
// otel.GetTracerProvider.
func New(provider trace.TracerProvider, options ...Option) *Tracer {
	t := &Tracer{
		tracer:     provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		propagator: propagation.TraceContext{},
		starts:     sync.Pool{New: func() any { return newStart() }},
	}
	for _, set := range options {
		set(t)
	}
	return t
}

// NewTraceAfter begins a new trace with an attempt that starts d or longer after
// the attempt before it failed. The new trace links to both, and later attempts
// stay in it. Use it where retries take hours: a backend may have closed the trace by
// then, and a tail sampler decided on it. Default: all attempts are in the trace of
// the producer.
func NewTraceAfter(d time.Duration) Option {
	return func(t *Tracer) { t.longWait = d }
}

// Propagator reads the producer's context from the headers of messages in another
// format, or its baggage too. Default propagation.TraceContext.
func Propagator(p propagation.TextMapPropagator) Option {
	return func(t *Tracer) { t.propagator = p }
}

// Start implements [consumer.Tracer].
func (t *Tracer) Start(ctx context.Context, batch []brokers.Item) context.Context {
	s := t.starts.Get().(*start)
	defer t.starts.Put(s)
	defer s.reset()
	ctx = t.without(ctx)
	topic := batch[0].Message.Topic
	s.add(semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"), semconv.MessagingDestinationName(topic))
	if len(batch) == 1 {
		ctx = t.single(s, ctx, &batch[0])
	} else {
		ctx = t.several(s, ctx, batch)
	}
	ctx, span := t.tracer.Start(ctx, t.names.process(topic), s.options()...)
	if !span.IsRecording() {
		return ctx
	}
	r := &run{Context: ctx, span: span, batch: len(batch) > 1}
	r.open = r.one[:0]
	for _, item := range batch {
		r.open = append(r.open, item.Message)
	}
	return r
}

// single has s begin the run of one message, and returns ctx with its parent.
func (t *Tracer) single(s *start, ctx context.Context, item *brokers.Item) context.Context {
	s.system(item.Meta.Origin)
	s.place(item.Meta.Origin)
	s.add(semconv.MessagingMessageID(item.Message.ID), attemptKey.Int(item.Meta.Attempt))
	if n := item.Meta.RedriveCount; n > 0 {
		s.add(countKey.Int(n))
	}
	ctx, producer := t.producer(s, ctx, item.Message)
	return t.relate(s, ctx, producer, &item.Meta)
}

// relate links an attempt to the attempt before, to the producer if it is not in the
// producer's trace, and to the job that sent the message back. It returns ctx, which
// has the producer's span, with the parent.
func (t *Tracer) relate(s *start, ctx context.Context, producer trace.SpanContext, m *brokers.Meta) context.Context {
	before := previous(m, producer)
	s.root = t.begins(m)
	stays := !s.root && before.IsValid() && before.TraceID() != producer.TraceID() && t.began(m, producer)
	if s.root || stays {
		s.link(producer, toProducer)
	}
	if stays {
		ctx = trace.ContextWithRemoteSpanContext(ctx, before)
	} else {
		s.link(before, toPrevious)
	}
	s.link(sentBack(m), toSendBack)
	return ctx
}

// several is single for a batch, whose span has no parent.
func (t *Tracer) several(s *start, ctx context.Context, batch []brokers.Item) context.Context {
	s.root = true
	s.system(batch[0].Meta.Origin)
	s.add(semconv.MessagingBatchMessageCount(len(batch)))
	for i := range batch {
		item := &batch[i]
		id := semconv.MessagingMessageID(item.Message.ID)
		_, producer := t.producer(s, ctx, item.Message)
		s.link(producer, append(toProducer, id, attemptKey.Int(item.Meta.Attempt)))
		s.link(previous(&item.Meta, producer), append(toPrevious, id))
		s.link(sentBack(&item.Meta), append(toSendBack, id))
	}
	return ctx
}

// begins reports whether a run begins a trace of its own: the first one since the
// message was sent back, and one after a long wait.
func (t *Tracer) begins(m *brokers.Meta) bool {
	if m.FirstFailedAt.IsZero() {
		return m.RedriveCount > 0
	}
	return t.longWait > 0 && time.Since(m.LastFailedAt) >= t.longWait
}

// began reports whether an attempt before may have begun a trace of its own, which
// those that follow stay in. What a batch began is over with the batch.
func (t *Tracer) began(m *brokers.Meta, producer trace.SpanContext) bool {
	return !producer.IsValid() || m.RedriveCount > 0 || t.longWait > 0
}

// base is the context of Run, and the same without a span.
type base struct{ ctx, without context.Context }

// without returns ctx without a span, which all messages of a Run would share. It
// makes that once: to look in the context of Run for what is not there allocates.
func (t *Tracer) without(ctx context.Context) context.Context {
	if b := t.base.Load(); b != nil && b.ctx == ctx {
		return b.without
	}
	b := &base{ctx, context.WithValue(withoutSpan(ctx), runKey{}, (*run)(nil))}
	t.base.Store(b)
	return b.without
}

func withoutSpan(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.SpanContext{})
}

// producer returns ctx, which has no span, with the producer's, and its context.
func (t *Tracer) producer(s *start, ctx context.Context, m *brokers.Message) (context.Context, trace.SpanContext) {
	s.headers = carrier(m.Headers)
	ctx = t.propagator.Extract(ctx, &s.headers)
	return ctx, trace.SpanContextFromContext(ctx)
}

// previous is the context of the attempt before; not valid if there was none, or
// if no span was made for it.
func previous(m *brokers.Meta, producer trace.SpanContext) trace.SpanContext {
	run, _, _ := strings.Cut(m.Trace, ",")
	before := parse(run)
	if before.SpanID() == producer.SpanID() {
		return trace.SpanContext{}
	}
	return before
}

// sentBack is the context of the job that sent a message back; not valid after a run
// that has failed since, or if no span was made for it.
func sentBack(m *brokers.Meta) trace.SpanContext {
	_, sent, _ := strings.Cut(m.Trace, ",")
	return parse(sent)
}

// parse reads what [Tracer.Traceparent] writes. Any other text is not valid. The
// propagator of OpenTelemetry reads it too, at the price of five allocations.
func parse(traceparent string) trace.SpanContext {
	const version, length = "00-", 55
	if len(traceparent) != length || traceparent[:3] != version || traceparent[35] != '-' || traceparent[52] != '-' {
		return trace.SpanContext{}
	}
	id, err := trace.TraceIDFromHex(traceparent[3:35])
	span, fault := trace.SpanIDFromHex(traceparent[36:52])
	flags, failure := strconv.ParseUint(traceparent[53:], 16, 8)
	if err != nil || fault != nil || failure != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags) & (trace.FlagsSampled | trace.FlagsRandom), Remote: true,
	})
}

// Traceparent implements [consumer.Tracer].
func (t *Tracer) Traceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// name is that of a span. The conventions want the operation first.
func name(operation, topic string) string { return operation + " " + topic }

// names are those of the spans of runs, which have the topics of the handlers.
type names struct {
	mu    sync.RWMutex
	known map[string]string // by topic
}

func (n *names) process(topic string) string {
	n.mu.RLock()
	known := n.known[topic]
	n.mu.RUnlock()
	if known != "" {
		return known
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[string]string{}
	}
	n.known[topic] = name("process", topic)
	return n.known[topic]
}

// carrier reads headers for a propagator.
type carrier brokers.Headers

// Get implements [propagation.TextMapCarrier].
func (c *carrier) Get(key string) string { return brokers.Headers(*c).Get(key) }

// Set does nothing: the headers are the producer's.
func (c *carrier) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (c *carrier) Keys() []string {
	keys := make([]string, len(*c))
	for i, h := range *c {
		keys[i] = h.Name
	}
	return keys
}

// The attributes of links. They are never appended to in place.
var (
	toProducer = []attribute.KeyValue{linkKey.String("producer")}
	toPrevious = []attribute.KeyValue{linkKey.String("previous_attempt")}
	toSendBack = []attribute.KeyValue{linkKey.String("send_back")}
)

// mostAttributes is how many a span has at its start.
const mostAttributes = 10

// start gathers the options of a span, in memory that is used again.
type start struct {
	headers    carrier
	kind       trace.SpanStartOption
	root       bool
	attributes []attribute.KeyValue
	links      []trace.Link

	given []trace.SpanStartOption
	first [mostAttributes + 1]trace.SpanStartOption // as many attributes, in the memory of attributes
}

var (
	consumerKind = trace.WithSpanKind(trace.SpanKindConsumer)
	clientKind   = trace.WithSpanKind(trace.SpanKindClient)
	newRoot      = trace.WithNewRoot()
)

func newStart() *start {
	s := &start{kind: consumerKind, attributes: make([]attribute.KeyValue, 0, mostAttributes), given: make([]trace.SpanStartOption, 0, 4)}
	for n := range s.first {
		s.first[n] = trace.WithAttributes(s.attributes[:n]...)
	}
	return s
}

func (s *start) reset() {
	s.headers, s.kind, s.root = nil, consumerKind, false
	clear(s.attributes)
	clear(s.links)
	clear(s.given)
	s.attributes, s.links, s.given = s.attributes[:0], s.links[:0], s.given[:0]
}

// add adds attributes, as long as there is room.
func (s *start) add(attributes ...attribute.KeyValue) {
	room := cap(s.attributes) - len(s.attributes)
	s.attributes = append(s.attributes, attributes[:min(room, len(attributes))]...)
}

func (s *start) link(to trace.SpanContext, attributes []attribute.KeyValue) {
	if to.IsValid() {
		s.links = append(s.links, trace.Link{SpanContext: to, Attributes: attributes})
	}
}

// system adds the broker that a message is from. Each adapter has its own words for
// the origin.
func (s *start) system(origin brokers.Headers) {
	for _, detail := range origin {
		switch detail.Name {
		case "partition":
			s.add(semconv.MessagingSystemKafka)
		case "routing-key":
			s.add(semconv.MessagingSystemRabbitMQ)
		case "queue":
			s.add(semconv.MessagingSystemAWSSQS)
		}
	}
}

// place adds where the message was first.
func (s *start) place(origin brokers.Headers) {
	for _, detail := range origin {
		switch detail.Name {
		case "partition":
			s.add(semconv.MessagingDestinationPartitionID(detail.Value))
		case "offset":
			if n, err := strconv.Atoi(detail.Value); err == nil {
				s.add(semconv.MessagingKafkaOffset(n))
			}
		case "routing-key":
			s.add(semconv.MessagingRabbitMQDestinationRoutingKey(detail.Value))
		}
	}
}

// options returns what was gathered. It is good until reset.
func (s *start) options() []trace.SpanStartOption {
	s.given = append(s.given, s.kind, s.first[len(s.attributes)])
	if len(s.links) > 0 {
		s.given = append(s.given, trace.WithLinks(s.links...))
	}
	if s.root {
		s.given = append(s.given, newRoot)
	}
	return s.given
}
