// Package consumer runs message handlers: a [Consumer] receives from a broker,
// calls the handler registered for the topic, and settles each message by what
// the handler returned. Failures are classified, retried with full jitter, and
// in the end dead-lettered, with what happened. The process that embeds
// Consumers is the worker.
//
//	c, err := consumer.New(broker, consumer.Config{DeadLetter: "*-dead"})
//	if err != nil {
//		return err
//	}
//	c.Handle("orders", consumer.JSON(charge))
//	c.HandleWith("refunds", consumer.JSON(refund), consumer.TopicConfig{Dependency: "orders"})
//	c.HandleWith("mails", consumer.JSON(send), consumer.TopicConfig{Concurrency: 4})
//	return c.Run(ctx)
//
// # What a Consumer guarantees
//
//   - Nothing is lost. A message leaves its queue when its handler returned
//     nil, or when its retry copy or dead letter is confirmed durable. An
//     unknown outcome counts as not done. The order never changes: secure the
//     copy, wait for the confirmation, then settle the original.
//   - Never early. No retry starts before its due time.
//   - Not every error is a failure. A shutdown, a lost lease, the first few
//     throttles, and failures that no other message succeeds beside are not
//     counted as attempts. So an outage uses up no attempts.
//   - Every message ends: in success, or as a dead letter after
//     retry.Policy.MaxAttempts counted runs or retry.Policy.MaxAge. A message
//     that is alone ends by its age.
//   - Topics do not hurt each other. Each has slots, room and a [Guard] of its
//     own, so that one which fails, hangs or is slow stops no other. A guard
//     lowers how many handlers run at once only while practically no message
//     succeeds or the dependency throttles.
//   - Bounded harm. Retries are a small share of the load until they succeed,
//     what is held is bounded in number and bytes, and a failing dead-letter
//     topic or settlement is tried again with backoff, without running the
//     handler again.
//   - A clean stop. When the context of Run ends, running handlers get
//     DrainTimeout to finish; whatever does not is given back uncounted.
//
// # What it does not guarantee
//
// Handlers run at least once, not exactly once: a crash, a lost lease or a
// lost acknowledgement causes another run, with the same message ID and
// idempotency key ([MetaFrom]). Order is kept per key only with
// Config.OrderByKey, and there a retry through the broker lets later messages
// of its key overtake, unless the broker itself keeps the order.
//
// # Settings that break these
//
// New and Run refuse what would void a guarantee and say how to fix it, all
// faults at once. Dropping exhausted messages must be spelled out with
// dlq.Discard.
package consumer
