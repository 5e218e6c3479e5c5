// Package storm computes what retries do to a dependency: Simulate by playing
// an outage through, PlanOf by adding up the delays of one policy.
//
// It uses the library's own parts, not models of them: retry.Policy.Decide
// decides each failure, a budget.Budget has the retries wait, and a
// breaker.Breaker refuses the calls. Only the callers, the network and the
// dependency are modelled:
//
//   - Messages arrive evenly or at random, and some of them at one instant.
//   - All callers act as one process: one budget, one breaker.
//   - The dependency refuses every call during the outage at once. Otherwise it
//     begins calls in the order that they came in, as many per second as its
//     capacity, and goes on with a call that its caller has given up. That is
//     what keeps an overloaded dependency overloaded.
//   - A call that is refused or given up is a transient failure.
//
// Time is virtual, and chance comes from seeds: the same input gives the same
// output. A bin is a stretch of time in which calls are counted; a peak is the
// fullest bin, in calls per second. A narrow bin reads chance as peaks.
package storm
