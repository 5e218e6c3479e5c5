package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Sendable reports whether a job may send a letter in this state.
func Sendable(s State) bool { return slices.Contains(sendable(), s) }

func sendable() []State { return []State{StateCollected, StateUnknown, StateSkipped} }

// Queue takes the next letters of a job's filter into its current wave, oldest
// death first, each at most once in the life of the job. It asks decide about
// each: those for which it returns a reason are skipped for it, and at most n are
// queued, fewer if many are skipped. Letters that another job holds, or that are
// confirmed, returned or discarded, are passed over. It reports how many were
// queued, and whether there may be more.
//
// decide runs in a transaction, so it must not call the store, and be quick.
func (s *Store) Queue(ctx context.Context, now time.Time, l Lease, n int, decide func(Letter) (skip string)) (queued int, more bool, err error) {
	err = s.write(ctx, func(tx conn) error {
		j, err := tx.running(ctx, l)
		if err != nil {
			return err
		}
		if j.Filter.States = intersection(j.Filter.States, sendable()); len(j.Filter.States) == 0 {
			return nil
		}
		found, err := tx.find(ctx, j.Filter, search{from: j.queuedTo, rising: true, limit: max(atOnce(n), lookAtOnce)})
		if err != nil {
			return err
		}
		letters, err := tx.letters(ctx, idsOf(found.keys))
		if err != nil {
			return err
		}
		taken, byReason := choose(letters, atOnce(n), decide)
		queued = len(byReason[""])
		if err := tx.queue(ctx, now, j, byReason); err != nil {
			return err
		}
		end := found.next
		switch more = found.more; {
		case taken < len(letters):
			end, more = found.keys[taken-1], true
		case !more:
			end = queuedAll()
		}
		_, err = tx.Exec(ctx, "update jobs set at = ?, letter = ? where id = ?", end.at, end.id, j.ID)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return queued, more, nil
}

// lookAtOnce is how many letters Queue looks at, at least, so that it gets on
// where many are skipped.
const lookAtOnce = 200

// queuedAll is where a job is that has looked at all letters.
func queuedAll() key { return key{math.MaxInt64, 0} }

// choose asks decide about letters until n of them have no reason to be skipped,
// and returns how many it has asked about, and these by the reason.
func choose(letters []Letter, n int, decide func(Letter) string) (asked int, byReason map[string]ids) {
	byReason = map[string]ids{}
	for ; asked < len(letters) && len(byReason[""]) < n; asked++ {
		reason := decide(letters[asked])
		byReason[reason] = append(byReason[reason], letters[asked].ID)
	}
	return asked, byReason
}

// queue queues the letters without a reason, and skips the others.
func (c conn) queue(ctx context.Context, now time.Time, j Job, byReason map[string]ids) error {
	for reason, list := range byReason {
		m := move{letters: list, from: sendable(), to: StateSkipped, wave: j.wave, act: j.act, note: reason}
		if reason == "" {
			m.to = StateQueued
		}
		n, err := c.move(ctx, now, m)
		if err != nil {
			return err
		}
		if reason == "" {
			continue
		}
		if _, err := c.Exec(ctx, `insert into skips (job, reason, letters) values (?, ?, ?)
			on conflict (job, reason) do update set letters = skips.letters + excluded.letters`, j.ID, short(reason, maxText), n); err != nil {
			return err
		}
	}
	return nil
}

// atOnce bounds how many letters a call takes.
func atOnce(n int) int { return min(max(n, 1), stepLetters) }

// Sending is a letter that is to be sent, and by which token.
type Sending struct {
	Letter
	Raw   brokers.Message
	Entry dlq.Entry
	Token string // for brokers.Meta.Send
}

// maxClaimed is about how many bytes of messages are claimed at once.
const maxClaimed = 16 << 20

// Claim takes up to n queued letters of a job, oldest death first, to be sent;
// fewer if they are large. Each gets a token of its own. Report what became of
// them with Sent before the next Claim: that returns first, and as they were,
// those of which nothing was reported, since they may not have been sent. After a
// crash these are sent again with the same token.
func (s *Store) Claim(ctx context.Context, now time.Time, l Lease, n int) ([]Sending, error) {
	return sqldb.Result(ctx, s.write, func(tx conn) ([]Sending, error) {
		j, err := tx.running(ctx, l)
		if err != nil {
			return nil, err
		}
		n := atOnce(n)
		list, err := tx.lettersOf(ctx, j.ID, StateSending, n)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			if list, err = tx.claim(ctx, now, j, n); err != nil {
				return nil, err
			}
		}
		return tx.sendings(ctx, list)
	})
}

// claim gives queued letters their tokens.
func (c conn) claim(ctx context.Context, now time.Time, j Job, n int) (ids, error) {
	list, err := c.lettersOf(ctx, j.ID, StateQueued, n)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	letters, err := c.letters(ctx, list)
	if err != nil {
		return nil, err
	}
	var bytes int64
	var tokens [][]any
	for i, l := range letters {
		if bytes += l.Size; i > 0 && bytes > maxClaimed {
			list = list[:i]
			break
		}
		tokens = append(tokens, []any{l.ID, newToken(l.ID, l.Sends+1)})
	}
	m := move{letters: list, from: []State{StateQueued}, to: StateSending, act: j.act, set: ", sends = sends + 1"}
	if _, err := c.move(ctx, now, m); err != nil {
		return nil, err
	}
	return list, c.Batch(ctx, "update letters set token = v.column2 from (values ROWS) as v where id = v.column1", []string{"bigint", "bytea"}, tokens, nil)
}

// newToken returns a word that nobody can guess: letter, send, 128 random bits.
func newToken(letter int64, send int) string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // it never fails
	return fmt.Sprintf("%d.%d.%s", letter, send, base64.RawURLEncoding.EncodeToString(random[:]))
}

