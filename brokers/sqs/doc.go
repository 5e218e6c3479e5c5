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
// call. SQS stores nothing with it but counts the receive, so the worker
// retries in place only if that count will tell every other worker the right
// attempt, if the delay fits the 12 hours for which SQS lets a message be held,
// and if less than 100,000 messages of the queue are in flight. The worker
// itself remembers the exact Meta of 20,000 messages for the time that they
// are away; another worker that receives one of them knows its attempt, as an
// upper bound, and what the message said when it was last copied.
//
// A message that SQS itself would end at its next receive, because of a
// RedrivePolicy, is not given back on a standard queue: a copy replaces it.
//
// All other retries are copies, which carry their Meta: a copy is sent with a
// delay of at most 900 s, confirmed, and the original deleted. What is due later
// waits in place for the rest. With Options.Copies every retry that has
// something to store is a copy.
//
// What is too large to be copied with its Meta is retried in place whatever speaks
// against it: its exact Meta is then known to this worker alone. If the message
// waits for its dead letter, its copy first says less of why it is dead.
//
// On FIFO queues every retry is in place, because a copy would come after what
// it has to come before. Delays may not exceed 10 h 59 min there. If a message
// waits there for its dead letter, this worker alone knows that it is dead:
// another worker runs it again.
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
// On FIFO queues nothing but receives tells other workers of attempts. So they
// know too few of those that were waited for in a worker (HoldLimit), and too
// many where a run was throttled.
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
// # Polls
//
// While Receive is called, each queue has a poll open, and up to Options.Polls
// while it answers full and at once. After an answer that is less than half full
// it is asked again 20 ms later, so that what trickles in shares a call. Together
// polls ask for what the worker has room for and will take within a quarter of a
// lease, going by what it took before. What is buffered goes back when half of
// its lease is over. After a failed poll its queue rests for one to twenty
// seconds. While retries hold up others of a FIFO group, a poll asks for one
// message.
//
// At most 32 MiB wait to be handed out, an equal share for each queue: polls ask
// for no more than fits if it is as large as what came of late, and what has no
// room nevertheless goes back at once. Large answers are read one at a time.
//
// For a paused topic no poll begins. What is buffered of it, or comes with a poll
// that is open, goes back after a second or two without open polls, later if the
// last pause was one of seconds.
//
// Each poll asks for a visibility timeout of Subscription.Lease and the time
// that it may wait; so a message that was in a worker when it died comes again
// after up to 52 s, by default.
//
// # What Open verifies
//
// Open looks at all queues before it creates any, and takes those that lose nothing.
// It fails with brokers.ErrMisconfigured if standard and FIFO queues are mixed, a
// dead-letter queue is of the other type, MaxDelay does not fit a FIFO queue, or
// Lease the 12 hours of SQS; and with a *brokers.TopologyError, which names each fault
// and the command that mends it, if
//
//   - a queue is missing, and Options.Create is not set or it is named by a URL;
//   - messages may take longer than the queue keeps them: its
//     MessageRetentionPeriod is less than MaxAge and MaxDelay together;
//   - a dead-letter queue takes only smaller messages than the queue;
//   - the target of a RedrivePolicy does not exist, or keeps what comes to it from a
//     standard queue, with its age, for a shorter time than the queue.
//
// What is only less than it could be is in Capabilities.Findings: a dead-letter queue
// that keeps letters for a shorter time than the queue, no RedrivePolicy, one with a
// low maxReceiveCount, and attributes that must not be read. Low is less than three
// times MaxAttempts plus ten, on FIFO queues plus a hundred. On a standard queue with
// a low or unknown one every retry is a copy, for which the count starts anew, and
// polls ask for no more than is taken at once. On a FIFO queue each attempt counts,
// SQS itself ends messages, and polls ask for one message. Broker.Inspect returns all
// that there is to find.
//
// A queue that is gone while a source is open is created again if Options.Create is
// set, and Receive says so; what was in it is lost. Otherwise that is
// brokers.ErrNotFound.
//
// A Subscription that never retries leaves MaxAttempts, MaxDelay and MaxAge at 0:
// nothing is asked of the retention then, and of a RedrivePolicy what one attempt
// needs. A topic without dead letters gets none, and none is missed.
//
// Of a subscription that only reads (brokers.Subscription.ReadOnly) queues must exist,
// whatever Options.Create says, and nothing else is verified. A Retry with an unchanged
// Meta is done in place, on FIFO queues any; others are refused. What cannot be read is
// handed out at its first receive.
//
// # Rights
//
// On the queues sqs:GetQueueUrl, GetQueueAttributes, ReceiveMessage,
// DeleteMessage, ChangeMessageVisibility and SendMessage; on dead-letter queues
// sqs:GetQueueUrl, GetQueueAttributes and SendMessage; with Options.Create
// sqs:CreateQueue on both. Whoever only reads needs sqs:GetQueueUrl, ReceiveMessage,
// DeleteMessage and ChangeMessageVisibility.
package sqs
