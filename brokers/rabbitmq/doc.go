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
//     delay, and Meta.DueAt tells whichever worker receives it how long to hold
//     it.
//   - Headers, with the types of AMQP, and properties come through any number
//     of retries.
//
// It does not promise order: a retry is a new message. An ack is not confirmed
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
//	orders.dead                  its dead-letter topic, as the subscription names it
//	redrive.dead.v1              exchange (direct) from the first two to the third
//	redrive.delay.v1.2000        a shelf of 2 s: exchange (fanout) and queue
//
// Retries have a queue of their own, so that a backlog makes none of them late,
// and because only workers write to it: elsewhere the attempt and the due time
// in a message are anybody's claim and are not read.
//
// A shelf is a queue in which every message waits for the same time, and is
// then dead-lettered, at least once, through the default exchange to the queue
// that its routing key names. So there is no binding per topic that could be
// missing. All topics share the shelves. There are as many as MaxDelay needs,
// 72 for 15 minutes and never more than 98 in a vhost, since delays over 24
// hours take several turns. A delay up to 64 s takes one or two turns, up to 15
// minutes two or three.
//
// The queues of topics have a delivery limit of 20 and dead-letter, at least
// once, to redrive.dead.v1 under the name of the topic. That is a net for
// messages that end every worker before it can dead-letter them. Their
// arguments are the same whether a topic has dead letters or not, as arguments
// cannot be changed; the dead-letter topic is in a binding, which can. The
// binding of a dead-letter topic that is no longer used stays until an operator
// removes it.
//
// # What is verified
//
// Open fails with brokers.ErrMisconfigured where a queue or exchange exists with
// other arguments: a classic queue, dead-lettering at most once, another
// delivery limit, another delay. With Options.Verify it declares nothing. AMQP
// does not show policies or bindings: a policy that sets a delivery limit, a
// length limit or a time-to-live on these queues goes unseen. A missing binding
// of a shelf is found by the first retry that needs it, which fails and leaves
// its original.
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
//
// # Leases, crashes, releases
//
// A lease is Options.ConsumerTimeout less a tenth, at most a minute, and cannot
// be extended. At its end the adapter gives the message back by itself, before
// the broker would close the channel with everything on it.
//
// The broker charges a lost connection to every message on it, and before
// RabbitMQ 4.3 also each release. Delivery.Abandoned is therefore what exceeds
// ten, and a release that would be charged beyond that is done by a copy, which
// begins at zero.
//
// # Connections
//
// Each source has one connection, with one channel for all of its topics; all
// publishing shares another. Receive connects again when it finds the connection
// lost, once per call, and returns what went wrong. When the broker blocks
// publishing because it is short of memory or disk, Receive hands out one
// delivery a second, acks go on, and publishing waits for the end of its context.
//
// Prefetching begins at 200 messages a queue and doubles, up to
// Subscription.InFlight and 2000, when a worker uses up what it is sent.
package rabbitmq
