// Package wire spells what redrive writes into the headers of a message, the
// same way on every broker.
//
//   - Every name starts with "redrive-"; every value is UTF-8 text. Times are
//     milliseconds since 1970 in UTC, durations are milliseconds, and both are
//     rounded so that nothing comes early.
//   - Writing replaces what was there and touches no other header: those keep
//     their order, duplicates and types. Unknown names with the prefix are
//     user data too.
//   - Reading never fails. Headers are hostile input: what cannot be read is
//     ignored, numbers and times are clamped to [Limits], texts are bounded
//     and free of control characters, and no more than [MaxEntries] headers
//     and [MaxBytes] bytes of them are looked at. A header [Packed] is opened
//     if it has at most 64 KiB, and what is in it then counts like the others.
//
// There are two vocabularies, and they share no name. The carried headers
// belong to the adapters: they are written by [AppendMeta],
// [AppendPacked] and [AppendIdentity] and taken off again by [SplitMeta] and [SplitIdentity], so
// that handlers never see them. The record of a dead letter (redrive-dlq-*,
// redrive-error-*) belongs to package dlq: adapters pass it on like user
// headers. So a dead letter that somebody moves back to its queue by hand
// starts over at attempt 0, and a worker that reads a dead-letter queue does
// not take the attempts of the dead for its own.
//
// It does not authenticate: whoever may write to a queue may write these
// headers. Progress (attempt, due time, history) is therefore to be read only
// where workers alone can write, or where the broker leaves no choice.
package wire
