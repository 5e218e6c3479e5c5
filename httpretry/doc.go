// Package httpretry is an [http.RoundTripper] for the calls that handlers make.
// It smooths over short failures and leaves long ones to the queue.
//
// A [Transport] guarantees that
//
//   - a request is sent at least once, unless the breaker of its dependency
//     refuses it, and at most twice;
//   - it is sent again only if that is safe by its method (RFC 9110, section
//     9.2.2) or it carries an Idempotency-Key, if its body can be sent again,
//     and if the failure is one that passes;
//   - a second request takes a token from the budget of the dependency, which it
//     gives back if it succeeds, and waits at least as long as the server asked
//     for with Retry-After. It is not made if there is no token, if the wait
//     takes longer than MaxWait or than the context has left, or while the
//     breaker is not closed;
//   - a request that the breaker refuses is not sent: the error is an
//     [*OpenError], which defers the message of a handler, uncounted;
//   - POST, PATCH and the like carry the idempotency key of the message, which
//     is the same in every run;
//   - what the caller gets is what a server or the network answered: a response
//     with a failing status is a response. [Check] makes an error of it;
//   - the response that a retry replaces is closed, and of no failing response
//     it reads more than 64 KiB.
//
// # Breaker and budget
//
// Each dependency has one of each. Those of a [Policy] without any are the
// Transport's own. A budget may be shared with the [consumer.Guard] of the topics
// whose handlers make the calls. For these calls the consumer has counted the
// delivery already, and its limit decides how many run at once. So they count as
// no further delivery, and the breaker neither stops them nor hears of them. It
// remains for all other calls.
//
// The other calls report to the breaker how they went: those of one message as
// outcomes of that message, and those outside of handlers each for itself. A
// throttled call of a handler says nothing to the breaker, since its consumer paces
// the handlers by it. A Retry-After is obeyed for the message alone: it may be meant
// for one customer, and the breaker goes on calling.
//
// A call is known to be a handler's by its context: make requests with
// [http.NewRequestWithContext] and the handler's context. Without it there is no
// key either.
//
// # What is not promised
//
// That a repeated request is harmless is the word of RFC 9110 and of whoever
// sets an Idempotency-Key. For a dependency that ignores those, switch retries
// off or let Key return nothing.
//
// A response counts as soon as its headers are there. A body that is cut later
// is an error of the caller's read, and is not reported to the breaker.
//
// Redirects are not followed here but by [http.Client], and each is a request of
// its own. One that leads to another host gets neither key nor trace from here;
// headers that the caller set himself are the business of [http.Client]. Nor is a request in the sense of this package what [http.Transport]
// sends again by itself because an idle connection was closed under it.
//
// CONNECT, and requests with an Upgrade header, are passed on untouched.
package httpretry
