// Package budget paces the retries to one dependency: a retry needs a token to
// start, and failing ones get only a small share of the traffic.
//
// A [Budget] guarantees that
//
//   - while no retry succeeds, the retries of any span are at most Share of the
//     deliveries in it, plus Floor for each second, plus Capacity once. With
//     [Queue] and 100 deliveries a second, that is 1.11 runs for each message;
//   - a retry that succeeds gives its token back, so retries that succeed are not
//     limited by tokens;
//   - retries never start faster than the highest rate of deliveries lately, plus
//     Floor. So a dependency that recovers sees at most twice the traffic that
//     it had, and Floor;
//   - if they begin to fail again within 20 s of a rise, their limit is divided by
//     three, and grows by 1 % a second from there;
//   - a retry without a token is only told to wait, never for longer than it
//     allows and never for longer than 15 min; no retry is dropped or counted as
//     an attempt;
//   - memory is fixed (about 5 KiB), no call allocates, and a call costs the
//     same however many retries wait.
//
// A Budget reads no clock and starts no goroutine. Pass the times that [time.Now]
// returns as they are: their monotonic reading hides changes of the clock. A clock
// that steps back without one costs no token.
//
// # How it works
//
// A delivery earns Share of a token, and each second earns Floor. The budget saves
// up to Capacity: five seconds of income at the highest rate of deliveries lately,
// and at least one token. A new Budget is full. The highest rate lately is that of
// ten seconds in a row. It falls by half every five minutes, and is at least ten
// times Floor. As many retries as start in a quarter of a second, and at least
// five, may start at once.
//
// Retries fail when fewer than half of the latest dozen or so succeed, and fewer
// than half as many in a second as lately. They succeed again when 70 % do. While
// they fail, they start no faster than tokens are earned, and saved tokens stay.
//
// A retry waits for about the time that the line before it takes at the tokens a
// second that came lately, times a random factor from 1/2 to 1. It waits for no
// longer than half the time for which retries have failed, unless the line takes
// longer even at the highest rate. The shortest wait is 250 ms, or the longest that
// the retry allows if that is less. In a simulation with 100 deliveries a second, of
// which a third fails for an hour, a retry asks 1.4 times until it is granted.
//
// # What is not promised
//
// Tokens have no order: the retry that asks first gets the next. A Budget belongs
// to one process and starts anew with it. A fleet may spend the sum of its budgets,
// so divide Floor by the number of workers (each counts its own deliveries), or
// share one with package redisbudget. A burst of deliveries keeps the highest rate
// high for some minutes. A dependency that bears less than its traffic and the
// failing retries needs a limit of concurrency besides, as of package flow.
//
// # Sources
//
// Share and floor: RetryBudget of Finagle, which Linkerd follows. Tokens that come
// back: the retry quota of the AWS SDKs. The limit that falls by a factor and grows
// slowly: TCP (RFC 5681), on rates.
package budget
