package store

import (
	"context"
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
func (s *Store) Breakdown(ctx context.Context, f Filter) ([]Slice, error) {
	return sqldb.Result(ctx, s.read, func(tx conn) ([]Slice, error) {
		if err := f.validate(); err != nil {
			return nil, err
		}
		if f.readsContent() {
			list, err := tx.findAll(ctx, f)
			if err != nil || len(list) == 0 {
				return nil, err
			}
			f = Filter{IDs: list}
		}
		return tx.breakDown(ctx, f)
	})
}

// findAll returns the numbers of all letters that f selects.
func (c conn) findAll(ctx context.Context, f Filter) (list ids, err error) {
	for at := (search{from: start(true), rising: true, limit: maxRead}); ; {
		found, err := c.find(ctx, f, at)
		if err != nil {
			return nil, err
		}
		list = append(list, idsOf(found.keys)...)
		if at.from = found.next; !found.more {
			return list, nil
		}
	}
}

// breakDown adds letters up by cluster, and clusters by what slices have of them.
func (c conn) breakDown(ctx context.Context, f Filter) ([]Slice, error) {
	of := f.ofRow()
	// Without the index by cluster, which would read each row on its own.
	query := `select t.broker, t.source, t.topic, c.consumers, c.reason, c.format, s.state, s.stub, s.redrives, s.sends,
			cast(sum(s.letters) as bigint), cast(sum(s.bytes) as bigint), min(s.first), max(s.last)
		from (select +l.cluster as cluster, l.state, l.stub, l.redrives, l.sends, count(*) as letters, sum(l.size) as bytes, min(l.at) as first, max(l.at) as last
			from letters l where ` + of.String() + ` group by +l.cluster, l.state, l.stub, l.redrives, l.sends) s
		join clusters c on c.id = s.cluster join topics t on t.id = c.topic
		group by t.broker, t.source, t.topic, c.consumers, c.reason, c.format, s.state, s.stub, s.redrives, s.sends
		order by t.broker, t.source, t.topic, c.consumers, c.reason, c.format, s.state, s.redrives, s.sends, max(s.last)`
	return sqldb.All(ctx, c.Tx, query, of.args, func(s *Slice) []any {
		return []any{
			&s.Broker, &s.Source, &s.Topic, &s.Group, &s.Reason, &s.Format, intoState(&s.State), sqldb.IntoBool(&s.Stub), &s.RedriveCount, &s.Sends,
			&s.Letters, &s.Bytes, sqldb.IntoTime(&s.FirstAt), sqldb.IntoTime(&s.LastAt),
		}
	})
}
