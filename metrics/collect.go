package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// descs describe what is computed from series at a scrape.
type descs struct {
	attempts, deliveries, settlements, leasesLost, deadLetters, discarded   *prometheus.Desc
	settleErrors, letterErrors, deadlineErrors, extensions, extensionErrors *prometheus.Desc
	inFlight, running, held, stuck, oldest, lastSuccess                     *prometheus.Desc
	deferred, paused, pauses, byHand, receiveErrors, topicErrors            *prometheus.Desc
	lettersRefused, returned, receiptErrors, receiptsLost, stalled          *prometheus.Desc
	backlog, backlogOldest, letters, lettersOldest, asks                    *prometheus.Desc
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return descs{
		attempts: desc("retry_attempts_total", "Runs of the handler that have ended, first ones too: by what becomes of the message, and by the class of the error.",
			"topic", "policy", "outcome", "class"),
		deliveries: desc("redrive_deliveries_total", "Deliveries received: fresh ones, which were never retried before, and repeats.", "topic", "kind"),
		settlements: desc("redrive_settlements_total", "Deliveries settled: removed (ack), rescheduled in the broker (retry), given back uncounted (release), or left to the broker's own dead-lettering (reject).",
			"topic", "action"),
		leasesLost:      desc("redrive_leases_lost_total", "Deliveries that went to somebody else before they were settled.", "topic"),
		deadLetters:     desc("redrive_dead_letters_total", "Dead letters that are durable.", "topic", "reason"),
		discarded:       desc("redrive_discarded_total", "Messages dropped because there is no dead-letter topic, on purpose.", "topic", "reason"),
		settleErrors:    desc("redrive_settle_errors_total", "Settlements that the broker failed and that are tried again.", "topic", "action"),
		extensions:      desc("redrive_lease_extensions_total", "Extensions of leases: one for each delivery whose lease the broker has extended, each time.", "topic"),
		extensionErrors: desc("redrive_lease_extension_errors_total", "Extensions of a lease that the broker failed and that are tried again, while the lease lasts.", "topic"),
		letterErrors:    desc("redrive_dead_letter_errors_total", "Dead letters that the broker did not take and that are tried again.", "topic"),
		deadlineErrors:  desc("redrive_deadline_errors_total", "Messages whose header redrive-deadline is not a time of RFC 3339. They have no deadline by it.", "topic"),
		lettersRefused: desc("redrive_dead_letters_refused_total",
			"Times that the broker took neither a dead letter nor the message for its own dead-lettering, or that the message was a dead letter itself and not to be discarded: it is kept, and tried again in minutes.", "topic"),
		deferred:      desc("redrive_runs_deferred_total", "Times that a run was put off before it started, which counts as no attempt.", "topic", "reason"),
		inFlight:      desc("redrive_messages_in_flight", "Deliveries that the worker has and has not settled.", "topic"),
		running:       desc("redrive_messages_running", "Messages whose handler runs, each in a slot; those of a batch share one.", "topic"),
		held:          desc("redrive_messages_held", "Messages that wait in the process, for their due time, or until the limit of their dependency lets them start.", "topic"),
		stuck:         desc("redrive_messages_stuck", "Messages whose handler ignores that its context has ended.", "topic"),
		oldest:        desc("redrive_messages_oldest_seconds", "Age of the oldest message that runs or waits in the process, since it was published; 0 if there is none.", "topic"),
		lastSuccess:   desc("redrive_last_success_timestamp_seconds", "When a handler last succeeded; 0 if none has.", "topic"),
		paused:        desc("redrive_paused", "1 while single runs try the dependency out, because practically none succeeds, or while it is paused by hand; otherwise 0.", "dependency"),
		pauses:        desc("redrive_pauses_total", "Times that the dependency began to pause.", "dependency"),
		byHand:        desc("redrive_paused_by_hand", "How many topics, dependencies and tenants people have paused through the worker. The log and /statusz have their names.", "end"),
		receiveErrors: desc("redrive_receive_errors_total", "Failures to receive, each of which is tried again."),
		topicErrors: desc("redrive_topic_errors_total",
			"Times that the worker could receive nothing from the topic while others went on, as after its queue was deleted: a few a minute while that lasts.", "topic"),
		returned:      desc("redrive_returned_runs_total", "Runs of messages that were sent back from a dead-letter queue.", "topic", "result"),
		receiptErrors: desc("redrive_receipt_errors_total", "Failures to publish receipts, each of which is tried again."),
		receiptsLost:  desc("redrive_receipts_dropped_total", "Receipts that are not published: too many waited, the broker refused them, or the worker stopped."),
		stalled:       desc("redrive_partition_stalled", "Partitions of Kafka that the worker owns and that have had more to read for 3 minutes, without getting any further, while their topic is not paused.", "topic"),
		backlog: desc("redrive_backlog_messages", "Messages that the broker has, as it says itself: those that may be delivered (ready), those that are delivered or wait for a retry as if they were (taken), and those that wait for their time elsewhere (delayed).",
			"topic", "state"),
		backlogOldest: desc("redrive_backlog_oldest_seconds", "Age of the oldest message that the broker has of the topic, since it was published.", "topic"),
		letters:       desc("redrive_backlog_dead_letters", "Dead letters in a dead-letter topic, which is the label, that nobody has taken out.", "topic"),
		lettersOldest: desc("redrive_backlog_dead_letters_oldest_seconds", "Age of the oldest of these dead letters, since it was published there.", "topic"),
		asks:          desc("redrive_backlog_asks_total", "Times that the worker asked the broker how much it has: at most every 30 s, and in the background.", "result"),
	}
}

