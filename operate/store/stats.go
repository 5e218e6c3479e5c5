package store

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Stats is what the store holds, by topic.
type Stats struct {
	// Topics are those that were asked for, as far as there are letters of them, and
	// those with most letters, in the order of their names: at most maxTopics, as a
	// topic is what a letter claims.
	Topics []TopicStats

	// Others are all other topics together. It has no names, and no oldest
	// letter.
	Others TopicStats

	// NewClusters counts those that were first seen in the last hour.
	NewClusters int64
}

// maxTopics bounds Stats.Topics.
const maxTopics = 1000

// TopicStats is what the store holds of one topic's letters from one source.
type TopicStats struct {
	Broker, Source, Topic string

	Counts Counts
	Bytes  int64 // Letter.Size of all of them

	// OldestCollected is the first death among the letters that are collected
	// and nothing else; zero if there are none.
	OldestCollected time.Time
}

// Letters is how many letters the store has, in all states.
func (s Stats) Letters() int64 {
	n := s.Others.Counts.total()
	for _, t := range s.Topics {
		n += t.Counts.total()
	}
	return n
}

// Stats returns counts that are kept up to date, so it costs little. However many
// topics letters claim, those called by names are listed.
func (s *Store) Stats(ctx context.Context, now time.Time, names ...string) (stats Stats, err error) {
	err = s.read(ctx, func(tx conn) error {
		if _, err := tx.Get(ctx, "select count(*) from clusters where created_at > ?", []any{now.Add(-time.Hour)}, &stats.NewClusters); err != nil {
			return err
		}
		if stats.Others, err = tx.allTopics(ctx); err != nil {
			return err
		}
		stats.Topics, err = tx.topics(ctx, names)
		return err
	})
	for _, t := range stats.Topics {
		stats.Others.Bytes -= t.Bytes
		of := t.Counts.all()
		for i, n := range stats.Others.Counts.all() {
			*n -= *of[i]
		}
	}
	return stats, err
}

func (c conn) allTopics(ctx context.Context) (all TopicStats, err error) {
	sums := []string{"coalesce(cast(sum(bytes) as bigint), 0)"}
	for _, s := range States() {
		sums = append(sums, "coalesce(cast(sum("+string(s)+") as bigint), 0)")
	}
	_, err = c.Get(ctx, "select "+strings.Join(sums, ", ")+" from topics", nil, append([]any{&all.Bytes}, all.Counts.dest()...)...)
	return all, err
}

func (c conn) topics(ctx context.Context, names []string) ([]TopicStats, error) {
	var first keys
	for _, name := range names {
		first = append(first, []byte(name))
	}
	largest := "select * from topics order by case when topic in (?) then 0 else 1 end, " + strings.ReplaceAll(counters(""), ",", " +") + " desc, id limit " + strconv.Itoa(maxTopics)
	query := "select t.broker, t.source, t.topic, t.bytes, (select min(l.at) from letters l where l.topic = t.id and l.state = 0), " +
		counters("t.") + " from (" + largest + ") t order by t.broker, t.source, t.topic"
	return sqldb.All(ctx, c.Tx, query, []any{first}, func(t *TopicStats) []any {
		return append([]any{&t.Broker, &t.Source, &t.Topic, &t.Bytes, sqldb.IntoTime(&t.OldestCollected)}, t.Counts.dest()...)
	})
}
