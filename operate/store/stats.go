package store

import (
	"context"
	"time"
)

// Stats is what the store holds, by topic.
type Stats struct {
	Topics      []TopicStats
	NewClusters int64 // that were first seen in the last hour
}

// TopicStats is what the store holds of one topic's letters from one source.
type TopicStats struct {
	Broker, Source, Topic string

	Counts Counts
	Bytes  int64 // Letter.Size of all of them

	// OldestCollected is the first death among the letters that are collected
	// and nothing else; zero if there are none.
	OldestCollected time.Time
}

// Stats returns counts that are kept up to date, so it costs little.
func (s *Store) Stats(ctx context.Context, now time.Time) (stats Stats, err error) {
	query := `select t.broker, t.source, t.topic, t.bytes,
		(select min(l.at) from letters l where l.topic = t.id and l.state = 0), ` + counters("t.") + `
		from topics t order by t.broker, t.source, t.topic`
	err = s.read(ctx, func(tx conn) error {
		if _, err := tx.get(ctx, "select count(*) from clusters where created_at > ?", []any{now.Add(-time.Hour)}, &stats.NewClusters); err != nil {
			return err
		}
		return tx.each(ctx, query, nil, func(scan func(...any) error) error {
			var t TopicStats
			dest := []any{&t.Broker, &t.Source, &t.Topic, &t.Bytes, intoTime(&t.OldestCollected)}
			err := scan(append(dest, t.Counts.dest()...)...)
			stats.Topics = append(stats.Topics, t)
			return err
		})
	})
	return stats, err
}
