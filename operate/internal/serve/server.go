package serve

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// Follow collects the dead letters of topics, and reads the receipts of their
// workers, until ctx ends.
func (s *Server) Follow(ctx context.Context, dead, receipts []config.Topic) {
	var running sync.WaitGroup
	for broker, topics := range byBroker(dead, deadOf) {
		running.Go(func() { _ = s.collector(broker, topics, true).run(ctx, topics) }) // the keeper has logged its errors
	}
	for broker, topics := range byBroker(receipts, receiptsOf) {
		r := s.receiptsOf(broker)
		k := &keeper{server: s, broker: broker, what: "reading receipts", lasts: true}
		k.work = func(ctx context.Context, source brokers.Source, topics []string) error {
			defer func() { _ = closeSource(ctx, source) }() // the error of Run matters
			return r.Run(ctx, source, s.log().With("broker", broker, "topics", topics))
		}
		running.Go(func() { _ = k.run(ctx, topics) })
	}
	running.Wait()
}

// Reads returns the subscriptions that collect dead letters and read receipts
// of a broker: one for each topic.
func Reads(c *config.Config, broker string) (subs []brokers.Subscription) {
	dead, receipts := byBroker(Collected(c), deadOf), byBroker(c.Topics, receiptsOf)
	for _, topic := range slices.Concat(dead[broker], receipts[broker]) {
		subs = append(subs, collect.Subscription(Group(c.Brokers[broker]), topic))
	}
	return subs
}

// receiptsOf returns the receipts of a broker.
func (s *Server) receiptsOf(broker string) *job.Receipts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receipts == nil {
		s.receipts = map[string]*job.Receipts{}
	}
	if s.receipts[broker] == nil {
		s.receipts[broker] = &job.Receipts{Store: s.Store}
	}
	return s.receipts[broker]
}

// Targets are the topics of a configuration that letters may be sent back to.
func Targets(c *config.Config) (targets job.Targets) {
	for _, t := range c.Topics {
		kind := c.Brokers[t.Broker].Kind
		targets = append(targets, job.Target{
			Broker: t.Broker, Topic: t.Name, Dead: t.Dead, Rate: float64(t.Rate),
			Grouped: kind == config.Kafka, Groups: t.Groups,
			Ordered: kind == config.SQS && strings.HasSuffix(t.Name, ".fifo"),
		})
	}
	return targets
}

// Runner works on jobs of the store.
func (s *Server) Runner() *job.Runner {
	return &job.Runner{Store: s.Store, Targets: Targets(s.Config), Open: s.Brokers.Open, Owner: s.Owner, Logger: s.log()}
}

// sweepEvery is how often retention is looked at.
const sweepEvery = time.Hour

// Run collects the dead letters of the topics that are opted in, reads receipts,
// works on jobs and ends what retention is over for, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.Follow(ctx, Collected(s.Config), s.Config.Topics) })
	running.Go(func() { _ = s.Runner().Serve(ctx) }) // its error is why ctx ended
	running.Go(func() { s.sweep(ctx) })
	running.Wait()
}

// Collected are the topics whose dead letters are collected.
func Collected(c *config.Config) (topics []config.Topic) {
	for _, t := range c.Topics {
		if t.Collect {
			topics = append(topics, t)
		}
	}
	return topics
}

func (s *Server) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		swept, err := s.Store.Sweep(ctx, time.Now(), retention(s.Config))
		switch {
		case err != nil && ctx.Err() == nil:
			s.log().Warn("what retention is over for could not be deleted: it is tried again in an hour", "error", err)
		case swept.Letters > 0:
			s.log().Info("letters deleted, for their retention is over", slog.Int64("letters", swept.Letters))
		}
		sleep(ctx, sweepEvery)
	}
}

// retention is that of the configuration. The audit, and jobs, are kept for ever.
func retention(c *config.Config) store.Retention {
	of := func(r config.Retention) store.Retention {
		return store.Retention{Confirmed: r.Confirmed, Returned: r.Returned, Discarded: r.Discarded}
	}
	all := of(c.Retention)
	all.Of = map[store.Topic]store.Retention{}
	for _, t := range c.Topics {
		all.Of[store.Topic{Broker: t.Broker, Name: t.Name}] = of(t.Retention)
	}
	return all
}
