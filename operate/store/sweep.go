package store

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Retention says for how long what is over is kept, from its last change on. 0
// means for ever. Letters in all other states are kept until somebody deals with
// them.
type Retention struct {
	Confirmed, Returned, Discarded time.Duration

	// Audit is for how long it is known who did what, and for how long jobs are
	// kept that have ended.
	Audit time.Duration

	// Of is what holds instead for the letters of a topic.
	Of map[Topic]Retention
}

// Topic is one of a broker, as letters of it say.
type Topic struct{ Broker, Name string }

// Swept counts what was deleted.
type Swept struct{ Letters, Clusters, Topics, Jobs, Acts int64 }

// Sweep deletes what retention is over for, with its content and history, and
// clusters and topics that have no letters left. It works in steps, so that
// others get a turn; after an error those that were done stay done.
func (s *Store) Sweep(ctx context.Context, now time.Time, r Retention) (swept Swept, err error) {
	const ofTopic = "(select id from topics where broker = ? and topic = ?)"
	others, args := "", []any{}
	for topic, own := range r.Of {
		of := []any{short(topic.Broker, maxText), short(topic.Name, maxText)}
		if err := s.sweepLetters(ctx, now, own, &swept, " and topic in "+ofTopic, of); err != nil {
			return swept, err
		}
		others, args = others+" and topic not in "+ofTopic, append(args, of...)
	}
	if err := s.sweepLetters(ctx, now, r, &swept, others, args); err != nil {
		return swept, err
	}
	if r.Audit > 0 {
		const ended = `select id from jobs where ended_at > 0 and ended_at < ? and not exists (select 1 from letters l where l.wave > 0
			and l.wave in (select w.id from waves w where w.job = jobs.id) and l.state in (?)) order by id limit `
		if err := s.repeat(ctx, &swept.Jobs, deleteFrom("jobs"), ended, now.Add(-r.Audit), []State{StateQueued, StateSending, StateSent}); err != nil {
			return swept, err
		}
		const old = "select id from acts where at < ? and not exists (select 1 from jobs where act = acts.id) order by id limit "
		if err := s.repeat(ctx, &swept.Acts, deleteFrom("acts"), old, now.Add(-r.Audit)); err != nil {
			return swept, err
		}
	}
	empty := strings.ReplaceAll(counters(""), ",", " +") + " = 0"
	if err := s.repeat(ctx, &swept.Clusters, deleteFrom("clusters"), "select id from clusters where "+empty+" limit "); err != nil {
		return swept, err
	}
	// A topic whose workers send receipts stays: jobs ask for that.
	err = s.repeat(ctx, &swept.Topics, deleteFrom("topics"), "select id from topics where "+empty+" and receipt_at = 0 limit ")
	return swept, err
}

// sweepLetters deletes letters of some topics.
func (s *Store) sweepLetters(ctx context.Context, now time.Time, r Retention, swept *Swept, of string, args []any) error {
	for state, keep := range map[State]time.Duration{StateConfirmed: r.Confirmed, StateReturned: r.Returned, StateDiscarded: r.Discarded} {
		if keep > 0 {
			query := "select id from letters where state = ? and changed_at < ?" + of + " order by changed_at limit "
			if err := s.repeat(ctx, &swept.Letters, conn.deleteLetters, query, append([]any{state, now.Add(-keep)}, args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// repeat deletes the rows that a query finds, some at a time, and counts them.
func (s *Store) repeat(ctx context.Context, deleted *int64, remove func(conn, context.Context, ids) error, query string, args ...any) error {
	for {
		var list ids
		err := s.write(ctx, func(tx conn) (err error) {
			if list, err = tx.Numbers(ctx, query+strconv.Itoa(stepLetters), args...); err != nil || len(list) == 0 {
				return err
			}
			return remove(tx, ctx, list)
		})
		if err != nil || len(list) == 0 {
			return err
		}
		*deleted += int64(len(list))
	}
}

// deleteFrom deletes rows of a table.
func deleteFrom(table string) func(conn, context.Context, ids) error {
	return func(c conn, ctx context.Context, list ids) error {
		_, err := c.Exec(ctx, "delete from "+table+" where id in (?)", list)
		return err
	}
}

// deleteLetters deletes letters and all that belongs to them. What a job did
// with them stays counted there, and what it has still to do does not.
func (c conn) deleteLetters(ctx context.Context, list ids) error {
	d := deltas{}
	query := "select topic, cluster, wave, state, count(*), cast(sum(size) as bigint) from letters where id in (?) group by topic, cluster, wave, state"
	err := c.Each(ctx, query, []any{list}, func(scan func(...any) error) error {
		var topic, cluster, wave, n, bytes int64
		var state State
		err := scan(&topic, &cluster, &wave, intoState(&state), &n, &bytes)
		if !slices.Contains([]State{StateQueued, StateSending, StateSent}, state) {
			wave = 0
		}
		d.add(topic, cluster, wave, state, -n, -bytes)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.count(ctx, d); err != nil {
		return err
	}
	return deleteFrom("letters")(c, ctx, list)
}

// Delete deletes all letters that the store has with a message key, whatever
// their state, with their content and history: for personal data that has to go.
// It returns how many. That it was done stays in the audit, without the key, so the actor
// should not tell it either. What a job was about to send, or is sending, is
// not called back.
//
// In an SQLite file the bytes are overwritten. Postgres does so at its next
// vacuum. Copies and backups are not touched, and filters of jobs keep what was
// typed.
func (s *Store) Delete(ctx context.Context, now time.Time, a Actor, key string) (deleted int64, err error) {
	var list ids
	err = s.read(ctx, func(tx conn) (err error) { // looks at all letters, so it holds up nobody
		list, err = tx.Numbers(ctx, "select id from letters where message_key = ?", short(key, maxText))
		return err
	})
	if err != nil {
		return 0, err
	}
	for step := range slices.Chunk(list, stepLetters) {
		if err := s.write(ctx, func(tx conn) error { return tx.deleteLetters(ctx, step) }); err != nil {
			return deleted, err
		}
		deleted += int64(len(step))
	}
	err = s.write(ctx, func(tx conn) error {
		act, err := tx.act(ctx, now, a, "delete", 0)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update acts set letters = ? where id = ?", deleted, act)
		return err
	})
	if err == nil {
		err = s.db.Wipe(ctx) // the log has the bytes, too
	}
	return deleted, err
}
