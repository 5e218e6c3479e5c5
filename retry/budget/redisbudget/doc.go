// Package redisbudget paces the retries of a fleet to one dependency, with a
// budget that its workers share through Redis.
//
// A [Budget] guarantees that
//
//   - of the retries that the fleet gave a time, any span of one Window holds at
//     most the limit: Share of the deliveries of all workers, plus Floor;
//   - that holds while Redis is slow, down or lost its data, and while it is
//     back for some workers only: nothing is lent twice;
//   - a retry is only ever moved later, never dropped, whatever Redis does;
//   - Reserve never waits for longer than 50 ms, and does not wait at all while
//     leases are at hand;
//   - at load, from 10 retries a second and worker on with a Window of 10 s, it
//     takes no more than one round trip for 100 retries.
//
// A *Budget is a consumer.Budget. Its methods take the time as an argument, and
// are safe for concurrent use. It has nothing to close: it makes calls only
// when it is used, at most one at a time, each in a goroutine that ends with it.
//
// # How it works
//
// Time is cut into slots, six to a Window, by the clock of Redis; a slot takes a
// seventh of the limit, as in package budget. Half of the limit is a pool in
// Redis. The other half belongs to the workers, slot by slot: each has half of
// the Share of its own deliveries, and its seat's part of half of the Floor.
//
// A worker leases from the pool ahead of need: one call of a script reports its
// deliveries, and brings up to 512 leases in the slots in which it has lately
// needed them, enough for 2 Windows or more. To spare a call, a retry may be
// moved without need by one slot, or by an eighth of its delay. Leases that no
// retry takes expire with their slots, and are not given back.
//
// When a call fails or takes longer than 40 ms, the worker goes on with the
// leases that it has and its own half, which nobody else can use. There is
// nothing to divide anew, so nothing can be spent twice. It tries again about
// once a second, and uses the pool again after three good answers in a row.
//
// If Redis forgot the leases, the pool stays closed for 14 slots (23 s with the
// usual Window). In that time the workers tell it again what they hold, since
// each makes a call every 10 slots at least while it is used. A new pool begins
// like this too.
//
// The pool follows a change of traffic within 3 Windows: all workers report
// within 2, and it counts a whole one that they have reported. A worker's own
// half follows as in package budget.
//
// # What to give it
//
// Redis 6 or later, or a cluster, with the right to run EVALSHA, EVAL and the
// commands of the script on redrive:budget:*: TIME, DEL, PEXPIRE and those on
// hashes. With the right to run INFO as well, it sees a server that evicts. Any
// client of go-redis will do. Give it a read timeout: the Budget stops waiting
// by itself, but the call goes on until the client gives up. The key, of some
// kilobytes, expires 16,420 slots (7.6 h) after the last call.
//
// # What is not promised
//
// A fleet of few workers, or one in which few have retries, does not use all of
// its budget: what belongs to the others stays unused, up to half.
//
// Time is that of Redis to within a round trip, and so are the spans. A clock
// of Redis that is set, and retries reserved before a worker's first contact or
// by workers beyond Config.Workers, may bring more retries than the limit for
// once. So may a replica that is promoted, in the moments until a worker sees
// that it is behind, and a worker that was not used for 14 slots after Redis
// forgot what it holds. What a worker reserved and did not live to run stays
// taken; what was reserved before it restarted is counted in the pool only.
//
// A retry that is due more than 16,384 slots (7.6 h) ahead keeps its time and is
// not paced. One that finds no room within them is spread over as many beyond.
// budget.Snapshot counts both as Unpaced.
package redisbudget
