// Package wire carries the metadata of redrive in the headers of a message, the
// same way on every broker. Adapters use it; applications have no need to.
//
//   - What [Encode] writes, [Decode] reads: message identity and [brokers.Meta]
//     come back as they were, times to the millisecond. Due times and delays are
//     rounded up, so that nothing comes early.
//   - The user's headers keep their order, duplicates and types, and so do
//     unknown names that begin with "redrive-". Handlers see no others.
//   - Reading never fails, whatever the headers hold. What cannot be read is
//     absent, numbers and times are clamped to [Limits], texts are bounded and
//     free of control characters, and no more than 64 headers and 24 KiB of them
//     are looked at. A header [Packed] is opened if it has at most 64 KiB, and
//     what is in it then counts like the others.
//   - A dead letter's record (redrive-dlq-*, redrive-error-*) is package dlq's,
//     and passed on like the user's headers. So a dead letter that somebody moves
//     back to its queue by hand starts over at attempt 0.
//
// It does not authenticate: whoever may write to a queue may write these headers.
// So progress (attempt, due time, history, death) is read only where [Limits] say
// Trusted, for queues to which workers alone write.
//
// docs/reference/headers.md has the grammar, for decoders in other languages.
package wire
