// Package service makes HTTP calls for programs in any language until they succeed.
//
// A [Store] keeps the tasks, in an SQLite file or in Postgres; an [API] takes them;
// a [Service] makes the calls; and a [Schedule] says which are due. The command
// redrive service is made of it.
//
// # What is promised
//
//   - A task is durable before it is answered for, and what became of a call before
//     anything else is done with its task. The store is the truth, and the schedule
//     can be made again from it: losing that loses no task.
//   - A task is called until a call succeeds, or until its policy, or whoever
//     cancels it, ends it. Every call has the task's idempotency key.
//   - No call begins after the total budget of the task, or goes on beyond it.
//   - A target gets no more calls of a task than its policy says. An attempt of a
//     worker that died counts, as nobody knows its end.
//   - One worker has a task at a time, for the visibility timeout of its policy. One
//     that lost it changes nothing.
//   - A target that is down holds up no other, nor does one that hangs: it has a part of
//     the calls of its tenant at most. What waits for it is not counted against it.
//   - A tenant holds up no other, whatever its targets do: it alone takes at most three
//     quarters of the workers, and of what is claimed. What is known of a target, such as
//     that it is down, is known of it by tenant, so that one whose path or credentials do
//     not work leaves the others on the same host alone.
//   - Only what a [Guard] allows is called, whatever a name resolves to.
//   - A task that is exhausted stays until its dead letter is confirmed, and can come
//     back as long as it is kept.
//
// # What is not
//
// A call may be made twice, or of a task that has succeeded: its answer may have got
// lost, or its worker. Targets must know the key again. A worker that dies costs each
// task that it had claimed an attempt, also those that it had not called yet, of which
// there are as many as come due in a quarter of a second, and no more than eight for
// each call that it may make; so does a claim whose commit was not confirmed. With a
// single attempt in its policy such a task is EXHAUSTED without a call: give at least
// two. Tasks have no order. A dead letter may be there twice.
//
// Many tenants in trouble at the same time, each with many targets that hang, leave
// little to others: three of them a tenth of the workers, twenty a single one. Tenants
// that call the same host limit what it gets each by itself, not together.
package service
