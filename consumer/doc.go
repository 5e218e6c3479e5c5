// Package consumer runs message handlers: a [Consumer] receives from a broker,
// calls the handler registered for the topic, and settles each message by what
// the handler returned. Failures are classified, retried with full jitter, and
// in the end dead-lettered, with what happened. The process that embeds
// Consumers is the worker.
//
// # What a Consumer guarantees
//
//   - Nothing is lost. A message leaves its queue when its handler returned
//     nil, or when its retry copy or dead letter is confirmed durable. An
//     unknown outcome counts as not done. The order never changes: secure the
//     copy, wait for the confirmation, then settle the original.
//   - Never early. No retry starts before its due time.
//   - Not every error is a failure. A shutdown, a lost lease and the first
//     few throttles are not counted as attempts and never dead-letter a
//     message.
//   - Every message ends: in success, or as a dead letter after
//     retry.Policy.MaxAttempts counted runs or retry.Policy.MaxAge.
//   - Bounded harm. At most Concurrency handlers of a topic run, a bounded
//     number of deliveries is held, and a failing dead-letter topic or
//     settlement is tried again with backoff, without running the handler
//     again.
//   - A clean stop. When the context of Run ends, running handlers get
//     DrainTimeout to finish; whatever does not is given back uncounted.
//
// # What it does not guarantee
//
// Handlers run at least once, not exactly once: a crash, a lost lease or a
// lost acknowledgement causes another run, with the same message ID and
// idempotency key ([MetaFrom]). Order is kept per key only with
// Config.OrderByKey, and there a retry through the broker lets later messages of
// its key overtake, unless the broker itself keeps the order.
//
// # Settings that break these
//
// New and Run refuse what would void a guarantee and say how to fix it, all
// faults at once. Dropping exhausted messages must be spelled out with
// dlq.Discard.
package consumer
