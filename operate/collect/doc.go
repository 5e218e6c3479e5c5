// Package collect takes dead letters out of a broker and into a store.
//
// # What is promised
//
//   - A letter is in the broker or in the store, never in neither: it is acked
//     when the store has it durably, and not before.
//   - While the store fails nothing is acked, nothing is received, and nothing
//     is sent anywhere: the letters stay where they are, for days.
//   - At a limit, of the disk or of the number of letters, the rest stays in the
//     broker.
//   - Whatever is delivered becomes a letter in the store, also what nobody can
//     read. Of a message that the adapter could read in part it is that part.
//   - One that the store refuses for ever holds up no other. It stays in the
//     broker.
//
// Not promised is that each letter is received once. A crash between the commit
// and the ack, or a lease that was lost, brings one again: the store knows it
// again where that is possible, see store.Store.Collect, and has it twice
// elsewhere, which is the case for most that other systems wrote.
//
// RabbitMQ before 4.3 counts each release of a letter against the delivery limit
// of its queue, if that is a quorum queue, and drops the letter in the end. So an
// outage of the store costs one release, and each try after it is made with the
// store alone. A letter that the store refuses is given back only when its lease
// ends, which is twice an hour there.
package collect
