// Package brokers is the contract between redrive's pipeline and a message
// broker. An adapter (SQS, RabbitMQ, Kafka, memory) implements [Broker] and
// [Source]; everything above them, from classification to dead letters, is
// written once against these types.
//
// # What an adapter guarantees
//
//   - Nothing is lost. A message leaves its queue only by [Ack], or when the
//     copy that replaces it is confirmed durable. If the outcome of an
//     operation is unknown, it counts as not done and the original stays.
//   - Never early. A message settled with [Retry] comes back when its delay
//     has passed. If the broker can only come close, it comes back before and
//     says so in [Meta].DueAt; the pipeline then holds it until that time,
//     whichever worker received it.
//   - Nobody settles for somebody else. A settlement from an expired lease, a
//     closed session or an old generation is [ErrLeaseLost] and removes
//     nothing.
//   - User headers, key and body arrive as they were published, byte for
//     byte, after any number of retries.
//
// # What it does not guarantee
//
// Delivery is at least once: crashes, expired leases and lost confirmations
// cause duplicates. Messages carry an ID that is stable over all of
// redrive's own hops so that handlers can tell. Order holds only where
// [Capabilities.Ordered] says so. Due times are judged by the clock of the
// worker that receives, so workers are as early or late as their clocks
// differ.
//
// # Framework headers
//
// Headers whose names docs/reference/headers.md lists are the framework's.
// Publish keeps those that identify a message and those of a dead letter, and
// may drop those that only a worker writes (attempt, due time, history); on a
// delivery the adapter reads them as hostile input, bounded and clamped, because
// anybody may have written them. Other names that begin with "redrive-" are
// reserved for later; until then they are user data, and stay.
//
// The suite in brokers/brokertest states each rule as a clause and checks it.
package brokers
