package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Slice counts letters that have all of this in common.
type Slice struct {
	Broker, Source, Topic, Group, Reason, Format string

	State        State
	Stub         bool
	RedriveCount int
	Sends        int

	Letters         int64
	Bytes           int64     // Letter.Size of all of them
	FirstAt, LastAt time.Time // of death, as Filter.Since sees it
}

// Breakdown counts the letters that f selects: what a job with this filter would
// meet. It looks at all of them, which takes seconds for a million, and longer if
// f selects by content.
func (s *Store) Breakdown(ctx context.Context, f Filter) (slices []Slice, err error) {
	err = s.read(ctx, func(tx conn) error {
		if err := f.validate(); err != nil {
			return err
		}
		sums := breakdown{}
		if err := tx.breakDown(ctx, f, sums); err != nil {
			return err
		}
		slices, err = tx.slices(ctx, sums)
		return err
	})
	return slices, err
}

// kind is what the letters of a slice have in common, in terms of the tables.
type kind struct {
	cluster, redrives, sends int64
	state                    State
	stub                     bool
}

type sums struct{ letters, bytes, first, last int64 }

type breakdown = map[kind]sums

// add adds up what has the same key.
func add[K comparable](b map[K]sums, k K, s sums) {
	if before, ok := b[k]; ok {
		s = sums{s.letters + before.letters, s.bytes + before.bytes, min(s.first, before.first), max(s.last, before.last)}
	}
	b[k] = s
}

func (c conn) breakDown(ctx context.Context, f Filter, b breakdown) error {
	if !f.readsContent() {
		return c.sumUp(ctx, f, b)
	}
	for at := (search{from: start(true), rising: true, limit: maxRead}); ; {
		found, err := c.findContent(ctx, f, at)
		if err != nil {
			return err
		}
		if len(found.keys) > 0 {
			if err := c.sumUp(ctx, Filter{IDs: idsOf(found.keys)}, b); err != nil {
				return err
			}
		}
		if at.from = found.next; !found.more {
			return nil
		}
	}
}

// sumUp adds the letters that f selects by their rows.
func (c conn) sumUp(ctx context.Context, f Filter, b breakdown) error {
	of := f.ofRow()
	query := `select +l.cluster, l.state, l.stub, l.redrives, l.sends, count(*), cast(sum(l.size) as bigint), min(l.at), max(l.at)
		from letters l where ` + of.String() + ` group by +l.cluster, l.state, l.stub, l.redrives, l.sends` // without the index by cluster, which would read each row on its own
	return c.Each(ctx, query, of.args, func(scan func(...any) error) error {
		var k kind
		var s sums
		err := scan(&k.cluster, intoState(&k.state), sqldb.IntoBool(&k.stub), &k.redrives, &k.sends, &s.letters, &s.bytes, &s.first, &s.last)
		add(b, k, s)
		return err
	})
}

// slices puts sums into the words of the clusters, and together what is the same
// in these.
func (c conn) slices(ctx context.Context, b breakdown) ([]Slice, error) {
	named := map[int64]Slice{}
	for k := range b {
		named[k.cluster] = Slice{}
	}
	var list ids
	for id := range named {
		list = append(list, id)
	}
	query := "select c.id, t.broker, t.source, t.topic, c.consumers, c.reason, c.format from clusters c join topics t on t.id = c.topic where c.id in (IDS)"
	err := c.Each(ctx, query, []any{list}, func(scan func(...any) error) error {
		var id int64
		var s Slice
		err := scan(&id, &s.Broker, &s.Source, &s.Topic, &s.Group, &s.Reason, &s.Format)
		named[id] = s
		return err
	})
	if err != nil {
		return nil, err
	}
	total := map[Slice]sums{}
	for k, s := range b {
		of := named[k.cluster]
		of.State, of.Stub, of.RedriveCount, of.Sends = k.state, k.stub, int(k.redrives), int(k.sends)
		add(total, of, s)
	}
	var out []Slice
	for of, s := range total {
		of.Letters, of.Bytes, of.FirstAt, of.LastAt = s.letters, s.bytes, sqldb.TimeOf(s.first), sqldb.TimeOf(s.last)
		out = append(out, of)
	}
	slices.SortFunc(out, func(a, b Slice) int {
		return cmp.Or(
			strings.Compare(a.Broker, b.Broker), strings.Compare(a.Source, b.Source), strings.Compare(a.Topic, b.Topic),
			strings.Compare(a.Group, b.Group), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Format, b.Format), cmp.Compare(a.State.code(), b.State.code()),
			cmp.Compare(a.RedriveCount, b.RedriveCount), cmp.Compare(a.Sends, b.Sends), cmp.Compare(a.LastAt.UnixMilli(), b.LastAt.UnixMilli()),
		)
	})
	return out, nil
}
