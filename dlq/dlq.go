// Package dlq holds the metadata of a dead letter: what a message that could not be
// handled takes with it to the dead-letter topic, and how to read it there; and
// the receipt, which says what became of one that was sent back.
//
// Guarantees:
//
//   - The message itself is untouched, but in a stub: ID, key, body and the producer's headers,
//     trace context included, are those that were published. The metadata rides in
//     headers of its own that begin with redrive-dlq- or redrive-error-. Those
//     of an earlier death, and forged ones of the framework, are replaced; no
//     other header is.
//   - [Entry.Encode] keeps the metadata within the broker's room for headers, and
//     sheds the least useful part first. What is missing is named in
//     [Entry.Truncated]. What a redrive needs is never shed.
//   - A stub stands for a message that the broker takes with no metadata at all. It
//     takes less than 4 KiB, whatever the message: see [Original].
//   - [Decode] and [DecodeReceipt] read what anybody may have written: they never
//     panic, and every text they return is valid UTF-8, bounded and free of
//     control characters.
//   - [Entry.DescribeError] stores no control characters and no secrets that
//     [Redact], or a function of your own, recognises.
//     This package puts no part of the body into the metadata.
//   - Equal faults have equal fingerprints, whichever numbers, ids and
//     addresses are in the text, and in every process; see [Entry].
//
// Not promised: that a dead letter is genuine. Whoever may write to the
// dead-letter topic may write any metadata, so its origin topic is a hint that a
// redrive checks, not an order. Nor that redaction finds every secret, that no
// two faults share a fingerprint, or that no fault has two.
package dlq

// Discard is a value of consumer.Config.DeadLetter that DROPS dead letters: a
// message whose attempts are exhausted, or that is poison, is acked and gone for
// good. Nobody can read it or send it back. Use it only for messages whose loss
// is harmless. It is not for a topic of dead letters: one that its handler fails
// for good is never dropped, but comes back in minutes, again and again, until
// another topic is named for it.
const Discard = "(discard)"
