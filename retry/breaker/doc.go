// Package breaker stops work on a dependency that is down before it starts, and
// finds out with few messages when it is up again.
//
// A [Breaker] guarantees that
//
//   - while it is open, it grants nothing: no fetch and no run;
//   - while it is half-open, it grants one permit for each of a few runs. A
//     permit is a lease: if it is never reported, it expires and another takes
//     its place, so that a lost probe cannot keep the breaker half-open;
//   - a report under a permit of an earlier state changes nothing, so that runs
//     which began before a trip cannot prolong it;
//   - it opens for a random time, so that the workers of a fleet which tripped
//     together do not probe together;
//   - it opens for longer, up to a limit, each time a probe fails or it trips
//     soon after closing;
//   - no call blocks, takes longer with more traffic, or allocates, but for the
//     text of the reason when it trips.
//
// Time and chance are arguments: a Breaker reads no clock, draws no random
// numbers, starts no goroutine and calls nobody back. It moves from open to
// half-open when it is asked after the time has come. Pass the times that
// [time.Now] returns as they are: their monotonic reading makes it blind to
// clock changes.
//
// # States
//
//	         ratio of failures, Trip
//	closed ---------------------------> open <--+
//	  ^                                  | time |
//	  | enough probes succeed            v      | a probe fails, Trip
//	  +------------------------------ half-open +
//
// Isolate leads from any state to isolated, where only Restore leads out, to
// half-open.
//
// # What is not promised
//
// A Breaker belongs to one process: each worker finds out by itself. It does
// not interrupt runs, and what was fetched before it opened is in the caller's
// hands: ask [Breaker.Start] before each run, and hold or release what may not
// start.
package breaker
