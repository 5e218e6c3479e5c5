package consumer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/retry"
)

// Observer sees what happens to messages: metrics, tracing and logs hang
// here. Observe must be quick and must not block, because the pipeline waits
// for it, and may be called from several goroutines at once. The context carries
// the values of the context of Run; once the message has run, the span of its last
// run ([Config.Tracer]); and in EventStarted, EventSucceeded and EventFailed the
// values of the handler.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// Tracer gives each run of a handler a span. Package tracing has one for
// OpenTelemetry. It sees all events, after the Observers, and its methods have the
// duties of [Observer.Observe].
type Tracer interface {
	Observer

	// Start begins the span of a run, and returns ctx with it. The handler, the
	// Observers and the Logger get a context with these values. A run has one
	// message, or those of a batch; the Attempt of each Meta is the number of this
	// run. The messages are those of the events: neither change nor
	// keep them, nor the run.
	Start(ctx context.Context, run []brokers.Item) context.Context

	// Traceparent returns the W3C traceparent of the span in ctx, or "". If the run
	// fails, the message carries it in [brokers.Meta.Trace], and so does its dead
	// letter.
	Traceparent(ctx context.Context) string
}

// Kinds of an [Event].
const (
	EventReceived     = "received"      // a delivery came in
	EventStarted      = "started"       // a handler starts; Lateness is set after a retry
	EventSucceeded    = "succeeded"     // a handler returned nil
	EventFailed       = "failed"        // a handler failed; Verdict, Decision and Err are set
	EventHeld         = "held"          // waits in the process: for its due time, for the limit, or because its verdict is in doubt
	EventDeferred     = "deferred"      // its run was put off, uncounted; Decision and Err say why, Meta.DueAt until when
	EventDeadLettered = "dead-lettered" // the dead letter is durable in DeadLetterTopic, or the message is to be dropped; DeadLetter is set
	EventSettled      = "settled"       // the delivery has ended; Action says how
	EventExtended     = "extended"      // its lease was extended; may come after its last event
	EventLeaseLost    = "lease-lost"    // somebody else has the delivery; Err says why
	EventStuck        = "stuck"         // a handler ignores that its context has ended
	EventUnstuck      = "unstuck"       // a stuck handler has returned after all
	EventPaused       = "paused"        // single runs try Dependency out, or it is paused by hand; Err says why, Until when the next may start
	EventResumed      = "resumed"       // Dependency serves again
	EventError        = "error"         // the broker failed an operation, which is tried again; Operation and Err are set

	// EventByHand says what people have paused ([Consumer.Pause]): when that changes,
	// and every 30 s while something is paused. ByHand is set, and empty at the end.
	EventByHand = "by-hand"

	// EventReceiptDropped says that a receipt (Config.Receipts) is not published:
	// too many wait, the broker refuses it, or the worker stops. Err says which;
	// it concerns no message of this worker.
	EventReceiptDropped = "receipt-dropped"

	// EventDeadLetterRefused says that the broker takes neither a dead letter,
	// however small, nor the message itself for its own dead-lettering; or that
	// the message is a dead letter itself, and dlq.Discard would destroy it. It is
	// kept and comes back in minutes; Err and DeadLetter are set.
	EventDeadLetterRefused = "dead-letter-refused"
)

