package store

import (
	"context"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// awaited are the states of a letter in which a receipt changes something. One
// may come before the confirm of the broker, or after nobody waits any more.
func awaited() []State { return []State{StateSending, StateSent, StateUnknown} }

// Receipts notes what workers say, and returns how many receipts it believed:
// those with the token of the last send of a letter. The others, and those that
// say again what is known, change nothing. A letter that was handled is
// confirmed, one that is dead is returned, and one that failed is counted as
// such, once.
func (s *Store) Receipts(ctx context.Context, now time.Time, receipts []dlq.Receipt) (int, error) {
	return sqldb.Result(ctx, s.write, func(tx conn) (believed int, err error) {
		var list ids
		for _, r := range receipts {
			list = append(list, letterOf(r.Send))
		}
		tokens, err := tx.tokens(ctx, list, "true")
		if err != nil {
			return 0, err
		}
		var letters ids
		said := map[what]ids{}
		for _, r := range receipts {
			id := letterOf(r.Send)
			if r.Send == "" || tokens[id] != r.Send {
				continue
			}
			believed++
			letters = append(letters, id)
			w := what{r.Outcome, r.Class, r.Fingerprint}
			said[w] = append(said[w], id)
		}
		// What was handled stays so, if a copy of it died.
		for _, outcome := range []string{"failed", "handled", "dead"} {
			for w, list := range said {
				if w.outcome != outcome {
					continue
				}
				if err := tx.learn(ctx, now, list, w); err != nil {
					return 0, err
				}
			}
		}
		_, err = tx.Exec(ctx, "update topics set receipt_at = ? where receipt_at < ? and id in (select topic from letters where id in (?))", now, now, letters)
		return believed, err
	})
}

// what is the part of a receipt that letters may have in common.
type what struct{ outcome, class, fingerprint string }

func (w what) note() string {
	return strings.TrimSpace(w.outcome + " " + w.class + " " + w.fingerprint)
}

// learn notes the same of several letters.
func (c conn) learn(ctx context.Context, now time.Time, list ids, w what) (err error) {
	switch w.outcome {
	case "failed":
		err = c.failedFirst(ctx, now, list, w)
	case "handled":
		_, err = c.move(ctx, now, move{letters: list, from: awaited(), to: StateConfirmed, note: w.note()})
	case "dead":
		_, err = c.move(ctx, now, move{letters: list, from: awaited(), to: StateReturned, note: w.note()})
	}
	return err
}

// tokens returns the tokens of the last sends of letters, of those that meet a
// condition.
func (c conn) tokens(ctx context.Context, list ids, condition string) (map[int64]string, error) {
	tokens := map[int64]string{}
	err := c.Each(ctx, "select id, token from letters where id in (?) and "+condition, []any{list}, func(scan func(...any) error) error {
		var id int64
		var token string
		err := scan(&id, &token)
		tokens[id] = token
		return err
	})
	return tokens, err
}

// failedFirst counts letters that failed, those that were not counted before.
func (c conn) failedFirst(ctx context.Context, now time.Time, list ids, w what) error {
	list, err := c.Numbers(ctx, "select id from letters where id in (?) and failed = 0 and state in (?)", list, awaited())
	if err != nil || len(list) == 0 {
		return err
	}
	if _, err := c.Exec(ctx, `update waves set failed = failed + n.letters from (select wave, count(*) as letters from letters where id in (?) group by wave) n
		where waves.id = n.wave`, list); err != nil {
		return err
	}
	for _, state := range awaited() { // they stay where they are
		if _, err := c.move(ctx, now, move{letters: list, from: []State{state}, to: state, note: w.note(), set: ", failed = 1, failed_class = ?", args: []any{short(w.class, maxText)}}); err != nil {
			return err
		}
	}
	return nil
}

// SeenReceipt returns when a receipt was last believed of letters of a topic;
// zero if there was none.
func (s *Store) SeenReceipt(ctx context.Context, broker, topic string) (time.Time, error) {
	return sqldb.Result(ctx, s.read, func(tx conn) (at time.Time, err error) {
		_, err = tx.Get(ctx, "select max(receipt_at) from topics where broker = ? and topic = ?", []any{short(broker, maxText), short(topic, maxText)}, sqldb.IntoTime(&at))
		return at, err
	})
}
