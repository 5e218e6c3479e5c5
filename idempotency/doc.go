// Package idempotency keeps a message that was handled once from being handled
// again, as far as that can be done from outside the handler.
//
// [Once] makes a middleware, for the Middleware of [consumer.Config], that
// guarantees, with a [Store] that keeps its contract:
//
//   - success is recorded after the handler has returned nil, never before: a
//     handler that fails, panics or is cut off leaves no record, and the message
//     is handled again;
//   - a message whose success is recorded is acked without running the handler,
//     for as long as Options.TTL says;
//   - two runs with the same key do not overlap: the second waits for a short
//     time and then comes back later, uncounted;
//   - a run that can no longer be sure to be the only one has its context ended,
//     with [ErrClaimLost] as the cause, and what it returns does not count,
//     unless it succeeded and nobody else has taken over;
//   - a key that comes again with another payload is an error, not a duplicate;
//   - without an answer from the store, no handler runs.
//
// [OnceBatch] does the same for a [consumer.BatchHandler], message by message.
//
// # The key
//
// [Key] makes it from the message, the same in every run: after retries,
// crashes, and a way back from the dead letters, if the message has an ID.
//
// # What is not promised
//
// Exactly once. The record comes after the effect, so a crash between the two
// runs the handler again, and so does a failed run that had its effect: an
// error releases the key, even an ambiguous one. Only an effect that is stored
// in one transaction with its key, or that is harmless to repeat, is safe from
// both.
//
// A store that forgets is as good as none: a Redis that evicts keys or loses
// them in a failover, a [Memory] whose process ends or whose bound is reached.
// Whoever may publish to a topic may choose keys, and can so keep a message of
// another from being handled, or make it a dead letter. Options.Namespace keeps
// producers apart.
package idempotency
