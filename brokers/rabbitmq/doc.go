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
//   - A retry is never early: it waits on a delay queue that is no longer than its
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
// comes without a message id has the one of Options.IDFrom, or else one that is new
// with every delivery until it is retried.
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
//	redrive.return.v1            exchange (direct) from the delay queues to the second
//	redrive.copy.v1              exchange (direct) from workers to the second and the third
//	redrive.unroutable.v1        what comes back to a queue that is gone: exchange (fanout) and queue
//	redrive.delay.v2.2000        a delay queue of 2 s: exchange (fanout) and queue
//
// Retries have a queue of their own, so that a backlog makes none of them late,
// and because only workers write to it, if only they may: elsewhere the attempt
// and the due time in a message are anybody's claim and are not read.
//
// A delay queue is a queue in which every message waits for the same time, and is
// then dead-lettered, at least once, through redrive.return.v1 to the queue
// that its routing key names, or to redrive.unroutable.v1 if that is gone: a delay queue
// keeps what it cannot route, and would soon move nothing else. All topics share
// the delay queues. There are as many as MaxDelay needs,
// 31 for 15 minutes and never more than 40 in a vhost, since delays over 24
// hours take several turns. A delay up to 16 s takes one turn, up to a minute one
// or two, and up to 15 minutes two or three, and four at most.
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
// A worker writes to the delay queues and to redrive.copy.v1, which leads to the queues
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
// # What is taken and what is refused
//
// Open looks at all that it needs before it creates anything. What exists is
// compared, and what would lose messages is refused, all of it in one
// *brokers.TopologyError:
//
//	durable=false, auto_delete, exclusive      lost with the broker or the consumer
//	a stream                                   nothing can be taken from it
//	x-message-ttl, x-expires                   lost after that time
//	x-max-length, -bytes without x-overflow reject-publish   the oldest are lost
//	x-delivery-limit below 20 and no dead-letter exchange    lost by deployments
//
// The queues of topics, dead letters and receipts are else taken as they are, classic
// ones and those without any argument, too; what they cannot give is in
// Capabilities.Findings, with the command that mends it. A classic queue is on one
// node and does not count deliveries: a message that kills its workers is not found
// there. Queues that workers make for themselves (redrive.…) have to be as above, but
// for limits of length and the places of replicas.
//
// With Options.Verify nothing is declared, and what is missing is refused.
// Existence takes no right. Arguments are compared only for users with the right
// to configure the queue, and so is the kind of an exchange; bindings are not
// shown, so Open makes them once more, which changes nothing where they are, and
// takes the rights to write to the queue and to read from the exchange. What the
// user has no right to is an unverified finding, and Open goes on. So are policies,
// which AMQP does not show, on queues that others made; with Options.ManagementURL
// they are read, and count.
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
// four, fourteen of an ordered topic, and eight of a message on trial
// (Meta.Crashes). A release that would be charged beyond the first two is done by
// a copy, which begins at zero.
//
// # Connections
//
// Each source has one connection, with a channel for each of its queues: two for a
// topic, with that of its retries. A connection has 2,047 channels, unless the broker or
// channel_max in a URL says less. All publishing shares another connection.
// Receive connects again when it finds the connection lost, once per call, and
// returns what went wrong. When the broker blocks
// publishing because it is short of memory or disk, Receive hands out one
// delivery a second, acks go on, and publishing waits for the end of its context.
//
// Settlement with brokers.Reject has the broker dead-letter a message as it is. It
// is refused where the topic has no dead-letter queue, or its queue is not known to
// dead-letter at least once.
//
// Each queue has one consumer. Its prefetch begins at one, so that a message which
// kills its workers is charged alone, and doubles when a worker uses up what it is
// sent, unless that has been lost several times or connections are brief: up to
// Subscription.InFlight, and to 4000 if the worker is fast. A larger prefetch takes
// another consumer, at a moment when nothing is on its way to the one before. Of a
// queue with a single active consumer, and for a subscription that only reads, it is
// Subscription.InFlight from the start.
//
// An ack waits at most 40 ms for those of earlier deliveries, and then goes alone.
//
// A topic that is paused for 1.5 s is no longer consumed, but for what is still being
// worked on, and its buffer goes back. So does a buffer whose first message has used
// up three eighths of its lease. An ordered topic keeps its consumer over a pause. If
// its buffer is that old, or a large message finds no room in it, the worker closes
// the topic's channel. The broker then requeues the topic's unacked messages in order.
// The worker first takes all messages that an earlier close has left in the queue, and
// gives them back too.
package rabbitmq
