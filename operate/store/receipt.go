package store

import (
	"context"
	"strings"
	"time"
)

// Receipt is what a worker says about a message that was sent back.
type Receipt struct {
	Send               string // the token
	Outcome            string // failed, handled or dead
	Class, Fingerprint string // of the failure
	At                 time.Time
}

// awaited are the states of a letter in which a receipt changes something. One
// may come before the confirm of the broker, or after nobody waits any more.
func awaited() []State { return []State{StateSending, StateSent, StateUnknown} }

// Receipts notes what workers say, and returns how many receipts it believed:
// those with the token of the last send of a letter. The others, and those that
// say again what is known, change nothing. A letter that was handled is
// confirmed, one that is dead is returned, and one that failed is counted as
// such, once.
func (s *Store) Receipts(ctx context.Context, now time.Time, receipts []Receipt) (believed int, err error) {
	err = s.write(ctx, func(tx conn) error {
		believed = 0
		var list ids
		for _, r := range receipts {
			list = append(list, letterOf(r.Send))
		}
		tokens, err := tx.tokens(ctx, list, "true")
		if err != nil {
			return err
		}
		var letters ids
		byNote := map[string]map[string]ids{}
		for _, r := range receipts {
			id := letterOf(r.Send)
			if r.Send == "" || tokens[id] != r.Send {
				continue
			}
			believed++
			letters = append(letters, id)
			if byNote[r.Outcome] == nil {
				byNote[r.Outcome] = map[string]ids{}
			}
			note := strings.TrimSpace(r.Outcome + " " + r.Class + " " + r.Fingerprint)
			byNote[r.Outcome][note] = append(byNote[r.Outcome][note], id)
		}
		for note, list := range byNote["failed"] {
			if err := tx.failedFirst(ctx, now, list, note); err != nil {
				return err
			}
		}
		if err := tx.end(ctx, now, StateConfirmed, byNote["handled"]); err != nil {
			return err
		}
		if err := tx.end(ctx, now, StateReturned, byNote["dead"]); err != nil {
			return err
		}
		_, err = tx.exec(ctx, "update topics set receipt_at = ? where receipt_at < ? and id in (select topic from letters where id in (IDS))", now, now, letters)
		return err
	})
	if err != nil {
		return 0, err
	}
	return believed, nil
}

// end brings letters to a state that ends the wait for them, by note.
func (c conn) end(ctx context.Context, now time.Time, to State, byNote map[string]ids) error {
	for note, list := range byNote {
		if _, err := c.move(ctx, now, move{letters: list, from: awaited(), to: to, note: note}); err != nil {
			return err
		}
	}
	return nil
}

// tokens returns the tokens of the last sends of letters, of those that meet a
// condition.
func (c conn) tokens(ctx context.Context, list ids, condition string) (map[int64]string, error) {
	tokens := map[int64]string{}
	err := c.each(ctx, "select id, token from letters where id in (IDS) and "+condition, []any{list}, func(scan func(...any) error) error {
		var id int64
		var token string
		err := scan(&id, &token)
		tokens[id] = token
		return err
	})
	return tokens, err
}

// failedFirst counts letters that failed, those that were not counted before.
func (c conn) failedFirst(ctx context.Context, now time.Time, list ids, note string) error {
	list, err := c.numbers(ctx, "select id from letters where id in (IDS) and failed = 0 and state in (IDS)", list, awaited())
	if err != nil || len(list) == 0 {
		return err
	}
	if _, err := c.exec(ctx, `update waves set failed = failed + n.letters from (select wave, count(*) as letters from letters where id in (IDS) group by wave) n
		where waves.id = n.wave`, list); err != nil {
		return err
	}
	for _, state := range awaited() { // they stay where they are
		if _, err := c.move(ctx, now, move{letters: list, from: []State{state}, to: state, note: note, set: ", failed = 1"}); err != nil {
			return err
		}
	}
	return nil
}

// SeenReceipt returns when a receipt was last believed of letters of a topic;
// zero if there was none.
func (s *Store) SeenReceipt(ctx context.Context, broker, topic string) (at time.Time, err error) {
	err = s.read(ctx, func(tx conn) error {
		_, err := tx.get(ctx, "select max(receipt_at) from topics where broker = ? and topic = ?", []any{short(broker, maxText), short(topic, maxText)}, intoTime(&at))
		return err
	})
	return at, err
}
