// Package serve is what goes on while dead letters are handled: it collects them,
// reads the receipts of workers, works on jobs, and ends what retention is over for.
// The command redrive serve does all of it; others do a part.
//
// # What is promised
//
//   - What does not work stops nothing else: neither a broker that is down, nor a
//     topic that is missing. It is tried again until it works.
//   - When the context ends, letters under way are stored and acked, or given back,
//     and jobs go on elsewhere.
package serve
