package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Actor is who does something, by which command, and why.
type Actor struct{ Who, Command, Reason string }

// Change is one row of the audit of a letter.
type Change struct {
	At       time.Time
	From, To State
	Note     string
	Actor    Actor // zero if nobody asked for it: the letter came, or a receipt
	Job      int64 // that did it; 0 for none
}

// History returns what happened to a letter, in order. It begins with the
// collecting, and has nothing for a letter that does not exist.
func (s *Store) History(ctx context.Context, id int64) (changes []Change, err error) {
	err = s.read(ctx, func(tx conn) error {
		first := Change{To: StateCollected}
		found, err := tx.Get(ctx, "select collected_at from letters where id = ?", []any{id}, sqldb.IntoTime(&first.At))
		if err != nil || !found {
			return err
		}
		changes = append(changes, first)
		const query = `select c.at, c.was, c.state, c.note, coalesce(a.who, ''), coalesce(a.command, ''), coalesce(a.reason, ''), coalesce(a.job, 0)
			from changes c left join acts a on a.id = c.act where c.letter = ? order by c.n`
		later, err := sqldb.All(ctx, tx.Tx, query, []any{id}, func(c *Change) []any {
			return []any{sqldb.IntoTime(&c.At), intoState(&c.From), intoState(&c.To), &c.Note, &c.Actor.Who, &c.Actor.Command, &c.Actor.Reason, &c.Job}
		})
		changes = append(changes, later...)
		return err
	})
	return changes, err
}

// Act is a row of the audit of all that somebody asked for.
type Act struct {
	ID      int64
	At      time.Time
	Actor   Actor
	What    string // discard, restore, put back, delete, or what became of a job: create, paused, running, done, cancelled
	Job     int64  // 0 for none
	Letters int64  // that it changed; those that a job sends are not counted here
}

// AuditListing is a page of acts. See [Listing].
type AuditListing struct {
	Acts []Act
	Next string
}

// Audit returns what was asked for, the latest first.
func (s *Store) Audit(ctx context.Context, p Page) (list AuditListing, err error) {
	err = s.readPage(ctx, p, func(tx conn, from key) error {
		query := "select id, at, who, command, reason, what, job, letters from acts where id < ? order by id desc limit " + strconv.Itoa(p.limit()+1)
		acts, err := sqldb.All(ctx, tx.Tx, query, []any{from.id}, func(a *Act) []any {
			return []any{&a.ID, sqldb.IntoTime(&a.At), &a.Actor.Who, &a.Actor.Command, &a.Actor.Reason, &a.What, &a.Job, &a.Letters}
		})
		list.Acts, list.Next = cut(p, acts, func(a Act) key { return key{0, a.ID} })
		return err
	})
	return list, err
}

// act notes who does something, and returns its number.
func (c conn) act(ctx context.Context, now time.Time, a Actor, what string, job int64) (id int64, err error) {
	if id, err = c.next(ctx, "acts", 1); err != nil {
		return 0, err
	}
	row := []any{id, now, short(a.Who, maxText), short(a.Command, maxText), short(a.Reason, maxError), what, job}
	return id, c.Insert(ctx, "acts", []string{"id", "at", "who", "command", "reason", "what", "job"}, [][]any{row})
}

// move is a change of state of letters: those of the list that are in one of the
// states from. Others are left alone.
type move struct {
	letters ids
	from    []State
	to      State
	wave    int64 // that takes the letters; 0 if they stay with theirs
	act     int64
	note    string
	set     string // more columns, and their values
	args    []any
}

