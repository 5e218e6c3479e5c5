// Package tracing gives the handlers of package consumer spans of OpenTelemetry.
//
//	c, err := consumer.New(broker, consumer.Config{
//		DeadLetter: "*-dead",
//		Tracer:     tracing.New(provider),
//	})
//
// Each run of a handler has one span, "process orders". It ends when the worker
// has decided what becomes of the message, and says so in its attributes.
//
//   - An attempt is a child of the producer's span, and links to the attempt before
//     it. So all attempts have one trace ID, the producer's. [NewTraceAfter] begins
//     a new trace instead where a message has waited for long.
//   - A message that is sent back from a dead-letter topic begins a new trace, with
//     links to the producer, to its last attempt, and to the span of the job that sent
//     it back, if there is one.
//   - A batch has one span, with links to the producers of its messages and to their
//     attempts before. It has a child "decide orders" for each message that failed.
//   - "dead-letter orders" lasts until the dead letter is durable; "defer orders"
//     says that a run was put off, uncounted. Both are children of the last attempt.
//   - The status is Error only where a run ends its message. A run that is tried again
//     has none, so that a sampler can tell them apart.
//
// For a program that embeds the retry service or jobs, a Tracer is also that of package
// operate/service, with a span for each HTTP call, and of package operate/job, with a
// span "send orders" for each batch of dead letters that goes back.
//
// The producer's traceparent is never changed. The attempt before travels in a
// header of its own, redrive-traceparent, which is the first to go where headers
// have no room. Anybody may have written both: the tracer ignores a
// malformed value, and a forged one changes nothing but the trace.
//
// # Attributes
//
// Names and values are those of the semantic conventions of version [Conventions],
// and these. A sampler sees those of the start.
//
//	retry.attempt           number of the run, from 1; at the start
//	redrive.count           how often the message was sent back; at the start, if it was
//	redrive.outcome         success, retry, defer, dead_letter, skip, release or lost,
//	                        as in the metric retry_attempts_total
//	redrive.reason          why the message is dead, is tried again, or was put off
//	redrive.fingerprint     groups equal faults
//	redrive.job             number of the job that sends letters back; at the start
//	redrive.failed          how many letters of a batch the broker has not confirmed
//	redrive.link            of a link: producer, previous_attempt or send_back
//	retry.delay_ms          the delay until the next attempt
//	retry.budget_exhausted  a run or a call was put off because there was no token for it
//	error.type              the class of the failure, see package classify; of a call
//	                        that had a response its status; of a send-back refused,
//	                        misconfigured or unknown
//
// Error texts, bodies, keys, headers, paths and queries are in no span.
//
// Not promised: a span of a worker that dies, as its process takes it along.
package tracing
