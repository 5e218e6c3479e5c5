// Package budget paces the retries to one dependency: a retry needs a token to
// start, and failing ones get only a small share of the traffic.
//
// A [Budget] guarantees that
//
//   - while no retry succeeds, the retries of any span are at most Share of the
//     deliveries in it, plus Floor for each second, plus Capacity once. With
//     [Queue] and 100 deliveries a second, that is 1.11 runs for each message;
//   - retries that succeed give their tokens back, so what is healthy again is
//     served at the rate of its success;
//   - retries never start faster than the Ceiling: the highest rate of
//     deliveries lately, plus Floor. So a dependency that recovers sees
//     about twice the traffic that it had;
//   - a retry without a token is only told to wait, never for longer than it
//     allows and never for longer than 15 min; nothing is dropped or counted as
//     an attempt;
//   - memory is fixed (about 5 KiB), no call allocates, and a call costs the
//     same however many retries wait.
//
// Time and randomness are arguments: a Budget reads no clock, starts no
// goroutine and is safe for concurrent use. Pass the times that [time.Now]
// returns as they are. Their monotonic reading makes a Budget blind to clock
// changes; a clock that steps back without one costs no token.
//
// # How it works
//
// A delivery earns Share of a token and each second earns Floor. What is not
// spent is saved up to the Capacity: ten seconds of income, at the highest rate
// of deliveries lately, and at least one. A new Budget is full.
//
// The highest rate lately is that of ten seconds in a row, and falls by half
// every five minutes. It is at least ten times Floor, so that retries which
// succeed do not crawl on an idle topic: with [Queue] they may start at 11 a
// second, whatever the traffic. As many as the Ceiling gives in a quarter of a
// second, and at least ten, may start at once.
//
// # How long to wait
//
// Thousands of retries may wait, and each time that one asks costs its broker a
// round trip. So a retry waits for about the time that the line before it
// takes: the number of retries that wait, divided by the tokens a second that
// came lately, times a random factor from 1/2 to 1. It does not wait for longer
// than half the time for which there has been a line, unless the line could not
// be served by then at the Ceiling either; so an outage is followed by a
// recovery of about half its time, if the Ceiling allows. The shortest wait is
// 250 ms, or what the retry allows if that is less.
//
// In a simulation with 100 deliveries a second, of which a third fails for an
// hour, each retry is granted after 1.4 asks once they succeed, and all are done
// after 19 min. In the outage, when few are granted, there are about 1.5 asks
// for each delivery.
//
// # What is not promised
//
// Tokens are not handed out in any order: the one who asks first gets the next.
//
// A Budget belongs to one process and starts anew with it. The retries of a
// fleet are bounded by the sum of its budgets, so divide Floor by the number of
// workers (Share needs no division, since each worker counts its own
// deliveries), or share one with package redisbudget.
//
// A rise of traffic is seen within ten seconds, and until then the Ceiling is
// that of before. A burst of deliveries keeps it high for some minutes.
//
// # Sources
//
// Deliveries that earn a share, and a floor: RetryBudget of Finagle
// (percentCanRetry 0.2, minRetriesPerSec 10, over 10 s), which Linkerd's budgets
// (retryRatio, minRetriesPerSecond, ttl) follow. Tokens that come back with
// success: the retry quota of the AWS SDKs' standard mode. Ceiling, line and
// wait are of this package.
package budget
