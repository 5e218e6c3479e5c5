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
//   - retries never start faster than the highest rate of deliveries lately, plus
//     Floor. So a dependency that recovers sees at most twice the traffic that
//     it had, and Floor;
//   - if they begin to fail again soon after they rose, they rise to a third only
//     and slowly from there, so a dependency without room for twice its traffic
//     is not kept down by retries;
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
// spent is saved up to the Capacity: five seconds of income, at the highest rate
// of deliveries lately, and at least one. A new Budget is full.
//
// The highest rate lately is that of ten seconds in a row, and falls by half
// every five minutes. It is at least ten times Floor, so that retries which
// succeed do not crawl on an idle topic: with [Queue] they may start at 11 a
// second, whatever the traffic. As many as start in a quarter of a second, and at
// least five, may start at once.
//
// While most retries fail, they may start no faster than tokens are earned, and
// what is saved stays saved. They are taken to fail when fewer than half of the
// latest dozen or so succeed, and fewer than half as many in a second as lately;
// to succeed, when 70 % do. Where a success is a minute's work, this takes a
// minute. If they fail within 20 s of a rise, the limit is divided by three, and
// from then on grows by 1 % a second.
//
// # How long to wait
//
// Thousands of retries may wait, and each time that one asks costs its broker a
// round trip. So a retry waits for about the time that the line before it
// takes: the number of retries that wait, divided by the tokens a second that
// came lately, times a random factor from 1/2 to 1. It does not wait for longer
// than half the time for which retries have failed, unless the line could not be
// served by then at the highest rate either; so an outage is followed by a
// recovery of about half its time, if the highest rate allows. The shortest wait is
// 250 ms, or what the retry allows if that is less.
//
// In a simulation with 100 deliveries a second, of which a third fails for an
// hour, each retry is granted after 1.4 asks once they succeed, and all are done
// after 20 min. In the outage, when few are granted, there are about 1.5 asks
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
// A rise of traffic is seen within ten seconds, and until then the highest rate
// is that of before. A burst of deliveries keeps it high for some minutes.
//
// A dependency that bears less than its traffic and the failing retries, 1.11
// times its traffic with [Queue], is kept down by the traffic itself. That is
// what a limit on runs at once (retry/flow) is for.
//
// # Sources
//
// Deliveries that earn a share, and a floor: RetryBudget of Finagle
// (percentCanRetry 0.2, minRetriesPerSec 10, over 10 s), which Linkerd's budgets
// (retryRatio, minRetriesPerSecond, ttl) follow. Tokens that come back with
// success: the retry quota of the AWS SDKs' standard mode. The limit that falls
// by a factor and grows slowly is TCP's (RFC 5681), on rates. Line and wait are
// of this package.
package budget
