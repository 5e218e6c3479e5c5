// Package job sends dead letters from a store back to whoever gave them up: a job
// is a durable row that says which ones, and a [Runner] works on it.
//
// # What is promised
//
//   - A letter counts as sent when the broker has confirmed it. Until then it is
//     sent again, with the same ID and the same token: whatever happens, none is
//     lost, and after a crash those of one batch may be there twice.
//   - It goes back to the consumer group or queue that gave it up and to nobody
//     else, and only where [Targets] names it.
//   - Above 20 letters, waves of 1, 5, 25 and 100 go first. One passes when 95 %
//     of it are confirmed by receipts of workers; what fails or says nothing
//     pauses the job. The rest goes at the rate, and the same share of any
//     stretch of it pauses the job as well.
//   - A job takes no letters that were collected after it was planned, and none
//     that were sent back three times already.
//   - One process works on a job at a time. Where it stops, or is killed, another
//     goes on.
//   - A store or a broker that is down delays a job and ends none.
//
// Not promised: that a letter is handled once. Handlers see the same message ID
// and idempotency key each time.
package job
