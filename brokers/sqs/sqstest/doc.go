// Package sqstest is Amazon SQS in the process of a test.
//
// It guarantees what AWS documents, in its strict reading: visibility timeouts
// and their 12 hours in all, at most 120,000 messages in flight, the lock of a
// FIFO group, deduplication windows, retention, delays, dead-letter queues,
// limits and character sets, failures of single entries of a batch.
// No message is lost, or shown before its time. It speaks the AWS JSON 1.0
// protocol, so the AWS SDK talks to it as to AWS:
//
//	server := sqstest.New(sqstest.Options{})
//	defer server.Close()
//	client := sqs.NewFromConfig(server.Config())
//
// New has no socket and no goroutine of its own, which makes it usable in a
// bubble of testing/synctest, where hours of visibility pass at once. NewServer
// listens on the loopback interface. Outside a bubble, Advance moves the clock.
// Inject makes calls fail; Calls, Count, Queue and Messages tell what happened.
//
// # Where AWS leaves a choice
//
// AWS may do this or that; here it is always the following.
//
//   - A standard queue delivers once, in the order in which messages became
//     visible, and a receive returns as many messages as there are.
//   - A poll whose client goes away goes on until its time is over. What it
//     receives nobody gets, and it stays in flight for its whole timeout.
//   - On a standard queue, a deletion with the receipt handle of an earlier
//     receive succeeds and deletes nothing; one with the last handle deletes,
//     also when its visibility timeout is over.
//   - A visibility timeout that is over cannot be changed any more
//     (MessageNotInflight). AWS has been seen to allow it.
//   - A FIFO queue hands out a group up to its first message that is not
//     visible, so the first message of three in flight can come back alone.
//   - A message is moved to the dead-letter queue by the receive that would be
//     one too many, and is passed over by it. While there is no such queue, it
//     stays and is received.
//   - A repeated receive attempt ID works if all messages of the first receive
//     are still in flight and none was changed; otherwise it is a new attempt.
//   - At the limit of messages in flight a short poll of a standard queue fails
//     with OverLimit; long polls and FIFO queues return nothing.
//
// # What differs from AWS
//
//   - Everything takes effect at once, and counts are exact: settings, purges,
//     deletions of queues. Clocks have no skew, and nothing is throttled unless
//     a Fault says so.
//   - Requests are not authenticated, signatures and policies are not checked,
//     and nothing is encrypted; the attributes about these are only stored.
//   - There is one account and one region. Queue URLs count by their path.
//   - Permissions, tags and move tasks are not there (InvalidAction), nor lists
//     in pages, nor the older query protocol.
//   - Fair queues keep the MessageGroupId and are not fairer for it.
//   - FIFO queues look for groups among all their messages, not among the first
//     120,000, and have no limit of throughput.
package sqstest
