package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/operate/store"
)

// descs describe the metrics.
type descs struct {
	up, letters, oldest, newGroups, bytes *prometheus.Desc
	jobs, pausedFor                       *prometheus.Desc
	collected, collectPaused, collectLag  *prometheus.Desc
	receipts                              *prometheus.Desc
	diskFree, diskSize                    *prometheus.Desc
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("redrive_"+name, help, labels, nil)
	}
	return descs{
		up:            desc("store_up", "1 if the store answers; otherwise 0, and what it would say is missing."),
		letters:       desc("letters", "Letters in the store. The topic is one of the configuration, or other.", "broker", "topic", "state"),
		oldest:        desc("letters_oldest_seconds", "How long ago the oldest letter died that nobody has dealt with; 0 if there is none.", "broker", "topic"),
		bytes:         desc("letters_bytes", "Size of the messages in the store.", "broker", "topic"),
		newGroups:     desc("letter_groups_new", "Groups of letters that failed alike, which were first seen in the last hour."),
		jobs:          desc("jobs", "Jobs that send letters back and have not ended.", "state"),
		pausedFor:     desc("jobs_paused_seconds", "How long ago the job paused that has been paused for longest; 0 if there is none."),
		collected:     desc("collected_letters_total", "Letters that came from the broker: new ones, those that the store knew, and those that it refused and that stay there.", "broker", "result"),
		collectPaused: desc("collect_paused", "1 while no dead letters are collected from the topic, because it is missing, the broker or the store fails, or a limit is reached; otherwise 0.", "broker", "topic"),
		collectLag:    desc("collect_lag_seconds", "How long before it was collected the latest letter had died.", "broker"),
		receipts:      desc("receipts_total", "Receipts that were read: believed, forged or stale, and unreadable ones.", "broker", "result"),
		diskFree:      desc("store_disk_free_bytes", "What the disk of a store in a file has left."),
		diskSize:      desc("store_disk_bytes", "Size of the disk of a store in a file."),
	}
}

// metrics are those of a Server. It implements prometheus.Collector.
type metrics struct {
	server *Server
	descs  descs
}

func newMetrics(s *Server) *metrics { return &metrics{s, newDescs()} }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	d := m.descs
	for _, desc := range []*prometheus.Desc{
		d.up, d.letters, d.oldest, d.newGroups, d.bytes, d.jobs, d.pausedFor, d.collected, d.collectPaused, d.collectLag,
		d.receipts, d.diskFree, d.diskSize,
	} {
		out <- desc
	}
}

// scrapeTimeout is how long the store may take to answer a scrape.
const scrapeTimeout = 5 * time.Second

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	to := sink(out)
	up := 1.0
	if err := m.collectStore(ctx, to); err != nil {
		up = 0
	}
	to.gauge(m.descs.up, up)
	m.collectReading(to)
	if free, size, err := m.server.Store.Disk(); err == nil && size > 0 {
		to.gauge(m.descs.diskFree, float64(free))
		to.gauge(m.descs.diskSize, float64(size))
	}
}

type sink chan<- prometheus.Metric

func (s sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (s sink) counter(d *prometheus.Desc, value int64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
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

// collectStore collects what the store says. It sends nothing after an error.
func (m *metrics) collectStore(ctx context.Context, to sink) error {
	now := time.Now()
	var names []string
	for _, t := range m.server.Config.Topics {
		names = append(names, t.Name)
	}
	stats, err := m.server.Store.Stats(ctx, now, names...)
	if err != nil {
		return err
	}
	running, paused, since, err := m.jobs(ctx)
	if err != nil {
		return err
	}
	for at, h := range m.holdings(stats) {
		for _, state := range store.States() {
			to.gauge(m.descs.letters, float64(h.counts[state]), at.Broker, at.Name, string(state))
		}
		to.gauge(m.descs.oldest, age(h.oldest, now), at.Broker, at.Name)
		to.gauge(m.descs.bytes, float64(h.bytes), at.Broker, at.Name)
	}
	to.gauge(m.descs.newGroups, float64(stats.NewClusters))
	to.gauge(m.descs.jobs, float64(running), string(store.JobRunning))
	to.gauge(m.descs.jobs, float64(paused), string(store.JobPaused))
	to.gauge(m.descs.pausedFor, age(since, now))
	return nil
}

func age(t, now time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, now.Sub(t).Seconds())
}

// holdings are what the store has, by the topics of the configuration.
func (m *metrics) holdings(stats store.Stats) map[store.Topic]*holding {
	found := map[store.Topic]*holding{}
	at := func(topic store.Topic) *holding {
		if found[topic] == nil {
			found[topic] = &holding{counts: map[store.State]int64{}}
		}
		return found[topic]
	}
	for _, t := range m.server.Config.Topics {
		at(store.Topic{Broker: t.Broker, Name: t.Name})
	}
	for _, t := range stats.Topics {
		topic := store.Topic{Broker: t.Broker, Name: t.Topic}
		if m.server.Config.Brokers[t.Broker] == nil {
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
func (m *metrics) jobs(ctx context.Context) (running, paused int, since time.Time, err error) {
	list, err := m.server.Store.UnfinishedJobs(ctx)
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

// collectReading collects what is read from the brokers.
func (m *metrics) collectReading(to sink) {
	for broker, s := range m.server.Statuses() {
		to.counter(m.descs.collected, s.Added, broker, "new")
		to.counter(m.descs.collected, s.Known, broker, "known")
		to.counter(m.descs.collected, s.Refused, broker, "refused")
		for topic, why := range s.Paused {
			paused := 0.0
			if why != nil {
				paused = 1
			}
			to.gauge(m.descs.collectPaused, paused, broker, topic)
		}
		to.gauge(m.descs.collectLag, s.Lag.Seconds(), broker)
	}
	for broker, r := range m.server.receiptCounts() {
		to.counter(m.descs.receipts, r.Believed, broker, "believed")
		to.counter(m.descs.receipts, r.Forged, broker, "forged")
		to.counter(m.descs.receipts, r.Unreadable, broker, "unreadable")
	}
}
