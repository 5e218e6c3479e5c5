// Package kafka runs redrive on Apache Kafka 2.4 and newer, by consumer groups.
//
// # What it guarantees
//
//   - A retry is a copy in a delay topic, confirmed by all replicas in sync. Only
//     then is the original done. A confirm that does not come is
//     brokers.ErrUnknownOutcome, and the original stays.
//   - Every record is settled on its own. What is committed is never above the
//     lowest record that is not settled, so a slow or failing one holds up no
//     other, and none is lost behind it.
//   - A delivery belongs to its partition, as long as the worker owns that: over
//     changes of the group that leave it there (KIP-429). When it is revoked, or
//     lost, Delivery.Session ends, settling is brokers.ErrLeaseLost, and nothing
//     is committed any more.
//   - A retry is never early, and becomes due to the millisecond: its due time is
//     in the copy.
//   - Keys, bodies and headers come through any number of retries as they were:
//     a nil body, an empty key, a header with no value, repeated names and their
//     order.
//   - Records that fell off the log before they were read, and a log that is
//     shorter than what was committed, are an error from Receive, never a silent
//     jump.
//   - A batch that becomes more than Options.MaxDecompressed costs no more memory
//     than that, and stops nothing: a delivery that is Unreadable stands for it.
//   - A message that its producer compressed fits the topics for copies: a copy
//     that is too large is compressed, too, with gzip if that is enough.
//
// It does not promise order: a retry that waits in the broker is overtaken. Nor
// exactly once: what is settled is committed every 200 ms, and what a worker has
// settled since is handled again when it is killed. Nor does a retry outlive its
// topic's retention: Open refuses less than the longest delay plus an hour, and
// creates topics with the longest delay plus seven days; beyond that, a worker
// that is down for longer loses what waits.
//
// # What Open creates
//
// The topics of a subscription must exist. For the group "billing", the longest delay
// 15 minutes, and Options.Prefix unset, Open creates the dead-letter topics as the
// subscription names them, and topics for retries:
//
//	redrive.delay.v1.billing.1m    retries that wait for up to 1 minute
//	redrive.delay.v1.billing.15m   for up to 15 minutes
//
// and the same for 3h and 24h where delays are longer; the last takes any delay
// beyond. Topics for longer delays that exist already are read as well: an earlier
// policy may have left retries in them. Before anything is created, Open looks at
// topics, settings, rights and the group. It fails with a [brokers.TopologyError] that
// lists all that is wrong, with the commands that mend it. What is weaker than it could
// be is taken, and in brokers.Capabilities. With Options.Verify nothing is created.
//
// For a subscription that only reads (brokers.Subscription.ReadOnly) nothing is created
// or verified but that its topics exist, and every Retry is refused. Give it a group of
// its own: it begins with the oldest record, and leaves offsets there and nothing else.
// It needs the right Read on topics and group. Without DescribeConfigs, what a batch
// may become is 16 MiB unless Options.MaxDecompressed says more.
//
// # Groups
//
// A source is one member of its group, for all topics and delay topics together.
// All workers of a group must subscribe to the same topics: a retry of a topic
// that a worker does not know goes back to its delay topic for another one, and every worker is told of
// it. A group begins with the oldest record of each partition for which it has no
// commit, or as Options.Start says.
//
// Handlers of partitions that move may come to their end for a third of
// Options.RebalanceTimeout. A worker that is killed is noticed after
// Options.SessionTimeout. Kafka counts no deliveries for a group, so each commit names
// up to 64 records that are with handlers: Delivery.Abandoned is how many owners of the
// partition were lost with a record.
//
// # More
//
// Options, settings, formats and errors are in [the reference], and how it works, and
// why, in [the explanation].
//
// [the reference]: https://github.com/redrive-go/redrive/blob/main/docs/reference/kafka.md
// [the explanation]: https://github.com/redrive-go/redrive/blob/main/docs/explanation/kafka.md
package kafka
