package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
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

func (c conditions) with(sql string, args ...any) conditions {
	c.sql, c.args = slices.Clone(c.sql), slices.Clone(c.args)
	c.and(sql, args...)
	return c
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

// ofRow is all that f demands of the row of l, a letter, for where its cluster
// and its state are not what the rows are found by.
func (f Filter) ofRow() conditions {
	c := f.ofLetter()
	if clusters := f.ofCluster(); len(clusters.sql) > 0 {
		c.and("+l.cluster in ("+selectClusters(clusters)+")", clusters.args...)
	}
	if len(f.States) > 0 {
		c.and("+l.state in (IDS)", f.States)
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

// ofLetter is what f demands of l, a letter, besides its cluster and state.
func (f Filter) ofLetter() (c conditions) {
	if len(f.IDs) > 0 {
		c.and("l.id in (IDS)", ids(f.IDs))
	}
	if f.MessageID != "" {
		c.and("l.message_id = ?", short(f.MessageID, maxText))
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
