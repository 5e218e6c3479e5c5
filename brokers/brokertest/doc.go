// Package brokertest is the conformance suite for implementations of
// [brokers.Broker]. It holds every promise of package brokers as a clause: a
// name, the sentence of the rule, and a check. A failure prints the rule, what
// was observed instead, and the last calls and deliveries before, so the suite is
// also the manual for whoever writes an adapter:
//
//	--- FAIL: TestConformance/retry-durable
//	    rule:     When Settle has returned, a Retry must outlive the source, with its delay and its Meta.
//	    observed: message "retried" (topic "orders-7", ID "4F...") came 2s before the delay of its retry was over ...
//	    after:    ...
//	              source.Settle(retry) of message "retried" (topic "orders-7", ID "4F...")
//	              source.Close of ["orders-7"]
//	              broker.Open of ["orders-7"]
//	              source.Receive: message "retried" (topic "orders-7", ID "4F...")
//
// # Use
//
// Write one test in the package of the adapter that calls [Run] with a
// [Harness], as in the examples. Run it against an in-process fake, where time
// is virtual and faults can be scripted, and against the real broker:
//
//	go test -race -run TestConformance ./brokers/yourbroker
//	go test -race -run 'TestConformance/retry' -v ./brokers/yourbroker
//
// Clauses come in the order in which they rest on each other. Begin with the
// first that fails: those that would only repeat it are skipped and name it.
// Read the other skips, too. A clause is skipped, with the reason, where
// [brokers.Capabilities] or the harness say that it does not apply, so a wrong
// capability hides as a skip.
//
// # What a clause tolerates
//
//   - A delivery whose Meta.DueAt lies ahead counts as not delivered until
//     then, as in the pipeline: it is held while its lease lasts, and else
//     retried with the rest of the delay.
//   - Errors that are not final are tried again, up to three times. Errors of
//     Receive are waited out, except ErrClosed and ErrMisconfigured.
//   - Outside the process, that is without [Harness].Virtual, duplicates are
//     legal. A message that was acked may come again twice, and a failure that
//     a duplicate would explain counts when it happens in three rounds on
//     three fresh brokers. A message that does not come is a failure at once.
//   - A late Retry may leave a copy of its message.
//
// # What it does not check
//
// Every wait is bounded: by 35 units (30 and ten times the slack) for what must
// happen, by a few units for what must not. Where leases, MaxLease or delays
// are longer, their clauses are skipped outside of virtual time. The suite
// cannot kill a process, cut a connection or write what an adapter cannot read;
// the hooks of [Harness] do that for it. Refusals of Open, such as a retention that is
// too short, need tests of the adapter's own, because only it knows the
// settings of its broker.
package brokertest
