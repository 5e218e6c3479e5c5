package serve

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// Server works with the brokers, topics and store of a configuration. All fields
// but Logger are required.
type Server struct {
	Config  *config.Config
	Store   *store.Store
	Brokers *Brokers

	// Owner tells others who works on a job, such as anna@host.
	Owner string

	// Web says how ServeOn accepts connections.
	Web web.Options

	// Logger gets what an operator should know. Default slog.Default().
	Logger *slog.Logger

	mu         sync.Mutex
	collectors map[string]*watched // by broker, as receipts are
	receipts   map[string]*job.Receipts

	storeUp web.StoreUp
}

func (s *Server) log() *slog.Logger {
	if s.Logger == nil {
		return slog.Default()
	}
	return s.Logger
}

// byBroker puts the topics of the brokers together that of says of each topic.
func byBroker(topics []config.Topic, of func(config.Topic) []string) map[string][]string {
	found := map[string][]string{}
	for _, t := range topics {
		if names := of(t); len(names) > 0 {
			found[t.Broker] = append(found[t.Broker], names...)
		}
	}
	for broker, names := range found {
		slices.Sort(names)
		found[broker] = slices.Compact(names)
	}
	return found
}

func deadOf(t config.Topic) []string { return t.Dead }

func receiptsOf(t config.Topic) []string {
	if t.Receipts == "" {
		return nil
	}
	return []string{t.Receipts}
}

// isLog reports whether a broker is a log, in which letters stay.
func (s *Server) isLog(broker string) bool { return s.Config.Brokers[broker].Kind == config.Kafka }

// Group is the consumer group that dead letters and receipts of a broker are read
// with, where there are groups.
func Group(b *config.Broker) string { return cmp.Or(b.Group, collect.Group) }

// watched is the state of the collecting from a broker.
type watched struct {
	mu      sync.Mutex
	before  collect.Result                  // the sum of the collectors that have ended
	now     map[*collect.Collector][]string // the topics of the collectors that work
	stopped map[string]error                // why a topic without a collector failed; nil if it did not fail
	lag     time.Duration
}

// Status is what is collected from a broker.
type Status struct {
	collect.Result

	// Paused has each topic with dead letters, and the reason why no letter is
	// received from it now. The reason is nil while letters are received.
	Paused map[string]error

	// Lag is how long before it was collected the latest letter had died.
	Lag time.Duration
}

func (w *watched) status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{Result: w.before, Paused: maps.Clone(w.stopped), Lag: w.lag}
	for c, topics := range w.now {
		now := c.Status()
		s.Result = sum(s.Result, now.Result)
		for _, topic := range topics {
			s.Paused[topic] = now.Paused
		}
	}
	return s
}

func sum(a, b collect.Result) collect.Result {
	return collect.Result{
		Received: a.Received + b.Received, Added: a.Added + b.Added, Known: a.Known + b.Known,
		Refused: a.Refused + b.Refused, Unacked: a.Unacked + b.Unacked,
	}
}

// Statuses returns what is collected from each broker.
func (s *Server) Statuses() map[string]Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Status{}
	for broker, w := range s.collectors {
		all[broker] = w.status()
	}
	return all
}

// watch returns the state of the collecting from a broker, and adds topics to
// it.
func (s *Server) watch(broker string, topics []string) *watched {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.collectors == nil {
		s.collectors = map[string]*watched{}
	}
	if s.collectors[broker] == nil {
		s.collectors[broker] = &watched{now: map[*collect.Collector][]string{}, stopped: map[string]error{}}
	}
	w := s.collectors[broker]
	w.stop(topics, nil)
	return w
}

// Collect takes the dead letters of topics into the store, those of each broker
// beside the others, until there are none left. The error joins what went wrong.
func (s *Server) Collect(ctx context.Context, topics []config.Topic) error {
	sources := byBroker(topics, deadOf)
	errs := make(chan error, len(sources))
	for broker, dead := range sources {
		go func() { errs <- s.collector(broker, dead, false).run(ctx, dead) }()
	}
	var all []error
	for range sources {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// collector is a keeper that collects the dead letters of topics.
func (s *Server) collector(broker string, topics []string, lasts bool) *keeper {
	w := s.watch(broker, topics)
	k := &keeper{server: s, broker: broker, what: "collecting dead letters", lasts: lasts, tell: w.stop}
	k.work = func(ctx context.Context, source brokers.Source, topics []string) error {
		return s.collectFrom(ctx, broker, source, topics, w, lasts)
	}
	return k
}

// collectFrom collects from the source of topics, and closes the source.
func (s *Server) collectFrom(ctx context.Context, broker string, source brokers.Source, topics []string, w *watched, follow bool) error {
	limits := collect.Limits{FreeDisk: float64(s.Config.Collect.FreeDisk) / 100, Letters: int64(s.Config.Collect.MaxLetters)}
	c, err := collect.New(collect.Config{
		Store: lagging{s.Store, w}, Source: source, Broker: broker, Log: s.isLog(broker), Limits: limits, Follow: follow, Logger: s.log().With("topics", topics),
	})
	if err != nil {
		return errors.Join(err, closeSource(ctx, source))
	}
	w.begin(c, topics)
	_, err = c.Run(ctx)
	w.end(c, topics)
	return errors.Join(err, closeSource(ctx, source))
}

func (w *watched) begin(c *collect.Collector, topics []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now[c] = topics
}

func (w *watched) end(c *collect.Collector, topics []string) {
	w.stop(topics, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = sum(w.before, c.Status().Result)
	delete(w.now, c)
}

// stop notes why topics are not collected.
func (w *watched) stop(topics []string, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, topic := range topics {
		w.stopped[topic] = why
	}
}

// lagging notes how late letters are collected.
type lagging struct {
	*store.Store
	w *watched
}

// Collect implements collect.Store.
func (l lagging) Collect(ctx context.Context, now time.Time, letters []store.Collected) (int, error) {
	n, err := l.Store.Collect(ctx, now, letters)
	if err == nil {
		l.w.late(now, letters)
	}
	return n, err
}

func (w *watched) late(now time.Time, letters []store.Collected) {
	var latest time.Time
	for _, letter := range letters {
		if died := letter.Entry.DeadAt; died.After(latest) && !died.After(now) {
			latest = died
		}
	}
	if !latest.IsZero() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lag = now.Sub(latest)
	}
}

// Closing is how long a source or broker may take to close when the work is
// over. On SQS, closing waits for open polls, up to 20 s.
const Closing = 30 * time.Second

func closeSource(ctx context.Context, source brokers.Source) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Closing)
	defer cancel()
	return source.Close(ctx)
}