// Event is one thing that happened. Fields that do not belong to its kind are
// zero: docs/reference/events.md has the fields of each kind.
type Event struct {
	Kind  string // what happened: one of the constants
	Time  time.Time
	Topic string

	// Message is nil in an EventReceiptDropped and an EventByHand, and in an EventError of the source
	// or of receipts. It is shared: do not change it, nor keep it.
	Message *brokers.Message

	// Meta is that of the message, after the event: in an EventFailed that
	// leads to a retry it has the new DueAt already.
	Meta brokers.Meta

	// Attempt is the number of the handler run that starts or has ended, from
	// 1, and of the last one in other events.
	Attempt int

	// Duration is how long the handler ran.
	Duration time.Duration

	// Lateness is how long after its due time a retry started.
	Lateness time.Duration

	// Dependency is what pauses, in EventPaused and EventResumed, or whose budget
	// failed, in an EventError: a topic or TopicConfig.Dependency.
	Dependency string

	// Until is when the next run may start in a pause; zero if that is not known.
	Until time.Time

	// Operation names the operation that failed: "receive", from all topics, or
	// from Topic alone if it is set; "ack", "retry", "release" or "reject", the end
	// of a delivery; "extend", the extension of its lease; "dead-letter", the
	// publishing of a dead letter; "receipt", the publishing of receipts;
	// "backlog", what Consumer.Backlogs asked for;
	// "deadline", the reading of [brokers.Message.Deadline]; or a function of the user:
	// "dependency-of", TopicConfig.DependencyOf, and "budget", Guard.Budget.
	Operation string

	Verdict classify.Verdict

	// Decision is what becomes of the message. In EventDeferred its Reason says why the
	// run was put off:
	//   - "budget": there was no token for a retry
	//   - "dependency": the name that TopicConfig.DependencyOf returned is in trouble
	//   - "paused": it is paused by hand
	//   - "poison": practically all messages are poison
	//   - "room": it has to wait for a slot or for the limit, and there is no place for it here
	//   - "crash-loop": several deliveries were lost; it runs at once when it comes again
	//   - "start-after": it arrived before its TopicConfig.StartAfter
	Decision retry.Decision

	// Action says how the delivery has ended, in EventSettled. Ack: the message is
	// removed, as far as its broker confirms that. Retry: it is rescheduled durably in
	// the broker, with a DeadLetter if it is dead and waits there for this. Release: it
	// is given back, not counted. Reject: it is left, as it is, to the broker's own
	// dead-lettering, and its dead letter is a stub.
	Action brokers.Action

	DeadLetter *dlq.Entry

	// DeadLetterTopic is where the dead letter is, or dlq.Discard if there is none.
	DeadLetterTopic string

	Err error

	// ByHand is what is paused by hand, oldest first. Do not change it.
	ByHand []health.ByHand
}

// routine events are of no interest to the log. A failed run that ends its delivery is
// followed by an event that says how.
func (e *Event) routine() bool {
	switch e.Kind {
	case EventReceived, EventStarted, EventSucceeded, EventHeld, EventExtended:
		return true
	case EventSettled:
		return e.Action == brokers.Ack || e.Action == brokers.Retry
	case EventDeferred:
		return e.Decision.Reason != onPoison.reason
	case EventFailed:
		class := e.Verdict.Class
		return e.Decision.DeadLetter || !e.Decision.Retry && (class == classify.ClassShutdown || class == classify.ClassLost)
	}
	return false
}

// reporter tells the log and the observers what happens.
type reporter struct {
	log       *logObserver
	observers []Observer
	tracer    Tracer          // one of these; nil if there is none
	values    context.Context // of Run, without its cancellation
}

// observed reports whether anybody wants routine events. Who asks before making
// one spares a message without Observers the copies.
func (r *reporter) observed() bool { return len(r.observers) > 0 }

// observe reports an event about d. The caller sets what belongs to its kind.
func (r *reporter) observe(d *delivery, e Event) {
	if !r.observed() && e.routine() {
		return
	}
	e.Topic = d.Message.Topic
	e.Message = &d.Message
	d.mu.Lock()
	last, current := int(d.last), d.current
	e.Meta = d.metaNow()
	d.mu.Unlock()
	e.Attempt = cmp.Or(last, e.Meta.Attempt)
	ctx := r.values
	switch {
	case current == nil:
	case e.Kind == EventStarted, e.Kind == EventSucceeded, e.Kind == EventFailed:
		ctx = current
	default:
		ctx = current.base()
	}
	r.hand(ctx, e)
}

// report reports an event about no message.
func (r *reporter) report(e Event) { r.hand(r.values, e) }

// hand hands an event to the log and to the observers. An observer that panics is
// the user's fault, not the message's.
func (r *reporter) hand(ctx context.Context, e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	r.log.Observe(ctx, e)
	for _, observer := range r.observers {
		func() {
			defer func() {
				if v := recover(); v != nil {
					r.log.panicked(ctx, observer, e, v)
				}
			}()
			observer.Observe(ctx, e)
		}()
	}
}

// traced returns m with the trace of the run of d that has ended.
func (r *reporter) traced(d *delivery, m brokers.Meta) (with brokers.Meta) {
	if with = m; r.tracer != nil {
		defer r.recovered(d.current, EventFailed)
		with.Trace = cmp.Or(r.tracer.Traceparent(d.current.base()), m.Trace)
	}
	return with
}

// recovered logs that the tracer panicked, which is the user's fault.
func (r *reporter) recovered(a *attempt, kind string) {
	if v := recover(); v != nil {
		r.log.panicked(r.values, r.tracer, Event{Kind: kind, Time: a.started}, v)
	}
}

func (c *Config) observers() []Observer {
	if c.Tracer == nil {
		return c.Observers
	}
	return append(slices.Clip(c.Observers), c.Tracer)
}