func (d *descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.attempts, d.deliveries, d.settlements, d.leasesLost, d.deadLetters, d.discarded,
		d.settleErrors, d.letterErrors, d.deadlineErrors, d.extensions, d.extensionErrors,
		d.inFlight, d.running, d.held, d.stuck, d.oldest, d.lastSuccess,
		d.deferred, d.paused, d.pauses, d.byHand, d.receiveErrors, d.topicErrors, d.lettersRefused,
		d.returned, d.receiptErrors, d.receiptsLost, d.stalled,
		d.backlog, d.backlogOldest, d.letters, d.lettersOldest, d.asks,
	}
}

type histograms struct{ duration, lateness, age, ageAtEnd *prometheus.HistogramVec }

func newHistograms() histograms {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return histograms{
		duration: histogram("redrive_handler_duration_seconds", "How long handlers ran.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "topic", "result"),
		lateness: histogram("redrive_retry_lateness_seconds", "How long after its due time a retry started.",
			[]float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 900}, "topic"),
		age: histogram("retry_task_age_seconds", "How long after its first failure a message was run again.",
			[]float64{1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600}, "topic", "policy"),
		ageAtEnd: histogram("redrive_message_age_at_end_seconds", "How long after it was published a message ended: a success, a dead letter, or skipped.",
			[]float64{.05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 6 * 3600, 24 * 3600}, "topic"),
	}
}

func (h *histograms) all() []prometheus.Collector {
	return []prometheus.Collector{h.duration, h.lateness, h.age, h.ageAtEnd}
}

