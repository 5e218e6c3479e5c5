// Package store keeps dead letters, in an SQLite file or in Postgres, and what
// became of each.
//
// # What is promised
//
//   - A letter that Collect has taken is durable when it returns, and one letter
//     is one row.
//   - Each change of a letter has an audit row, who, when, why and by which
//     command, in the same transaction; and so have the counters.
//   - Nothing is deleted but by retention (Sweep) or by its key (Delete).
//   - The store sends nothing.
//
// What happens in a call happens as a whole or not at all. When a connection to
// Postgres breaks at the end of one, nobody knows which: a call that returned an
// error may be repeated, and does then what is left to do.
//
// Times are kept in milliseconds, and each call is told the time: the store has
// no clock.
package store
