package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Collected is a dead letter as it was received, and what it was taken for.
type Collected struct {
	Broker   string // its name in the configuration
	Source   string // the dead-letter topic
	Position string // where a log has it, such as 3/4711; empty elsewhere
	Format   string // whose dead letter it is, such as redrive or raw
	Raw      brokers.Message

	// Entry is kept as dlq.Entry.Encode writes it; with the format redrive it is
	// what dlq.Decode reads in Raw, and not kept apart.
	Entry dlq.Entry
}

// redrive is the format of what dlq.Entry.Encode has written.
const redrive = "redrive"

// Collect takes letters into the store, all or none, and returns how many of
// them it did not have yet. They are durable when it returns nil. After an
// error call it again with the same ones: those that the store has by then are
// not taken twice.
//
// Letters merge that have the same broker, source, message ID, time of death,
// body and headers; on a log, the same broker, source, position, body and
// headers, since a topic that is made anew counts from 0 again. A letter with
// neither a position nor both an ID and a time of death merges with none.
//
// A letter that merges stays what it is, also if it is discarded: that it comes
// once more does not undo what somebody decided about it. One that was put back,
// or deleted, is no longer known, and comes as another.
//
// A letter that carries the token of the last send of another is that one come
// back: they are linked, and the older one is returned. Any other token means
// nothing.
func (s *Store) Collect(ctx context.Context, now time.Time, letters []Collected) (added int, err error) {
	batch := make([]*arrival, len(letters))
	for i, l := range letters {
		if batch[i], err = arrivalOf(l, now); err != nil {
			return 0, s.db.Failed(fmt.Errorf("letter %d of %d, %q from %s: %w", i+1, len(letters), short(l.Entry.Message.ID, maxText), l.Source, err))
		}
	}
	return sqldb.Result(ctx, s.write, func(tx conn) (int, error) {
		batch, err := tx.unknown(ctx, batch)
		if err != nil || len(batch) == 0 {
			return 0, err
		}
		return len(batch), tx.add(ctx, now, batch)
	})
}

// arrival is a letter on its way into the store.
type arrival struct {
	Collected
	identity []byte // nil if it merges with nothing
	topic    digest
	cluster  digest
	content  content
	size     int64
	at       int64

	id, topicID, clusterID, previous int64
}

func arrivalOf(l Collected, now time.Time) (*arrival, error) {
	a := &arrival{Collected: l, at: sqldb.Millis(now)}
	if dead := sqldb.Millis(l.Entry.DeadAt); dead > 0 && dead < a.at {
		a.at = dead // nothing dies after it was found dead
	}
	a.size = int64(len(l.Raw.Body))
	for _, h := range l.Raw.Headers {
		a.size += int64(len(h.Name) + len(h.Value))
	}
	a.identity = identityOf(l)
	e := &a.Entry
	a.topic = hash(l.Broker, l.Source, e.Message.Topic)
	a.cluster = hash(l.Broker, l.Source, e.Message.Topic, e.Group, e.Reason, e.Meta.Class, l.Format, e.ErrorType, e.Fingerprint)
	var err error
	a.content, err = contentOf(l.Format, l.Raw, l.Entry)
	return a, err
}

// identityOf returns what is the same in letters that are one. It starts with
// the time of death, so that what is collected together is together in the
// index, too.
func identityOf(l Collected) []byte {
	dead := sqldb.Millis(l.Entry.DeadAt)
	which := l.Entry.Message.ID
	switch {
	case l.Position != "":
		which = l.Position
	case which == "" || dead == 0:
		return nil
	}
	body := sha256.Sum256(l.Raw.Body)
	parts := []string{l.Broker, l.Source, which, string(body[:])}
	for _, h := range l.Raw.Headers {
		parts = append(parts, h.Name, h.Value, h.Type)
	}
	sum := hash(parts...)
	return append(binary.BigEndian.AppendUint64(nil, uint64(dead)), sum[:]...)
}

type digest = [sha256.Size]byte

// hash returns the same for the same texts, and for no others.
func hash(texts ...string) digest {
	b := make([]byte, 0, 512) // enough for most
	for _, t := range texts {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(t))), t...)
	}
	return sha256.Sum256(b)
}

