package store

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Cluster are the letters of one consumer group that failed alike: all that
// their place, format, reason, class and fingerprint say is the same.
type Cluster struct {
	ID int64

	Broker, Source, Topic, Group, Reason, Class, Format, ErrorType, Fingerprint string

	ErrorText string // of one of the letters

	CreatedAt       time.Time // when the first of its letters was collected
	FirstAt, LastAt time.Time // of the deaths that it has seen
	Counts          Counts
	Bytes           int64 // Letter.Size of all of them
}

// Order is that of clusters.
type Order int

// The orders.
const (
	ByLastDeath Order = iota // the latest death first
	ByOpen                   // most open letters first, see [Counts.Open]
)

// ClusterListing is a page of clusters. See [Listing].
type ClusterListing struct {
	Clusters []Cluster
	Next     string
}

// Clusters returns clusters that have letters which f selects, as far as a
// cluster can tell: the counts are those of all its letters. With Since or Until
// it has seen deaths in that time. Fields that are a letter's own are an error:
// IDs, UpTo, MessageID, Header and Text.
func (s *Store) Clusters(ctx context.Context, f Filter, by Order, p Page) (list ClusterListing, err error) {
	rank := func(g Cluster) key { return key{sqldb.Millis(g.LastAt), g.ID} }
	if by == ByOpen {
		rank = func(g Cluster) key { return key{g.Counts.Open(), g.ID} }
	}
	err = s.readPage(ctx, p, func(tx conn, from key) error {
		if len(f.IDs) > 0 || f.UpTo != 0 || f.MessageID != "" || f.readsContent() {
			return errors.New("clusters have no IDs, message IDs, headers and texts: filter letters by them")
		}
		if err := f.validate(); err != nil {
			return err
		}
		found, err := tx.clusters(ctx, f, by, from, p.limit()+1)
		list.Clusters, list.Next = cut(p, found, rank)
		return err
	})
	return list, err
}

func (c conn) clusters(ctx context.Context, f Filter, by Order, from key, limit int) ([]Cluster, error) {
	rank := "c.last_at"
	if by == ByOpen {
		rank = "(" + openSum("c.") + ")"
	}
	of := f.ofCluster()
	of.and("("+rank+", c.id) < (?, ?)", from.at, from.id)
	f.hasLetters(&of)
	if !f.Since.IsZero() {
		of.and("c.last_at >= ?", f.Since)
	}
	if !f.Until.IsZero() {
		of.and("c.first_at < ?", f.Until)
	}
	query := `select c.id, t.broker, t.source, t.topic, c.consumers, c.reason, c.class, c.format, c.error_type, c.fingerprint,
		c.created_at, c.first_at, c.last_at, c.bytes,
		coalesce((select l.error_text from letters l where l.cluster = c.id order by l.at, l.id limit 1), ''), ` + counters("c.") + `
		from clusters c join topics t on t.id = c.topic where ` + of.String() + `
		order by ` + rank + ` desc, c.id desc limit ` + strconv.Itoa(limit)
	return sqldb.All(ctx, c.Tx, query, of.args, func(g *Cluster) []any {
		return append([]any{
			&g.ID, &g.Broker, &g.Source, &g.Topic, &g.Group, &g.Reason, &g.Class, &g.Format, &g.ErrorType, &g.Fingerprint,
			sqldb.IntoTime(&g.CreatedAt), sqldb.IntoTime(&g.FirstAt), sqldb.IntoTime(&g.LastAt), &g.Bytes, &g.ErrorText,
		}, g.Counts.dest()...)
	})
}