func (m *Metrics) newSeries(topic, policy string) *series {
	return &series{
		metrics: m, topic: topic, policy: policy,
		succeeded: m.histograms.duration.WithLabelValues(topic, results[success]),
		failed:    m.histograms.duration.WithLabelValues(topic, results[failure]),
		lateness:  m.histograms.lateness.WithLabelValues(topic),
		age:       m.histograms.age.WithLabelValues(topic, policy),
		ageAtEnd:  m.histograms.ageAtEnd.WithLabelValues(topic),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.descs.all() {
		out <- d
	}
	for _, h := range m.histograms.all() {
		h.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	d := &m.descs
	s := sink(out)
	s.counter(d.receiveErrors, m.receiveErrors.Load())
	s.counter(d.receiptErrors, m.receiptErrors.Load())
	s.counter(d.receiptsLost, m.receiptsLost.Load())
	for i, end := range ends {
		s.gauge(d.byHand, float64(m.byHand[i].Load()), end)
	}
	for name, of := range m.dependencies {
		s.pauses(d, of, name)
	}
	if m.strange.pauses.Load() > 0 && m.dependencies[other] == nil {
		s.pauses(d, &m.strange, other)
	}
	for _, t := range m.topics {
		t.collect(d, s)
	}
	if t := m.other.Load(); t != nil && t != m.topics[other] {
		t.collect(d, s)
	}
	for _, h := range m.histograms.all() {
		h.Collect(out)
	}
	m.collectFollowed(s)
}

func (s *series) collect(d *descs, to sink) {
	s.collectRuns(d, to)
	s.collectEnds(d, to)
	for i, action := range settlements {
		to.counter(d.settleErrors, s.settleErrors[i].Load(), s.topic, action)
	}
	to.counter(d.extensions, s.extensions.Load(), s.topic)
	to.counter(d.extensionErrors, s.extensionErrors.Load(), s.topic)
	to.counter(d.letterErrors, s.letterErrors.Load(), s.topic)
	to.counter(d.deadlineErrors, s.deadlineErrors.Load(), s.topic)
	to.counter(d.lettersRefused, s.lettersRefused.Load(), s.topic)
	to.counter(d.topicErrors, s.topicErrors.Load(), s.topic)
	for i, reason := range deferrals {
		if n := s.putOff[i].Load(); n > 0 || reason != other {
			to.counter(d.deferred, n, s.topic, reason)
		}
	}
	for i, result := range results {
		to.counter(d.returned, s.returned[i].Load(), s.topic, result)
	}
	n, oldest := s.states.count(time.Now())
	to.gauge(d.running, float64(n[running]+n[stuck]), s.topic)
	to.gauge(d.held, float64(n[held]), s.topic)
	to.gauge(d.stuck, float64(n[stuck]), s.topic)
	to.gauge(d.oldest, oldest.Seconds(), s.topic)
	to.gauge(d.lastSuccess, float64(s.lastSuccess.Load())/1e9, s.topic)
}

// collectRuns collects the attempts: the usual ones from the start, so that
// Prometheus sees the first increase, others when there are some.
func (s *series) collectRuns(d *descs, to sink) {
	for o := range outcomes {
		for c := range classes {
			n := s.attempts[o][c].Load()
			if n > 0 || usual(o, c) {
				to.counter(d.attempts, n, s.topic, s.policy, outcomes[o], classes[c])
			}
		}
	}
}

func usual(outcome, class int) bool {
	poison, unknown := classOf("poison"), classOf("unknown")
	switch outcome {
	case succeeded:
		return class == noClass
	case rescheduled:
		return class > noClass && class <= unknown
	case buried:
		return class == poison || class == unknown || class == classOf("transient")
	}
	return false
}

// collectEnds collects how deliveries came and went. Those that end while this
// is read have been received, so that in flight is never negative.
func (s *series) collectEnds(d *descs, to sink) {
	ended := s.leasesLost.Load()
	to.counter(d.leasesLost, ended, s.topic)
	for i, action := range settlements {
		n := s.settled[i].Load()
		ended += n
		to.counter(d.settlements, n, s.topic, action)
	}
	for i, reason := range reasons {
		to.counter(d.deadLetters, s.deadLetters[i].Load(), s.topic, reason)
		if n := s.discarded[i].Load(); n > 0 || i == 0 {
			to.counter(d.discarded, n, s.topic, reason)
		}
	}
	fresh, repeated := s.fresh.Load(), s.repeated.Load()
	to.counter(d.deliveries, fresh, s.topic, "fresh")
	to.counter(d.deliveries, repeated, s.topic, "repeat")
	to.gauge(d.inFlight, float64(fresh+repeated)-float64(ended), s.topic)
}

func (s sink) pauses(d *descs, of *dependency, name string) {
	s.gauge(d.paused, float64(min(1, max(0, of.paused.Load()))), name)
	s.counter(d.pauses, of.pauses.Load(), name)
}

// sink takes metrics whose labels are known to fit.
type sink chan<- prometheus.Metric

func (s sink) counter(d *prometheus.Desc, n uint64, labels ...string) {
	s.total(d, float64(n), labels...)
}

func (s sink) total(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// age is a gauge of how long ago something was, if that is known.
func (s sink) age(d *prometheus.Desc, at, now time.Time, labels ...string) {
	if !at.IsZero() {
		s.gauge(d, max(0, now.Sub(at).Seconds()), labels...)
	}
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}
