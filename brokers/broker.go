package brokers

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// Broker connects to one message broker. Its methods are safe for concurrent
// use.
type Broker interface {
	// Open declares or verifies the topology of sub and starts to receive.
	// A setting of the broker that voids a guarantee of this package is an
	// error that says how to fix it; it is never clamped silently. ctx bounds
	// the call, not the life of the source.
	Open(ctx context.Context, sub Subscription) (Source, error)

	// Publish stores msgs in topic and returns when they are durable. If any
	// is not known to be, the error is a *PublishError that says which; those
	// may be published again and may then be there twice. An ID or PublishedAt
	// that it sets, it sets in msgs: repeat with the same slice (msgs...), or
	// set IDs of your own, so that a repeat keeps them. Two calls
	// store two messages, also for equal IDs: a broker's deduplication may
	// only cover repeats inside one call.
	Publish(ctx context.Context, topic string, msgs ...Message) error

	// SendBack sends msgs, which were dead letters of topic, back to the workers
	// that gave them up and to nobody else: those of group where the broker has
	// such a notion (Kafka), and whoever receives from topic elsewhere, where
	// group is ignored. It returns when they are durable and due, with errors as
	// of Publish; two calls store two messages, also for equal IDs. A message
	// keeps what it is and the Meta that it has, but starts over: see
	// [Meta.Restart], which SendBack applies. It declares nothing. Workers that
	// were never there to declare what it needs are ErrMisconfigured.
	SendBack(ctx context.Context, group, topic string, msgs ...Item) error

	// Close releases the connections, and the sources still open on them. It
	// may be called again.
	Close(ctx context.Context) error
}

// Item is a message with its Meta: one of a batch, where the Meta is what
// consumer.MetaFrom returns in a handler of single messages, or one on its way back
// from a dead-letter topic, as dlq.Entry knows it.
type Item struct {
	Message *Message
	Meta    Meta
}

// Subscription says what a worker is about to receive, and what it will ask
// of the broker, so that Open can check all of it at start.
//
// One without DeadLetters, Receipts, MaxDelay and MaxAttempts only reads: it is
// for tools that take messages out of queues of any kind, above all dead letters.
// Open then declares nothing, demands nothing of the topics but that they are
// there, and needs no rights but to receive and to settle. A topic that is missing
// is ErrMisconfigured, with its name. When Open returns, messages are on their way:
// a Receive that stays without any says something about the topics. Ack, Release
// and Extend work as ever. A Retry that the broker cannot do in place is ErrRefused,
// and the delivery is still held. What cannot be known of such a topic, as a count
// of abandoned deliveries, is absent.
type Subscription struct {
	// Topics to receive from. A worker with many topics opens one source; how
	// the topics share connections is the adapter's choice, but a busy one
	// must not starve the others.
	Topics []string

	// Group names the set of workers that share the messages, where the
	// broker has such a notion (Kafka). Empty lets the adapter choose.
	Group string

	// DeadLetters maps each of Topics to the topic that its exhausted messages
	// will be published to. Open makes sure that these exist. A topic without
	// an entry discards them.
	DeadLetters map[string]string

	// Receipts is the topic that the worker publishes to what became of
	// messages that were sent back. Open makes sure that it exists. Empty means
	// none.
	Receipts string

	// InFlight is the most deliveries that the worker will hold at once.
	InFlight int

	// Lease asks for leases of this length; 0 lets the adapter choose. The
	// one in force is Capabilities.Lease.
	Lease time.Duration

	// MaxDelay is the longest delay that a Retry may ask for, and MaxAge the
	// longest time that a message may spend in retries. A broker that would
	// lose or refuse such a message is an error from Open.
	MaxDelay time.Duration
	MaxAge   time.Duration

	// MaxAttempts is the most handler runs that a message may take; 0 means that
	// none is retried. A limit of the broker that could drop a message before is an
	// error from Open; one that could dead-letter it is in Capabilities.Findings.
	MaxAttempts int

	// Attempts are the limits of topics where they are lower than MaxAttempts.
	// A broker that can only estimate how often a message ran must stay below
	// that of its topic.
	Attempts map[string]int

	// Ordered says that the worker keeps the order of keys: hand out the
	// messages of each topic in the broker's order.
	Ordered bool
}

