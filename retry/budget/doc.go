// Package budget paces the retries to one dependency, so that retries never
// add more than a fixed share to its load.
//
// A [Budget] guarantees that
//
//   - of the retries that it gave a time, any span of one Window holds at most
//     the limit: Share of the deliveries of a sliding window, plus Floor for
//     every second of it;
//   - a retry is only ever moved later, never dropped and never counted as an
//     attempt; one that finds room keeps its time to the nanosecond;
//   - reservations far ahead do not hold up a retry that is due soon: each
//     takes room from its own stretch of time only;
//   - retries that are moved are spread out, not lined up: a retry keeps its
//     jitter, and retries due at one instant are placed apart;
//   - memory is fixed (about 33 KiB), no call allocates, and the work of a call
//     does not grow with the number of reservations.
//
// Time is an argument everywhere: a Budget reads no clock, starts no goroutine
// and is safe for concurrent use. Pass the times that [time.Now] returns as
// they are. Their monotonic reading makes a Budget blind to clock changes.
//
// # How it works
//
// Time is cut into slots, six to a window. The limit is measured over the last
// six whole slots, or over the six slots up to now when that is more. A span of
// one window that begins inside a slot touches seven slots, so a slot takes a
// seventh of the limit: what keeps the promise for every span costs a seventh
// of the rate. Each slot has a count of its own, over 4096 slots in full detail
// and over another 4096 × 64 in groups of 64 slots, into which a retry is placed
// evenly. With a window of 10 s that is 1.9 hours and 5 days.
//
// The limit of a moment applies to the reservations of that moment. It follows
// a fall of traffic at once; a rise, at the next slot or as soon as it amounts
// to a quarter. A reservation once made is not taken back, so if traffic falls,
// the retries that were reserved before may be more than the share of what is
// left.
//
// # When demand exceeds the budget for hours
//
// Then every further retry waits longer: with twice as many retries as the
// budget allows, the delay added grows by one hour per hour. Nothing is lost,
// but a message may become too old before its turn. The caller sees that in the
// time that it is given, and decides. The stretching ends with the counts, 4096
// × 64 slots ahead. A retry that finds no room by then gets a time just after,
// and [Snapshot.Unpaced] counts it: the promise does not cover it.
//
// # What is not promised
//
// A Budget belongs to one process. The retries of a fleet are bounded by the
// sum of its budgets, so divide Floor by the number of workers (Share needs no
// division, since each worker counts its own deliveries). Nor does a Budget
// outlive its process: after a restart, retries reserved before it are not
// known, and are not counted.
package budget
