// Package breaker keeps calls from a dependency that is down or overloaded, and
// lets them come back slowly once it serves again.
//
// A [Breaker] is a [flow.Limiter] for calls that do not wait. It decides how many
// calls may go at once, and refuses the others. It guarantees that
//
//   - while it is closed it refuses no call. It stays closed while at least one in
//     ten of the last different messages succeeds, and fewer than one in ten are
//     throttled. It looks at the last 64 messages, at those of the last 2 minutes,
//     and at 3 at least;
//   - a message that fails again and again counts as one, with its latest outcome;
//   - in an outage it lets single calls through: one a second, or a twentieth of
//     the usual calls if that is more. When nothing has succeeded for more than 10
//     minutes, they are farther apart, up to 30 s. Their distance is random by
//     20 %, so that the processes of a fleet do not call together;
//   - the first success begins a ramp, at an eighth of the usual calls. The rate
//     stays below 1.5 times the usual for 5 s, and doubles at most once in 1.25 s.
//     If the dependency breaks above its usual load, the next ramp takes twice as
//     long. The breaker closes when it has refused no call for 10 s;
//   - a dependency that throttles is called about as often as it serves. It is not
//     paused, and the breaker obeys no Retry-After: that may be meant for one
//     customer;
//   - the end of a call that began before the limit last fell does not lower it
//     again;
//   - a call that never ends delays the others for 30 s at most;
//   - Start and Done do not block and allocate nothing. A Breaker has about 2 KiB.
//
// A Breaker reads no clock and starts no goroutine. Pass the times that [time.Now]
// returns as they are: their monotonic reading hides changes of the clock.
//
// # What is not promised
//
// It lets failures pass that are fewer than nine in ten; a retry budget limits
// their cost. If nearly all messages fail for a reason of their own, they look like
// an outage. Each process finds out by itself. A Breaker does not interrupt calls:
// give each a timeout. Two messages whose hashes are equal count as one.
package breaker
