// Package memory is the reference broker: the whole contract of package
// brokers inside one process, for tests, examples and simulations.
//
// # What it guarantees
//
//   - A message leaves its topic only by Ack or Reject. Retry and Release keep it, and
//     so do expired leases, closed sources and crashed workers.
//   - Reject moves a message, as it is, to the dead-letter topic that its
//     subscription names, whatever the limits; without one it is refused.
//   - Delays and leases are exact. A message comes back at its due time and
//     never before; a lease that ends at some time is lost from that very time
//     on, and a settlement that comes too late has no effect.
//   - Counts are exact. Abandoned counts expired leases since the last Retry, and
//     nothing else.
//   - Messages are handed out in the order in which they became available,
//     and a released or abandoned one takes its old place again. With
//     [Options].Ordered the messages of one key keep their order over retries.
//   - No topic of a subscription starves another, and no source keeps a
//     message from the other sources that ask for its topic.
//   - Memory is bounded: Publish waits while a topic is full.
//   - It can be used inside testing/synctest. It keeps no goroutine of its
//     own, has one timer for all leases and delays, and leaves nothing behind
//     after Close.
//
// # What it does not guarantee
//
// Nothing survives the process: "durable" means stored in this [Broker].
//
// [Options].Fault injects what goes wrong with a real broker, and
// [Broker.Crash] kills a worker.
package memory