// ReadOnly reports whether s only reads.
func (s Subscription) ReadOnly() bool {
	return len(s.DeadLetters) == 0 && s.Receipts == "" && s.MaxDelay == 0 && s.MaxAttempts == 0
}

// Source delivers the messages of one Subscription. Its methods may be called
// at the same time, Settle for different deliveries; Receive is called from
// one goroutine.
type Source interface {
	// Capabilities are constant for the life of the source.
	Capabilities() Capabilities

	// Receive blocks until there is at least one delivery and returns at most
	// max, which is at least 1. At least half of the lease of each is left.
	// It returns ctx's cause at once when ctx ends first, and ErrClosed after
	// Close; a delivery already taken from the broker, or still on its way, is
	// then given back, not dropped. An error that is ErrMisconfigured ends
	// the work on this source; any other is temporary, such as a failed
	// attempt to connect, and the caller backs off and calls again. If a topic is
	// deleted, or the broker refuses this topic alone, the error is a *TopicError,
	// even for the only topic. Other topics go on, and this one does when the source
	// can receive from it again. Not calling Receive for hours is safe.
	Receive(ctx context.Context, max int) ([]*Delivery, error)

	// Pause says which topics of the subscription are paused from now on:
	// Receive hands out nothing of them until a later Pause leaves them out,
	// and Pause() resumes all. The others flow as if the paused ones were not
	// there. It returns at once, and is called by whoever calls Receive,
	// between two calls, maybe after each of them: a topic is paused for
	// moments because it has no room, and for hours because what its handlers
	// depend on is down. What the adapter has fetched of a paused topic stays
	// with it or goes back, before its lease or its count of deliveries
	// suffers; one that stays paused costs the broker no more requests. Names
	// that are no topics of the subscription have no effect.
	Pause(topics ...string)

	// Settle ends deliveries, in the order of batch where the broker can, and
	// returns one error per entry, or nil when all went well. A nil error
	// means that the action is durable, except that the removal of the
	// original may still get lost on its way, which costs a duplicate and
	// never a message. ErrLeaseLost, ErrSettled and ErrClosed are final for
	// the entry, and ErrRefused means that this Retry can never succeed; after
	// any other error the delivery is unsettled and still held, and the caller
	// may try again, which must not copy again what is confirmed already.
	// Settle does not keep batch.
	Settle(ctx context.Context, batch []Settlement) []error

	// Extend makes the leases of ds last for at least lease from now, which is
	// never more than Capabilities.Lease, or until MaxLease if that is sooner,
	// and sets LeaseUntil of those it extended.
	// One error per entry, or nil when all went well: ErrLeaseLost and
	// ErrClosed are final, ErrSettled says that the delivery is settled or
	// about to be and has no effect on the broker, any other error leaves the
	// lease as it was. It is not called when Capabilities.Lease is 0.
	Extend(ctx context.Context, lease time.Duration, ds []*Delivery) []error

	// Backlogs asks the broker for each topic of the subscription, and for each topic
	// that takes its dead letters, once. It makes as few calls as it can, and none on
	// which a delivery or a settlement waits. With an error it returns those topics
	// that it has answers for. ctx bounds it. An adapter whose broker cannot tell
	// returns an error that is [errors.ErrUnsupported].
	Backlogs(ctx context.Context) ([]Backlog, error)

	// Close unblocks Receive, sends on what Settle has accepted, and releases
	// what is received but unsettled. It may be called again.
	Close(ctx context.Context) error
}

