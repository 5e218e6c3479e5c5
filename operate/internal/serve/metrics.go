package serve

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/store"
)

// scrapeTimeout is how long the store may take to answer a scrape.
const scrapeTimeout = 5 * time.Second

// metrics sends what a Server says of itself.
func (s *Server) metrics(to web.Sink) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s.storeUp.Send(ctx, to, s.storeMetrics(ctx, to), s.Store.TryWrite, s.log())
	s.readingMetrics(to)
	if free, size, err := s.Store.Disk(); err == nil && size > 0 {
		to.Gauge("store_disk_free_bytes", "What the disk of a store in a file has left.", float64(free))
		to.Gauge("store_disk_bytes", "Size of the disk of a store in a file.", float64(size))
	}
}

// holding is what the store has of a topic.
type holding struct {
	counts map[store.State]int64
	bytes  int64
	oldest time.Time
}

// other is the label of what the configuration does not name: letters may claim any
// topic.
const other = "other"

// storeMetrics sends what the store says, and nothing after an error.
func (s *Server) storeMetrics(ctx context.Context, to web.Sink) error {
	now := time.Now()
	var names []string
	for _, t := range s.Config.Topics {
		names = append(names, t.Name)
	}
	stats, err := s.Store.Stats(ctx, now, names...)
	if err != nil {
		return err
	}
	running, paused, since, err := s.jobs(ctx)
	if err != nil {
		return err
	}
	for at, h := range s.holdings(stats) {
		for _, state := range store.States() {
			to.Gauge("letters", "Letters in the store. The topic is one of the configuration, or other.", float64(h.counts[state]), "broker", at.Broker, "topic", at.Name, "state", string(state))
		}
		to.Gauge("letters_oldest_seconds", "How long ago the oldest letter died that nobody has dealt with; 0 if there is none.", web.Age(h.oldest, now), "broker", at.Broker, "topic", at.Name)
		to.Gauge("letters_bytes", "Size of the messages in the store.", float64(h.bytes), "broker", at.Broker, "topic", at.Name)
	}
	to.Gauge("letter_groups_new", "Groups of letters that failed alike, which were first seen in the last hour.", float64(stats.NewClusters))
	for state, n := range map[store.JobState]int{store.JobRunning: running, store.JobPaused: paused} {
		to.Gauge("jobs", "Jobs that send letters back and have not ended.", float64(n), "state", string(state))
	}
	to.Gauge("jobs_paused_seconds", "How long ago the job paused that has been paused for longest; 0 if there is none.", web.Age(since, now))
	return nil
}

// holdings are what the store has, by the topics of the configuration.
func (s *Server) holdings(stats store.Stats) map[store.Topic]*holding {
	found := map[store.Topic]*holding{}
	at := func(topic store.Topic) *holding {
		if found[topic] == nil {
			found[topic] = &holding{counts: map[store.State]int64{}}
		}
		return found[topic]
	}
	for _, t := range s.Config.Topics {
		at(store.Topic{Broker: t.Broker, Name: t.Name})
	}
	for _, t := range stats.Topics {
		topic := store.Topic{Broker: t.Broker, Name: t.Topic}
		if s.Config.Brokers[t.Broker] == nil {
			topic.Broker = other
		}
		if found[topic] == nil {
			topic.Name = other
		}
		at(topic).add(t)
	}
	if stats.Others.Counts != (store.Counts{}) {
		at(store.Topic{Broker: other, Name: other}).add(stats.Others)
	}
	return found
}

func (h *holding) add(t store.TopicStats) {
	for _, state := range store.States() {
		h.counts[state] += t.Counts.Of(state)
	}
	h.bytes += t.Bytes
	if !t.OldestCollected.IsZero() && (h.oldest.IsZero() || t.OldestCollected.Before(h.oldest)) {
		h.oldest = t.OldestCollected
	}
}

// jobs counts those that have not ended.
func (s *Server) jobs(ctx context.Context) (running, paused int, since time.Time, err error) {
	list, err := s.Store.UnfinishedJobs(ctx)
	for _, j := range list {
		switch j.State {
		case store.JobRunning:
			running++
		case store.JobPaused:
			paused++
			if since.IsZero() || j.ChangedAt.Before(since) {
				since = j.ChangedAt
			}
		}
	}
	return running, paused, since, err
}

// readingMetrics sends what is read from the brokers.
func (s *Server) readingMetrics(to web.Sink) {
	for broker, status := range s.Statuses() {
		for result, n := range map[string]int64{"new": status.Added, "known": status.Known, "refused": status.Refused} {
			to.Counter("collected_letters_total", "Letters that came from the broker: new ones, those that the store knew, and those that it refused and that stay there.", n, "broker", broker, "result", result)
		}
		for topic, why := range status.Paused {
			paused := 0.0
			if why != nil {
				paused = 1
			}
			to.Gauge("collect_paused", "1 while no dead letters are collected from the topic, because it is missing, the broker or the store fails, or a limit is reached; otherwise 0.", paused, "broker", broker, "topic", topic)
		}
		to.Gauge("collect_lag_seconds", "How long before it was collected the latest letter had died.", status.Lag.Seconds(), "broker", broker)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for broker, r := range s.receipts {
		c := r.Counts()
		for result, n := range map[string]int64{"believed": c.Believed, "forged": c.Forged, "unreadable": c.Unreadable} {
			to.Counter("receipts_total", "Receipts that were read: believed, forged or stale, and unreadable ones.", n, "broker", broker, "result", result)
		}
	}
}