// Bounds of texts in rows, in bytes.
const (
	maxText  = 512
	maxError = 2 << 10
)

// short returns s, or, if that is longer than max, its beginning and its hash.
// What differs still does.
func short(s string, max int) string {
	if len(s) <= max {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	tail := "…" + hex.EncodeToString(sum[:])
	head := s[:max-len(tail)]
	for len(head) > 0 && !utf8.RuneStart(s[len(head)]) {
		head = head[:len(head)-1]
	}
	return head + tail
}

// unknown returns those of the batch that the store does not have, each once.
func (c conn) unknown(ctx context.Context, batch []*arrival) ([]*arrival, error) {
	var list keys
	for _, a := range batch {
		if a.identity != nil {
			list = append(list, a.identity)
		}
	}
	known := map[string]bool{}
	err := c.Each(ctx, "select identity from letters where identity in (?)", []any{list}, func(scan func(...any) error) error {
		var identity string
		err := scan(&identity)
		known[identity] = true
		return err
	})
	return slices.DeleteFunc(slices.Clone(batch), func(a *arrival) bool {
		again := a.identity != nil && known[string(a.identity)]
		known[string(a.identity)] = true
		return again
	}), err
}

func (c conn) add(ctx context.Context, now time.Time, batch []*arrival) error {
	first, err := c.next(ctx, "letters", len(batch))
	if err != nil {
		return err
	}
	for i, a := range batch {
		a.id = first + int64(i)
	}
	if err := c.addTopics(ctx, batch); err != nil {
		return err
	}
	if err := c.addClusters(ctx, now, batch); err != nil {
		return err
	}
	if err := c.findPrevious(ctx, batch); err != nil {
		return err
	}
	if err := c.insertLetters(ctx, now, batch); err != nil {
		return err
	}
	if err := c.linkPrevious(ctx, now, batch); err != nil {
		return err
	}
	d := deltas{}
	for _, a := range batch {
		d.add(a.topicID, a.clusterID, 0, StateCollected, 1, a.size)
	}
	return c.count(ctx, d)
}

// addTopics gives each letter its topic, after it has added the new ones.
func (c conn) addTopics(ctx context.Context, batch []*arrival) error {
	found, err := c.rowsOf(ctx, "topics", batch, func(a *arrival) digest { return a.topic }, "broker source topic", func(a *arrival) []any {
		return []any{short(a.Broker, maxText), short(a.Source, maxText), short(a.Entry.Message.Topic, maxText)}
	})
	for _, a := range batch {
		a.topicID = found[a.topic]
	}
	return err
}

func (c conn) addClusters(ctx context.Context, now time.Time, batch []*arrival) error {
	const columns = "topic consumers reason class format error_type fingerprint created_at first_at last_at"
	found, err := c.rowsOf(ctx, "clusters", batch, func(a *arrival) digest { return a.cluster }, columns, func(a *arrival) []any {
		e := &a.Entry
		return []any{
			a.topicID, short(e.Group, maxText), short(e.Reason, maxText), short(e.Meta.Class, maxText),
			short(a.Format, maxText), short(e.ErrorType, maxText), short(e.Fingerprint, maxText), now, a.at, a.at,
		}
	})
	if err != nil {
		return err
	}
	seen := map[int64][2]int64{}
	for _, a := range batch {
		a.clusterID = found[a.cluster]
		span, ok := seen[a.clusterID]
		if !ok {
			span = [2]int64{a.at, a.at}
		}
		seen[a.clusterID] = [2]int64{min(span[0], a.at), max(span[1], a.at)}
	}
	return c.stretch(ctx, seen)
}

// stretch makes clusters last from the first to the last death, at least.
func (c conn) stretch(ctx context.Context, seen map[int64][2]int64) error {
	rows := make([][]any, 0, len(seen))
	for id, span := range seen {
		rows = append(rows, []any{id, span[0], span[1]})
	}
	return c.Update(ctx, `update clusters set
		first_at = case when v.column2 < first_at then v.column2 else first_at end,
		last_at = case when v.column3 > last_at then v.column3 else last_at end
		from (values ROWS) as v where id = v.column1 and (v.column2 < first_at or v.column3 > last_at)`, rows)
}

// rowsOf returns the numbers of the rows that letters belong to, after it has added
// those that are missing: values returns their columns besides id and hash.
func (c conn) rowsOf(
	ctx context.Context, table string, batch []*arrival, hashOf func(*arrival) digest, columns string, values func(*arrival) []any,
) (map[digest]int64, error) {
	of := map[digest]*arrival{}
	var list keys
	for _, a := range batch {
		if hash := hashOf(a); of[hash] == nil {
			of[hash] = a
			list = append(list, hash[:])
		}
	}
	found := map[digest]int64{}
	err := c.Each(ctx, "select hash, id from "+table+" where hash in (?)", []any{list}, func(scan func(...any) error) error {
		var hash []byte
		var id int64
		if err := scan(&hash, &id); err != nil {
			return err
		}
		found[digest(hash)] = id
		return nil
	})
	if err != nil || len(found) == len(list) {
		return found, err
	}
	id, err := c.next(ctx, table, len(list)-len(found))
	if err != nil {
		return nil, err
	}
	var rows [][]any
	for _, key := range list {
		if hash := digest(key); found[hash] == 0 {
			found[hash] = id
			rows = append(rows, append([]any{id, key}, values(of[hash])...))
			id++
		}
	}
	return found, c.Insert(ctx, table, append([]string{"id", "hash"}, strings.Fields(columns)...), rows)
}

// findPrevious finds the letters that have come back. A token stands for one
// letter that comes back, no more.
func (c conn) findPrevious(ctx context.Context, batch []*arrival) error {
	var list ids
	for _, a := range batch {
		if id := letterOf(a.Entry.Meta.Send); id != 0 {
			list = append(list, id)
		}
	}
	if len(list) == 0 {
		return nil
	}
	tokens, err := c.tokens(ctx, list, "next = 0")
	for _, a := range batch {
		if token := a.Entry.Meta.Send; token != "" && tokens[letterOf(token)] == token {
			a.previous = letterOf(token)
			delete(tokens, a.previous)
		}
	}
	return err
}

// linkPrevious tells the letters that have come back. A receipt may have come
// first, and one that says that a copy was handled stands.
func (c conn) linkPrevious(ctx context.Context, now time.Time, batch []*arrival) error {
	var rows [][]any
	var list ids
	for _, a := range batch {
		if a.previous != 0 {
			rows = append(rows, []any{a.previous, a.id})
			list = append(list, a.previous)
		}
	}
	if err := c.Update(ctx, "update letters set next = v.column2 from (values ROWS) as v where id = v.column1", rows); err != nil || len(list) == 0 {
		return err
	}
	_, err := c.move(ctx, now, move{letters: list, from: awaited(), to: StateReturned, note: "it came back as another letter"})
	return err
}

func (c conn) insertLetters(ctx context.Context, now time.Time, batch []*arrival) error {
	letters, contents := make([][]any, len(batch)), make([][]any, len(batch))
	var parts [][]any
	for i, a := range batch {
		e := &a.Entry
		letters[i] = []any{
			a.id, a.identity, a.clusterID, a.topicID, StateCollected, a.at, short(a.Position, maxText),
			short(e.Message.ID, maxText), short(e.Message.Key, maxText), short(e.ErrorCode, maxText), short(e.ErrorText, maxError), short(e.Rule, maxText),
			e.Meta.Attempt, e.Meta.RedriveCount, e.Abandoned, e.Original != nil, a.size,
			e.DeadAt, short(e.DeadBy, maxText), e.Meta.FirstFailedAt, e.Message.PublishedAt, now, now, a.previous,
		}
		var more [][]any
		contents[i], more = a.content.rows(a.id)
		parts = append(parts, more...)
	}
	columns := strings.Fields(`id identity cluster topic state at position message_id message_key error_code error_text rule
		attempts redrives abandoned stub size dead_at dead_by first_failed_at published_at collected_at changed_at previous`)
	if err := c.Insert(ctx, "letters", columns, letters); err != nil {
		return err
	}
	if err := c.Insert(ctx, "contents", strings.Fields("letter raw entry body own"), contents); err != nil {
		return err
	}
	return c.Insert(ctx, "parts", strings.Fields("letter own n data"), parts)
}
