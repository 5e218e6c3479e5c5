package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Filter selects letters. The zero Filter selects all; each field that is set
// selects fewer. Texts must be equal, to the byte.
type Filter struct {
	IDs     []int64
	Cluster int64

	Broker, Source, Topic, Group, Reason, Class, Format, Fingerprint string

	States []State // any of them

	// Since and Until bound the time of death: not before the one, and before
	// the other. A letter whose time of death is unknown, or later than when it
	// was collected, died when it was collected.
	Since, Until time.Time

	// UpTo excludes letters collected later: those with a larger ID. 0 excludes
	// none. See [Store.Last].
	UpTo int64

	MessageID string

	// Header must be one of the headers of the message as received; a nil Value
	// stands for any.
	Header HeaderFilter

	// Text must occur in the error text, or in the first 64 KiB of the body.
	Text string
}

// HeaderFilter selects letters by a header. Without a Name it selects all.
type HeaderFilter struct {
	Name  string
	Value *string
}

// readsContent reports whether letters have to be read to select them.
func (f Filter) readsContent() bool { return f.Header.Name != "" || f.Text != "" }

// Page says which part of a list to return.
type Page struct {
	After string // Listing.Next of the page before; empty for the first
	Limit int    // at most 1000; 0 means 100
}

func (p Page) limit() int {
	if p.Limit <= 0 {
		return 100
	}
	return min(p.Limit, 1000)
}

// key is the place of a letter in lists.
type key struct{ at, id int64 }

func (k key) String() string { return fmt.Sprintf("%d.%d", k.at, k.id) }

// start is the place before all letters, in one direction or the other.
func start(rising bool) key {
	if rising {
		return key{-1, -1}
	}
	return key{math.MaxInt64, math.MaxInt64}
}

// from is where the page begins.
func (p Page) from() (k key, err error) {
	if p.After == "" {
		return start(false), nil
	}
	return keyOf(p.After)
}

// readPage is read for a list: f begins behind a place.
func (s *Store) readPage(ctx context.Context, p Page, f func(tx conn, from key) error) error {
	return s.read(ctx, func(tx conn) error {
		from, err := p.from()
		if err != nil {
			return err
		}
		return f(tx, from)
	})
}

// cut cuts the rows that were found to a page, and returns the end of the page if
// there are more.
func cut[T any](p Page, rows []T, place func(T) key) (page []T, next string) {
	n := p.limit()
	if len(rows) <= n {
		return rows, ""
	}
	return rows[:n], place(rows[n-1]).String()
}

func keyOf(cursor string) (k key, err error) {
	if _, err := fmt.Sscanf(cursor, "%d.%d", &k.at, &k.id); err != nil || k.String() != cursor {
		return key{}, fmt.Errorf("%q is no page: use what the page before said is next", short(cursor, maxText))
	}
	return k, nil
}

// conditions are parts of a statement that must all hold, and their arguments.
type conditions struct {
	sql  []string
	args []any
}

func (c *conditions) and(sql string, args ...any) {
	c.sql = append(c.sql, sql)
	c.args = append(c.args, args...)
}

func (c *conditions) String() string {
	if len(c.sql) == 0 {
		return "true"
	}
	return strings.Join(c.sql, " and ")
}

// ofCluster is what f demands of c, a cluster, and t, its topic.
func (f Filter) ofCluster() (c conditions) {
	if f.Cluster != 0 {
		c.and("c.id = ?", f.Cluster)
	}
	for _, column := range []struct{ name, value string }{
		{"t.broker", f.Broker}, {"t.source", f.Source}, {"t.topic", f.Topic}, {"c.consumers", f.Group}, {"c.reason", f.Reason},
		{"c.class", f.Class}, {"c.format", f.Format}, {"c.fingerprint", f.Fingerprint},
	} {
		if column.value != "" {
			c.and(column.name+" = ?", short(column.value, maxText))
		}
	}
	return c
}

// hasLetters adds that c, a cluster, has letters in the states of f: one that
// Sweep and Delete have emptied has none.
func (f Filter) hasLetters(of *conditions) {
	var has []string
	for _, s := range intersection(f.States, States()) {
		has = append(has, "c."+string(s)+" > 0")
	}
	of.and("(" + strings.Join(has, " or ") + ")")
}

// ofRow is what f demands of l, a row of letters. With "is true" both databases
// test the cluster of each row: as a join it would cost them the order of the
// index by time.
func (f Filter) ofRow() (c conditions) {
	if len(f.IDs) > 0 {
		c.and("l.id in (?)", ids(f.IDs))
	}
	if f.MessageID != "" { // the index has blocks of letters
		c.and(`l.id in (select m.id from letters m where m.message_id = ? and m.id / 4096 in (
			with recursive blocks (n) as (
				select min(id) / 4096 from letters union all
				select n + 1 from blocks where n < (select max(id) / 4096 from letters)
			) select n from blocks))`, short(f.MessageID, maxText))
	}
	if f.UpTo != 0 {
		c.and("l.id <= ?", f.UpTo)
	}
	if !f.Since.IsZero() {
		c.and("l.at >= ?", f.Since)
	}
	if !f.Until.IsZero() {
		c.and("l.at < ?", f.Until)
	}
	if f.Cluster != 0 { // has an index
		c.and("l.cluster = ?", f.Cluster)
		f.Cluster = 0
	}
	if of := f.ofCluster(); len(of.sql) > 0 {
		c.and("(l.cluster in (select c.id from clusters c join topics t on t.id = c.topic where "+of.String()+")) is true", of.args...)
	}
	if len(f.States) > 0 {
		c.and("(l.state in (?)) is true", f.States)
	}
	return c
}

func (f Filter) validate() error {
	for _, s := range f.States {
		if s.code() < 0 {
			return fmt.Errorf("%q is no state: use one of %v", s, States())
		}
	}
	if len(f.IDs) > maxIDs {
		return fmt.Errorf("a filter of %d letters: name at most %d", len(f.IDs), maxIDs)
	}
	if f.Header.Name == "" && f.Header.Value != nil {
		return errors.New("a filter by a header without a name: name it")
	}
	return nil
}

// maxIDs bounds Filter.IDs.
const maxIDs = 10_000
