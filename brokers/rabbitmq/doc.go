// Package rabbitmq runs redrive on RabbitMQ 3.10 and newer, over AMQP 0-9-1.
//
// # What it guarantees
//
//   - A retry is a copy, published persistent and mandatory. The original is
//     acked when the broker has confirmed the copy and has not returned it. A
//     confirm that does not come is brokers.ErrUnknownOutcome, and the original
//     stays.
//   - A delivery belongs to the connection that it came on. When that is lost,
//     Delivery.Session ends, and settling it is brokers.ErrLeaseLost without a
//     word to the broker, where its delivery tag may stand for another message
//     by then. The library's own recovery is off.
//   - A retry is never early: it waits on a shelf that is no longer than its
//     delay, or on none if that is below 2 s, and Meta.DueAt tells whichever
//     worker receives it how long to hold it.
//   - Headers, with the types of AMQP, and properties come through any number
//     of retries.
//   - A message whose headers the client library does not read costs no
//     connection: it is dead-lettered, with its headers as they came.
//
// It does not promise order, but with Subscription.Ordered that of first
// deliveries: a retry is a new message. An ack is not confirmed
// by the broker, so one may get lost, which costs a duplicate. A message that
// comes without a message id gets one that is new with every delivery until it
// is retried.
//
// # What Open declares
//
// Everything is durable, and queues are quorum queues. With Options.Prefix
// unset, for a topic "orders":
//
//	orders                       the queue
//	redrive.retry.v1.orders      the queue for what comes back from a delay
//	orders-dead                  its dead-letter topic, as the subscription names it
//	redrive.dead.v1              exchange (direct) from the first two to the third
//	redrive.return.v1            exchange (direct) from the shelves to the second
//	redrive.copy.v1              exchange (direct) from workers to the second and the third
//	redrive.unroutable.v1        what comes back to a queue that is gone: exchange (fanout) and queue
//	redrive.delay.v2.2000        a shelf of 2 s: exchange (fanout) and queue
//
// Retries have a queue of their own, so that a backlog makes none of them late,
// and because only workers write to it, if only they may: elsewhere the attempt
// and the due time in a message are anybody's claim and are not read.
//
// A shelf is a queue in which every message waits for the same time, and is
// then dead-lettered, at least once, through redrive.return.v1 to the queue
// that its routing key names, or to redrive.unroutable.v1 if that is gone: a shelf
// keeps what it cannot route, and would soon move nothing else. All topics share
// the shelves. There are as many as MaxDelay needs,
// 72 for 15 minutes and never more than 98 in a vhost, since delays over 24
// hours take several turns. A delay up to 64 s takes one or two turns, up to 15
// minutes two or three.
//
// The queues of topics with dead letters have a delivery limit of 20 and
// dead-letter, at least once, to redrive.dead.v1 under the name of the topic.
// That is a net for messages that end every worker before it can dead-letter
// them. Dead-letter queues, and those of topics without dead letters, have a
// limit that nobody reaches: the broker has nowhere to put what is on them. The
// dead-letter topic is in a binding, which can be changed, and arguments cannot.
// The binding of one that is no longer used stays until an operator removes it.
//
// A program that publishes and may be there before any worker calls
// Broker.Declare.
//
// # Who may write what
//
// A worker writes to the shelves and to redrive.copy.v1, which leads to the queues
// of retries and dead letters alone. It needs no right to write to the default
// exchange, unless it publishes to other queues.
//
// Whoever may write to the default exchange may write to every queue of the vhost:
// to those of retries, too, where how far a message has come is believed. They can
// have messages of their own dead-lettered without a run, or delayed, and none of
// anybody else's. Give producers that are not to be trusted an exchange of their
// own and no right to write to the default one; or set Options.Secret, and workers
// believe only each other.
//
// # What is verified
//
// A queue or exchange that exists is compared, argument by argument. Those that
// void no promise are taken over as they are, on the queues of topics:
//
//	x-delivery-limit                      none, or 20 and more
//	x-dead-letter-exchange, -routing-key  another exchange, with a key of its own
//	x-max-length, x-max-length-bytes      any: what has no room is refused
//	x-single-active-consumer              any
//	x-queue-leader-locator, x-quorum-…    any
//
// and on shelves all but the first two. All else fails Open with
// brokers.ErrMisconfigured, which names each difference: a classic queue or a
// stream, dead-lettering at most once, drop-head, a time to live, a lower limit,
// an exchange of another kind.
//
// With Options.Verify nothing is declared, and what is missing fails Open.
// Existence takes no right. Arguments are compared only for users with the right
// to configure the queue, and so is the kind of an exchange. Bindings are not
// shown, so Open makes them once more in either mode, which changes nothing
// where they are: that takes the rights to write to the queue and to read from
// the exchange. Without these rights Open fails and says which is missing;
// with Options.AllowUnverified it goes on.
//
// AMQP does not show policies. One that sets a delivery limit, a length limit, a
// time to live or an expiry on these queues goes unseen. Where one sets what is
// not in the arguments of the queue of a topic, Options.AllowUnverified accepts
// that. It is for you to see that it does: a quorum queue without a dead-letter
// exchange drops what reaches its delivery limit, which since RabbitMQ 4 is 20
// where nothing sets it.
//
// # Who only reads
//
// A subscription that only reads (brokers.Subscription.ReadOnly) takes queues of any
// kind, with the right to read alone, and no more than Subscription.InFlight of
// each at a time. A stream is refused, as nothing can be taken from it. So is a queue
// that deletes itself when its last consumer leaves, as far as the user has the right
// to configure it: the broker tells nobody else. Every Retry is refused, and so is
// Reject. Of a queue with a single active consumer it holds one message at a time, or,
// with Subscription.Ordered, as many as of any other.
//
// # Headers
//
// brokers.Header.Type is "" for text, else bool, int8 to int64, uint8 to uint32,
// float32, float64, decimal, timestamp, bytes, void, table or array. Type
// "property" makes it one of the properties content-type, content-encoding,
// correlation-id, reply-to, type, app-id, priority and timestamp. The properties
// expiration and user-id and the headers CC and BCC are carried along without
// effect: on a copy they would let it expire, be refused, or go elsewhere twice.
// What the broker notes about earlier queues (x-death and its like) is dropped.
// Of a message that it dead-lettered by itself, the first delivery has the last
// reason, queue, count and time in Meta.Origin: death-reason and so on, beside
// first-death-reason and so on, which tell where it comes from. They are whatever
// the message says, as anybody may publish them.
//
// # Leases, crashes, releases
//
// A lease is Options.ConsumerTimeout less a tenth, at most a minute, and cannot
// be extended. Subscription.Lease does not shorten it; asking for more is an
// error of Open. At its end the adapter gives the message back by itself, before
// the broker would close the channel with everything on it.
//
// The broker charges a lost connection to every message on it, and before
// RabbitMQ 4.3 also each release. Delivery.Abandoned is therefore what exceeds
// fourteen, and a release that would be charged beyond that is done by a copy,
// which begins at zero.
//
// # Connections
//
// Each source has one connection, with at most ten channels for all of its topics
// together and ten for their retries, and one more of either for each 2000 of
// Subscription.InFlight; all publishing shares another.
// Receive connects again when it finds the connection lost, once per call, and
// returns what went wrong. When the broker blocks
// publishing because it is short of memory or disk, Receive hands out one
// delivery a second, acks go on, and publishing waits for the end of its context.
//
// Settlement with brokers.Reject has the broker dead-letter a message as it is. It
// is refused where the topic has no dead-letter queue, or arguments of its queue
// could not be compared.
//
// Prefetching begins at one message a queue, so that one which kills its workers
// is charged alone, goes on to 32 when that is taken, unless it has been lost
// several times or connections are brief, and doubles when a worker uses up
// what it is sent: up to Subscription.InFlight, to 2000 if the worker is fast, and
// to 4000 if acks wait for the copies of retries. Of a queue with a single active
// consumer it is Subscription.InFlight, up to 2000, from the start. A topic that is
// paused for 1.5 s is no longer consumed, and what is buffered of it goes back. An
// ordered topic has one consumer, which a larger prefetch replaces while nothing is
// on its way, and keeps it over a pause.
package rabbitmq