// move changes letters, writes their audit rows and counts them. It returns how
// many it has changed.
func (c conn) move(ctx context.Context, now time.Time, m move) (int64, error) {
	if len(m.letters) == 0 {
		return 0, nil
	}
	const moved = " from letters where id in (?) and state in (?)"
	d := deltas{}
	query := "select topic, cluster, wave, state, count(*), cast(sum(size) as bigint)" + moved + " group by topic, cluster, wave, state"
	err := c.Each(ctx, query, []any{m.letters, m.from}, func(scan func(...any) error) error {
		var topic, cluster, wave, n, bytes int64
		var from State
		if err := scan(&topic, &cluster, &wave, intoState(&from), &n, &bytes); err != nil {
			return err
		}
		if m.wave == 0 {
			d.add(topic, cluster, wave, from, -n, -bytes)
			d.add(topic, cluster, wave, m.to, n, bytes)
		} else { // the wave before keeps its count
			d.add(topic, cluster, 0, from, -n, -bytes)
			d.add(topic, cluster, m.wave, m.to, n, bytes)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := c.count(ctx, d); err != nil {
		return 0, err
	}
	note := short(m.note, maxText)
	_, err = c.Exec(ctx, "insert into changes (letter, n, at, was, state, act, note) select id, changes + 1, cast(? as bigint), state, cast(? as smallint), cast(? as bigint), cast(? as bytea)"+moved,
		now, m.to, m.act, note, m.letters, m.from)
	if err != nil {
		return 0, err
	}
	set, args := m.set, m.args
	if m.wave != 0 {
		set, args = ", wave = ?, failed = 0"+set, append([]any{m.wave}, args...)
	}
	args = append([]any{m.to, note, now}, args...)
	return c.Exec(ctx, "update letters set state = ?, note = ?, changed_at = ?, changes = changes + 1"+set+" where id in (?) and state in (?)",
		append(args, m.letters, m.from)...)
}

// stepLetters is how many letters a transaction changes that is one of many.
const stepLetters = 2_000

// Discard takes the letters that f selects out of the way, and returns how many.
// They stay in the store until retention ends, see Sweep, and Restore brings them
// back. Letters that a job holds, or that are confirmed, are left alone. One that
// the broker delivers again stays discarded, see Collect.
//
// It works in steps, so that others get a turn; after an error those that were
// done stay done. Give Filter.UpTo to leave out what is collected meanwhile.
func (s *Store) Discard(ctx context.Context, now time.Time, a Actor, f Filter) (discarded int64, err error) {
	return s.inSteps(ctx, now, a, "discard", f, discardable(), func(tx conn, list ids, act int64) (int64, error) {
		return tx.move(ctx, now, move{letters: list, from: discardable(), to: StateDiscarded, act: act, note: a.Reason, set: ", was = state"})
	})
}

// PutBack has publish give letters back to the dead-letter topic that they came
// from, and discards those that it returns: those of which the broker has
// confirmed that it has them again. It returns how many. Letters that a job holds,
// or that are confirmed, are left alone and not passed to publish.
//
// Before publish is called, the store forgets by what it would know the letters
// again: what is collected from the topic from then on, maybe before publish
// returns, is another letter. So none of them is gone from the broker while the
// store has only discarded ones. After a crash or an error there may be two.
func (s *Store) PutBack(ctx context.Context, now time.Time, a Actor, letters []int64,
	publish func(ctx context.Context, letters []int64) (confirmed []int64, err error),
) (put int64, err error) {
	var list ids
	err = s.write(ctx, func(tx conn) (err error) {
		const free = " from letters where id in (?) and state in (?)"
		if list, err = tx.Numbers(ctx, "select id"+free+" order by id", ids(letters), discardable()); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update letters set identity = null where id in (?)", list)
		return err
	})
	if err != nil || len(list) == 0 {
		return 0, err
	}
	confirmed, failed := publish(ctx, list)
	if len(confirmed) == 0 {
		return 0, failed
	}
	ctx = context.WithoutCancel(ctx) // the broker has them
	put, err = s.inSteps(ctx, now, a, "put back", Filter{IDs: confirmed}, discardable(), func(tx conn, list ids, act int64) (int64, error) {
		return tx.move(ctx, now, move{letters: list, from: discardable(), to: StateDiscarded, act: act, note: "put back", set: ", was = state"})
	})
	return put, errors.Join(failed, err)
}

// discardable are the states in which nobody but an operator has to do with a
// letter.
func discardable() []State {
	return []State{StateCollected, StateUnknown, StateReturned, StateSkipped}
}

// Restore takes discarded letters that f selects back to the state that they had
// before, and returns how many. It works in steps as Discard does.
func (s *Store) Restore(ctx context.Context, now time.Time, a Actor, f Filter) (restored int64, err error) {
	return s.inSteps(ctx, now, a, "restore", f, []State{StateDiscarded}, func(tx conn, list ids, act int64) (total int64, err error) {
		for _, state := range discardable() {
			before, err := tx.Numbers(ctx, "select id from letters where id in (?) and was = ?", list, state)
			if err != nil {
				return 0, err
			}
			n, err := tx.move(ctx, now, move{letters: before, from: []State{StateDiscarded}, to: state, act: act, note: a.Reason})
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	})
}

// inSteps runs change on the letters that f selects and that are in one of the
// states, some thousands at a time, as one act.
func (s *Store) inSteps(ctx context.Context, now time.Time, a Actor, what string, f Filter, states []State, change func(tx conn, list ids, act int64) (int64, error)) (total int64, err error) {
	if f.States = intersection(f.States, states); len(f.States) == 0 {
		return 0, nil
	}
	at := search{from: start(true), rising: true, limit: stepLetters}
	var act int64
	for more := true; more; {
		var n int64
		err := s.write(ctx, func(tx conn) error {
			found, err := tx.find(ctx, f, at)
			if err != nil {
				return err
			}
			at.from, more = found.next, found.more
			if len(found.keys) == 0 {
				return nil
			}
			if act == 0 {
				if act, err = tx.act(ctx, now, a, what, 0); err != nil {
					return err
				}
			}
			if n, err = change(tx, idsOf(found.keys), act); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "update acts set letters = letters + ? where id = ?", n, act)
			return err
		})
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// intersection returns the states that a filter allows; nil allows all.
func intersection(allowed, states []State) []State {
	if len(allowed) == 0 {
		return states
	}
	return slices.DeleteFunc(slices.Clone(states), func(s State) bool { return !slices.Contains(allowed, s) })
}
