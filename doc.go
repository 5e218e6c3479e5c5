// Package redrive is the overview of the module: it has no code. redrive runs Go
// message handlers so that no failure loses a message. It classifies the error,
// retries with jitter, spares what is down, and in the end writes a dead letter
// that says what happened. The same code runs on Kafka, RabbitMQ, SQS and in
// memory.
//
// A worker, the process that embeds a consumer.Consumer, looks like this:
//
//	func charge(ctx context.Context, o Order) error {
//		if o.Cents <= 0 {
//			return classify.Permanent(errors.New("there is nothing to charge")) // never retried
//		}
//		return bank.Charge(ctx, o) // any other error is classified, and retried if that can help
//	}
//
//	c, err := consumer.New(broker, consumer.Config{DeadLetter: "*-dead"})
//	if err != nil {
//		return err
//	}
//	c.Handle("orders", consumer.JSON(charge))
//	return c.Run(ctx) // until ctx ends, and then until the running handlers have finished
//
// # Guarantees
//
//   - Nothing is lost. A message leaves its queue only when its handler has
//     returned nil, or when its retry or its dead letter is confirmed durable.
//   - Every message ends, in success or as a dead letter.
//   - No retry starts early, and messages that failed together do not come back
//     together.
//   - What is not the message's fault is not counted against it: a shutdown, a
//     lost lease, an outage of what the handler depends on.
//   - A dependency that is down is left alone until it recovers, and topics that
//     do not depend on it go on.
//
// Handlers run at least once, not exactly once: a crash or a lost
// acknowledgement means another run, with the same message ID and idempotency
// key. Package consumer has the guarantees in full, and what voids them.
//
// # Packages
//
//   - [github.com/redrive-go/redrive/consumer] runs handlers: start here.
//     consumer/consumertest runs one handler in a test.
//   - [github.com/redrive-go/redrive/classify] says what an error means: marks for
//     handlers, and rules for the errors of a library.
//   - [github.com/redrive-go/redrive/dlq] says where dead letters go, and reads
//     them.
//   - [github.com/redrive-go/redrive/retry] is the policy: how often and how far
//     apart. retry/flow and retry/budget spare what is down, and retry/breaker
//     does so for clients.
//   - [github.com/redrive-go/redrive/httpretry] is an HTTP client for handlers,
//     [github.com/redrive-go/redrive/idempotency] keeps duplicates out,
//     [github.com/redrive-go/redrive/metrics] is for Prometheus, and
//     [github.com/redrive-go/redrive/health] answers the probes of Kubernetes.
//   - [github.com/redrive-go/redrive/brokers] is the contract between a Consumer
//     and a broker. A program imports one of its adapters: brokers/kafka,
//     brokers/rabbitmq, brokers/sqs or, for tests, brokers/memory. All of them
//     pass brokers/brokertest.
//   - [github.com/redrive-go/redrive/visibility] extends leases, should you write
//     a consumer of your own.
//
// Of these consumer, classify, dlq, retry, health, brokers and visibility import
// the standard library alone.
package redrive
