// Package sqs runs redrive on Amazon SQS, on standard and on FIFO queues.
//
// # What it guarantees
//
//   - A message leaves its queue when it is acked, or when SQS has confirmed the
//     copy that replaces it. A copy that is not confirmed is
//     brokers.ErrUnknownOutcome, and the original stays.
//   - A retry is never early. Delays are whole seconds, rounded up; a copy that
//     SQS cannot delay for long enough says in Meta.DueAt when it is due.
//   - A delivery belongs to its lease, whose clock starts before the message is
//     asked for. What is settled later is brokers.ErrLeaseLost without a call to
//     SQS, which might obey.
//   - A poll is never cancelled, so no message is in flight that nobody knows
//     of. What a poll brings too late is given back.
//   - Body, headers with their types, and key come through any number of
//     retries. A message that SQS would not take as it is travels in an
//     envelope.
//   - Every message ends, of whatever size and whoever sent it. A retry that is
//     too large for a copy waits in place; a dead letter that has no room for its
//     story goes without, and reads like one that SQS itself has moved. What no
//     worker can open is dead-lettered at its third receive.
//   - FIFO queues keep their order over retries: a message that failed blocks
//     its group, and what came with it is given back, the last one first.
//
// It does not promise that a message comes once: SQS delivers again what was
// acked when the answer got lost, and on standard queues now and then without a
// reason. Order is promised on FIFO queues alone. Close needs to wait for the
// open polls, up to Options.PollWait; a process that ends before leaves what
// they bring in flight until their visibility timeout is over.
//
// # Retries
//
// A retry in place changes the visibility timeout of the message, which is one
// call. SQS stores nothing with it but counts the receive. So the worker retries
// in place only if that count will tell every other worker the right attempt, if
// the delay fits the 12 hours for which SQS lets a message be held, and if less
// than 100,000 messages of the queue are in flight. The worker itself remembers
// the exact Meta of 20,000 messages for the time that they are away; another
// worker knows the attempt, as an upper bound, and what the message said when it
// was last copied.
//
// All other retries are copies, which carry their Meta: a copy is sent with a
// delay of at most 900 s, confirmed, and the original deleted. What is due later
// waits in place for the rest. With Options.Copies every retry that has
// something to store is a copy. On FIFO queues every retry is in place, because a
// copy would come after what it has to come before; delays may not exceed
// 10 h 59 min there.
//
// # Attempts and crashes
//
// SQS counts receives: also those of workers that died, gave the message back,
// or could not hand it out. Where messages are retried in place, a receive that
// the worker cannot account for counts as an attempt, up to the last attempt
// but one before the message is exhausted; with Options.Copies none does.
// Beyond that, and less four for releases and bystanders, or a hundred on FIFO
// queues, they are Delivery.Abandoned.
//
// # Who may write what
//
// Whoever may send to a queue may claim progress. On a FIFO queue none is read from
// messages. On a standard queue it is read where it names that queue, and believed
// within bounds: a sender can have its own message dead-lettered without a run, or
// delayed for as long as the longest delay. With Options.Secret it is believed where
// a worker has signed it; anything else starts as new. A signed copy that is sent
// again is believed again.
//
// # Queues
//
// Open looks at all queues before it creates any, and takes those that lose
// nothing. It fails with brokers.ErrMisconfigured if the subscription cannot be on
// SQS, and with a *brokers.TopologyError, which names each fault and the command
// that mends it, if a queue is missing or would lose messages. What is only less
// than it could be is in Capabilities.Findings; Broker.Inspect returns all that
// there is to find. Of a subscription that only reads
// (brokers.Subscription.ReadOnly) queues must exist, and nothing else is verified.
//
// docs/reference/sqs.md lists what is verified, what it is called on the wire, the
// limits and the calls. docs/how-to/set-up-queues-on-sqs.md has the rights that
// workers need, and docs/explanation/sqs.md says how retries, leases and polls go
// together, and what they cost.
package sqs