// letterOf returns the letter of a token, 0 if it has none.
func letterOf(token string) int64 {
	number, _, _ := strings.Cut(token, ".")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil || id < 0 {
		return 0
	}
	return id
}

func (c conn) sendings(ctx context.Context, list ids) ([]Sending, error) {
	letters, err := c.letters(ctx, list)
	if err != nil {
		return nil, err
	}
	tokens, err := c.tokens(ctx, list, "true")
	if err != nil {
		return nil, err
	}
	out := make([]Sending, len(letters))
	for i, l := range letters {
		out[i] = Sending{Letter: l, Token: tokens[l.ID]}
		if out[i].Raw, out[i].Entry, err = c.content(ctx, l.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Outcome is what the broker said about one letter. If nobody knows whether it
// has the message, there is none: Claim returns the letter again.
type Outcome struct {
	Letter int64

	// Refused is why the broker certainly does not have the message; empty if it
	// has confirmed that it has.
	Refused string
}

// Sent notes outcomes. A letter of which a receipt has told more meanwhile stays
// as it is. One that was refused is collected again, and this job does not take
// it any more.
func (s *Store) Sent(ctx context.Context, now time.Time, l Lease, outcomes []Outcome) error {
	return s.write(ctx, func(tx conn) error {
		j, err := tx.held(ctx, l)
		if err != nil {
			return err
		}
		byReason := map[string]ids{}
		for _, o := range outcomes {
			byReason[o.Refused] = append(byReason[o.Refused], o.Letter)
		}
		for reason, list := range byReason {
			list, err := tx.Numbers(ctx, "select id from letters where id in (?) and wave in (select id from waves where job = ?)", list, j.ID)
			if err != nil {
				return err
			}
			m := move{letters: list, from: []State{StateSending}, to: StateSent, act: j.act}
			if reason != "" {
				m.to, m.note, m.set = StateCollected, "refused: "+reason, ", token = ''"
			}
			if _, err := tx.move(ctx, now, m); err != nil {
				return err
			}
			if reason != "" {
				continue
			}
			if _, err := tx.Exec(ctx, "update waves set sent_at = ? where id in (select wave from letters where id in (?))", now, list); err != nil {
				return err
			}
		}
		return nil
	})
}

// Expire gives up waiting for receipts of what a job sent before a time: those
// letters are unknown. So are those that it was sending, if it has ended and
// nobody works on it. It returns how many that were.
func (s *Store) Expire(ctx context.Context, now time.Time, job int64, before time.Time) (int64, error) {
	return sqldb.Result(ctx, s.write, func(tx conn) (int64, error) {
		j, err := tx.job(ctx, job)
		if err != nil {
			return 0, err
		}
		states := []State{StateSent}
		if j.State.ended() && !j.IsHeld(now) {
			states = append(states, StateSending)
		}
		list, err := tx.Numbers(ctx, "select id from letters where wave > 0 and wave in (select id from waves where job = ?) and state in (?) and changed_at < ? limit "+strconv.Itoa(stepLetters),
			job, states, before)
		if err != nil {
			return 0, err
		}
		return tx.move(ctx, now, move{letters: list, from: states, to: StateUnknown, note: "no receipt came in time"})
	})
}