// Capabilities describe a source. The pipeline and the conformance suite read
// them; handlers never need to.
type Capabilities struct {
	// Group is the set of workers that the source receives for, which SendBack
	// takes; empty where the broker has no such notion.
	Group string

	// Lease is how long a delivery is held without Extend; 0 means as long as
	// its session lives.
	Lease time.Duration

	// MaxLease is the longest that a delivery can be held from ReceivedAt,
	// however often it is extended; 0 means no limit. (SQS: 12 h.) If it
	// equals Lease, leases cannot be extended.
	MaxLease time.Duration

	// MaxHold, unless it is 0, is the longest that a first delivery should be
	// held for its retry: while it is unsettled, the broker has more work with
	// all that follow, and so a Retry costs less. What comes back from a Retry,
	// before its due time, may be held for longer. (RabbitMQ: 20 ms.)
	MaxHold time.Duration

	// Retention is how long the broker keeps a message from its publication on,
	// however often that is retried: the shortest of the topics. 0 means for as
	// long as that takes. (SQS: 4 days, unless the queue says otherwise.)
	Retention time.Duration

	// Granularity is the step to which delays are rounded up; 0 means exact.
	Granularity time.Duration

	// Ordered says that messages of one key are delivered in order even over
	// retries: while one of them is unsettled or waits for its retry, later
	// ones are not handed out. (SQS FIFO.) One Receive may return several of
	// one key; if an earlier one is not acked, the later ones must be
	// released. Open refuses a subscription whose topics differ in this.
	Ordered bool

	// HeaderLimit is the room in bytes for framework headers on one message;
	// 0 means 16 KiB.
	HeaderLimit int

	// MessageLimit is the largest message in bytes, headers included, that
	// Publish takes; 0 means unknown.
	MessageLimit int

	// Findings are the settings of queues and topics that weaken a promise, as Open
	// found them; none of them is blocking.
	Findings []inspect.Finding
}

// Delivery is a message that this worker holds until it settles it.
type Delivery struct {
	Message Message

	// Carried is what the message carries from earlier deliveries. Deliveries may
	// share one: do not change it, and take a copy from [Delivery.Meta]. Nil means
	// that it carries nothing, as on nearly all first deliveries. An adapter may
	// then leave the Origin to its Token.
	Carried *Meta

	// Abandoned counts the deliveries of this message that ended without a
	// settlement since the last Retry that changed its Meta: the worker died, or
	// its lease ran out. The pipeline takes it as evidence against the message, so
	// an adapter whose broker also counts releases or bystanders subtracts a margin
	// for them. 0 where nothing counts.
	Abandoned int

	// Unreadable says why the adapter could not read all of the message. Such a
	// one is never run: its dead letter has what could be read, the rest as the
	// adapter found it. Nil for nearly all.
	Unreadable error

	// Anonymous says that the message came without an ID, and the broker has none
	// either: Message.ID is of this delivery, and the next one has another. A copy
	// keeps it.
	Anonymous bool

	// ReceivedAt is when the delivery was handed out, or a moment before.
	ReceivedAt time.Time

	// LeaseUntil is when the lease runs out, less the adapter's margin for the
	// network: a settlement sent before is in time. Zero if the lease has no
	// deadline. Only Extend, and whoever calls it, may touch it after Receive.
	// No handler starts after it. Without a Session the wall clock counts for
	// that, too, so make it from a new reading of time.Now.
	LeaseUntil time.Time

	// Session ends, with cause, when nothing received in it can be settled any
	// more: the channel closed, the generation is over, the source was closed.
	// That it is about to end does not end it. Many deliveries share one. Nil
	// means that the session cannot end.
	Session context.Context

	// Token is the adapter's own. If Carried is nil, and Token has a method
	// Origin() Headers, that returns Meta.Origin.
	Token any
}

// Meta returns a copy of what the message carries, with its Origin.
func (d *Delivery) Meta() (m Meta) {
	if d.Carried != nil {
		return *d.Carried
	}
	if t, ok := d.Token.(interface{ Origin() Headers }); ok {
		m.Origin = t.Origin()
	}
	return m
}

// Action is how a delivery ends.
type Action uint8

const (
	// Ack removes the message: it was handled, or its copy is durable.
	Ack Action = iota

	// Retry makes the message available again after Settlement.Delay, with
	// Settlement.Meta.
	Retry

	// Release gives the message back unhandled, to be delivered again as soon
	// as the broker can, with its Meta as received. A log hands it out again
	// from memory while its source receives, and to the next owner after
	// Close.
	Release

	// Reject leaves the message, as it is, to the broker's own dead-lettering:
	// it is kept where the broker keeps what it gives up, without a record of
	// redrive. A broker that cannot, or that would drop the message, refuses
	// with [ErrRefused], and the delivery is still held.
	Reject
)

// String returns "ack", "retry", "release" or "reject".
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case Retry:
		return "retry"
	case Release:
		return "release"
	case Reject:
		return "reject"
	}
	return "invalid action"
}

// Settlement ends one delivery.
type Settlement struct {
	Delivery *Delivery
	Action   Action

	// Delay and Meta belong to Retry and are ignored otherwise. A delay that
	// is zero or less means as soon as possible.
	Delay time.Duration
	Meta  Meta
}
