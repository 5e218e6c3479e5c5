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
// The topics of a subscription must exist. For the group "billing" with a topic
// "orders", the longest delay 15 minutes, and Options.Prefix unset:
//
//	redrive.delay.v1.billing.1m    retries that wait for up to 1 minute
//	redrive.delay.v1.billing.15m   for up to 15 minutes
//	orders-dead                    the dead-letter topic, as the subscription names it
//
// and the same for 3h and 24h where delays are longer; the last takes any delay
// beyond. Delay topics have Options.DelayPartitions, cleanup.policy=delete,
// retention.bytes=-1, retention.ms as above, and max.message.bytes with room for
// headers. A dead-letter topic has 3 partitions, or as many as the first topic by name
// if those are fewer, cleanup.policy=delete, and no end of retention. Topics for longer delays
// that exist already are read as well: an earlier policy may have left retries
// in them.
//
// # What is verified
//
// At every Open, before anything is created: that the topics exist, or can be created;
// that the user has the rights that they need, and those on the group; that delay
// topics have cleanup.policy=delete, retention.bytes=-1 and the least retention; that
// dead-letter topics have cleanup.policy=delete; and that both take messages as
// large as those that come in. All else fails it with a [brokers.RefusedError] that
// lists all that is wrong, with the commands that mend it. What is weaker than it could
// be is taken, and in brokers.Capabilities. With Options.Verify nothing is created.
// The number of partitions is never compared, and topics may grow while workers run.
//
// # How a retry waits
//
// The worker that owns a partition of a delay topic reads ahead in it and keeps
// the due time and the offset of each record, 16 bytes, in an index. When a
// record is due the handler runs off the delay topic; nothing is moved back.
//
// Records become due out of order. What is done above the committed offset is
// kept in the metadata of the commit, as far as 4,000 characters go, and, on
// delay partitions, once a second in a done record: a record in the partition
// itself that names the offsets that are done. The next owner reads the
// partition from the committed offset anyway, and the done records with it.
//
// # Who only reads
//
// For a subscription that only reads (brokers.Subscription.ReadOnly) nothing is created
// or verified but that its topics exist, and every Retry is refused. Give it a group of
// its own: it begins with the oldest record, and leaves offsets there and nothing else.
// It needs the right Read on topics and group. Without DescribeConfigs, what a batch
// may become is 16 MiB unless Options.MaxDecompressed says more.
//
// # Crash loops
//
// Kafka counts no deliveries for a group. The metadata of a commit names up to
// 64 records that are with handlers. A worker that stops in good order, or whose
// partitions are taken while it lives, leaves none. After one that did not, the
// next owner hands nothing out that is not named in a commit before, those that
// were named by the lost one apart, and in the end one by one.
// Delivery.Abandoned is how many owners were lost with a record.
//
// # Groups
//
// A source is one member of its group, for all topics and delay topics together.
// All workers of a group must subscribe to the same topics: a retry of a topic
// that a worker does not know is put back for another one, and every worker is told of
// it. A group begins with the oldest record of each partition for which it has no
// commit, or as Options.Start says.
//
// When a member joins or leaves, the whole group stops. Handlers that run may
// come to their end for a third of Options.RebalanceTimeout. A worker that is
// killed is noticed after Options.SessionTimeout.
//
// # Headers and IDs
//
// brokers.Header.Type is "" for text, "null" for a header with no value. Type
// "key" is no header at all: the key of the record is empty, which is not none.
// A record that names no redrive-id has the ID topic/partition/offset, which its
// retries keep. What a producer claims about attempts and due times is read in
// delay topics only, and with Options.Secret only where a worker has signed it. A
// due time counts for the longest delay, but at least 24 hours, from when the
// record was made.
package kafka
