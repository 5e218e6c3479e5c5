// Package store keeps dead letters, in an SQLite file or in Postgres, and what
// became of each.
//
// # What is promised
//
//   - A letter that [Store.Collect] has taken is durable when it returns, and one
//     letter is one row, however often it is collected.
//   - What a letter holds comes out as it went in, to the byte: the message as it
//     was received, and the entry that it was taken for then.
//   - Each change of a letter has an audit row, who, when, why and by which
//     command, and the counters change, in the same transaction.
//   - Nothing is deleted but by retention, [Store.Sweep], or by its key,
//     [Store.Delete].
//   - A job belongs to one process at a time, a send has a token of its own, and
//     only the token of a letter's last send is believed.
//   - The store sends nothing.
//
// A call does all of what it is for or nothing, unless it says that it works in
// steps. When the connection to Postgres breaks at its end, nobody knows which:
// after an error a call may be repeated, and does then what is left to do. That
// holds for letters that merge; see Collect.
//
// # How it is used
//
// [Store.Collect] takes letters in. [Store.Letters], [Store.Clusters],
// [Store.Breakdown] and [Store.Stats] look at them, by a [Filter].
// [Store.CreateJob] makes a job of a filter; whoever has its [Store.Lease] takes
// letters by [Store.Queue] and [Store.Claim], sends them, and notes what became
// of it with [Store.Sent] and [Store.Receipts].
//
// Times are kept in milliseconds, and each call is told the time: the store has
// no clock, and none that jumps harms it. All its processes write one after the
// other, and nobody who reads waits for them.
//
// # What is not promised
//
// That letters are encrypted, or that a body is understood: what it holds is in
// the file, which only its owner may read, or in the database. That a page is
// quick if its filter selects few letters: it walks the index by time, at some
// million letters a second. That there is room: watch the disk.
package store
