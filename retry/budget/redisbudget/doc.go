// Package redisbudget paces the retries of a fleet to one dependency, with
// tokens that its workers share through Redis.
//
// A [Budget] guarantees that
//
//   - while no retry succeeds, the fleet's retries are at most Share of the
//     deliveries of all its workers, plus Floor for each second, plus twice the
//     Capacity, as package budget has it for one process;
//   - retries that succeed give their tokens back, and all workers together
//     stay below the highest rate of deliveries, plus Floor, but for what
//     they took in the 4 s before;
//   - a retry is only ever told to wait, never dropped, whatever Redis does;
//   - Withdraw never waits for longer than 50 ms, and does not wait at all while
//     tokens are at hand, while the fleet has none, or while Redis is away;
//   - a worker makes a call every 2 s while it is used, and more only while it
//     needs tokens: with 100 retries a second, about one for 180 of them; while
//     the fleet has too few tokens, about two a second.
//
// A *Budget is a [budget.Pacer]. Its methods take the time as an argument, and
// are safe for concurrent use. It has nothing to close: it makes calls only
// when it is used, at most one at a time, each in a goroutine that ends with it.
//
// # How it works
//
// Redis keeps the tokens, the limit and the line of those that wait, by the
// formulas of package budget and by its own clock. One call of a script, which
// is atomic, reports what a worker has delivered, refunded and deferred, and
// takes tokens ahead of need: as many as it asked for lately in 2.5 s, up to
// 512. What it does not need goes back with the next call. Tokens that are 4 s
// old are not used any more. Rates are exponential averages over ten seconds.
//
// When a call fails or takes longer than 40 ms, the worker goes on with the
// tokens at hand, and with a [budget.Budget] of its own: Share of its own
// deliveries, and Floor divided by Workers. Every retry takes from that as well
// while Redis answers, so that it is not a second supply when Redis fails. It
// tries again about once a second, and uses the pool again after three good
// answers in a row.
//
// If Redis forgot the tokens, it begins anew with one.
//
// # What to give it
//
// Redis 6 or later, or a cluster, with the right to run EVALSHA, EVAL and the
// commands of the script on redrive:budget:*: TIME, PEXPIRE and those on hashes.
// With the right to run INFO as well, it sees a server that evicts. Any client
// of go-redis will do. Give it a read timeout: the Budget stops waiting by
// itself, but the call goes on until the client gives up. The key, of some
// kilobytes, expires an hour after the last call.
//
// # What is not promised
//
// While Redis is away, a worker has its part only: a fleet in which few have
// retries does not use all of the Floor.
//
// While some workers are cut off and others are not, those that are have their
// part of the Floor besides what the pool gives: at most twice the Floor in all.
// A promoted replica, or a restart from an old snapshot, may hand out again what
// was taken since; at most the Capacity each time.
//
// Tokens go to the worker that asks first. One with many retries gets the most.
package redisbudget
