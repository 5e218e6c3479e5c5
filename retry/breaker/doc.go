// Package breaker stops work on a dependency that is down before it starts, and
// finds out with few messages when it is up again.
//
// A [Breaker] guarantees that
//
//   - it opens only when practically nothing succeeds: 90 % of the last 50
//     messages failed last, or 20 runs in a row did. A success in between speaks
//     for the dependency;
//   - a message that fails again and again is evidence about that message: it
//     counts as one, and its latest outcome replaces the earlier ones;
//   - it counts messages, not time, so that failures which take minutes and
//     topics with one message an hour are seen, too;
//   - while it is open, it grants no run;
//   - while it is half-open, it grants one permit for each of a few runs. A
//     permit is a lease: if it is never reported, it expires and another takes
//     its place, so that a lost probe cannot keep the breaker half-open;
//   - a report under a permit of an earlier state changes nothing, so that runs
//     which began before it opened cannot prolong it;
//   - it opens for a random time, so that the workers of a fleet which opened
//     together do not probe together;
//   - it opens for longer, up to a limit, each time a probe fails or it opens
//     soon after closing;
//   - when it closes, it has forgotten every failure: nothing but the success
//     that closed it is known;
//   - no call blocks or takes longer with more traffic, and while only
//     successes are reported, Start and Done take no lock. Nothing is allocated
//     but the window, at the first report that needs it, and the text of the
//     reason when it opens.
//
// Time and chance are arguments: a Breaker reads no clock, draws no random
// numbers, starts no goroutine and calls nobody back. It moves from open to
// half-open when it is asked after the time has come. Pass the times that
// [time.Now] returns as they are: their monotonic reading makes it blind to
// clock changes.
//
// # States
//
//	      ratio or streak of failures, Trip
//	closed ---------------------------> open <--+
//	  ^                                  | time |
//	  | enough probes succeed            v      | a probe fails, Trip
//	  +------------------------------ half-open +
//
// Isolate leads from any state to isolated, where only Restore leads out, to
// half-open.
//
// # When it opens
//
// A failed run opens a closed breaker if
//
//   - at least Config.Ratio of the last Config.Window different messages failed
//     last, or all of at least Config.MinRuns if no more are known; or if
//   - Config.Streak runs have failed since the last success, [Severe] ones
//     counted twice, and they were of at least 10 different messages, or no
//     success is known at all.
//
// So four messages that always fail never open it beside others that succeed,
// and on a topic of their own they do. A dependency that hangs is seen after
// one round of timeouts in ten slots.
//
// # What is not promised
//
// Where nearly all messages of a dependency fail for a reason of their own, it
// opens as if the dependency were down: it cannot tell these apart. What fails
// less often than Config.Ratio, such as every second run, is let through; a
// retry budget limits what that costs.
//
// A Breaker belongs to one process: each worker finds out by itself. It does
// not interrupt runs, and what was received before it opened is in the caller's
// hands: ask [Breaker.Start] before each run, and hold or release what may not
// start. Two messages whose hashes are equal are taken for one.
package breaker
