package main

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/kafka"
	"github.com/redrive-go/redrive/retry"
)

const (
	kafkaEnv         = "REDRIVE_KAFKA_URL" // Kafka 4.3
	kafkaBacklog     = 1_000_000           // messages that each contender consumes in a round
	kafkaLarge       = 50_000              // the same of 10 KiB
	kafkaOutstanding = 100_000             // retries that wait together
	kafkaWaiting     = 1_000_000           // those whose memory is measured
)

// kafkaConfig is redrive's. It may hold what fails in a second at most.
var kafkaConfig = consumer.Config{Prefetch: 5000, MaxHeld: 50_000}

// kafkaLater has a message come back after 12 to 36 s: the first of 100,000 is
// due when all have failed.
var kafkaLater = consumer.Config{
	Guard: unguarded, Prefetch: kafkaConfig.Prefetch,
	Retry: retry.Policy{Backoff: retry.Backoff{Base: 36 * time.Second, Cap: 36 * time.Second, Floor: 12 * time.Second}},
}

// kafkaSession is one run of the command on one Kafka.
type kafkaSession struct{ world *kafka.World }

// kafkaArea measures the adapter on Kafka 4.3, and its throughput on a fake in
// this process too.
func kafkaArea(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	address, err := brokerAt(kafkaEnv)
	if err != nil {
		return nil, nil, err
	}
	s, many, large := &kafkaSession{kafka.NewWorld(address, 4)}, kafka.NewWorld(address, 300), kafka.NewWorld(address, 4)
	large.Size = 10 << 10
	closing := func(ctx context.Context) error {
		return errors.Join(s.world.Close(ctx), many.Close(ctx), large.Close(ctx))
	}
	return []figure.Measurement{
		{Name: "throughput", Run: s.throughput("kafka"), Figures: []*figure.Figure{
			figure.AtLeast("kafka_vs_raw", "ratio", 0.9),
			figure.AtLeast("kafka_vs_watermill", "ratio", 5),
		}},
		{Name: "franz-go", Run: franz("", s.world, kafkaBacklog), Figures: []*figure.Figure{
			figure.AtLeast("kafka_vs_franz", "ratio", 0.6),
			figure.AtLeast("kafka_default_vs_tuned", "ratio", 0.9),
		}},
		{Name: "franz-go, 300 partitions", Run: franz("_300", many, kafkaBacklog), Figures: []*figure.Figure{
			figure.AtLeast("kafka_vs_franz_300", "ratio", 0.5),
			figure.AtLeast("kafka_default_vs_tuned_300", "ratio", 0.9),
		}},
		{Name: "franz-go, 10 KiB", Run: franz("_10k", large, kafkaLarge), Figures: []*figure.Figure{
			figure.Reported("kafka_vs_franz_10k", "ratio"), figure.Reported("kafka_default_vs_tuned_10k", "ratio"),
		}},
		{Name: "bytes", Run: s.allocated, Figures: []*figure.Figure{
			figure.AtMost("kafka_bytes_per_message", "B", 900),
		}},
		{Name: "failures", Run: s.failures, Figures: []*figure.Figure{
			figure.AtLeast("kafka_fail1", "ratio", 0.9),
			figure.AtLeast("kafka_fail10", "ratio", 0.6),
		}},
		{Name: "lateness", Run: punctuality(s.world, kafkaLater, "kafka", 1, kafkaOutstanding), Figures: []*figure.Figure{
			figure.AtMost("kafka_late_p99_ms", "ms", 20),
			figure.AtMost("kafka_early", "retries", 0),
		}},
		{Name: "waiting", Run: s.waiting, Figures: []*figure.Figure{
			figure.AtMost("kafka_bytes_per_waiting", "B", 64),
			figure.AtMost("kafka_restart_s", "s", 10),
		}},
		{Name: "kill", Run: s.killed, Figures: []*figure.Figure{
			figure.AtMost("kafka_repeated_after_kill", "records", 0), // what the killed one did in its last second
		}},
		{Name: "filled range", Run: s.filledRange},
		starting(address, 300),
		starting(address, 1000),
		{Name: "throughput on a fake", Run: onFake, Figures: []*figure.Figure{ // last: it leaves a large heap
			figure.AtLeast("kfake_vs_raw", "ratio", 0.9),
			figure.AtLeast("kfake_vs_watermill", "ratio", 5),
			figure.Reported("kafka_vs_franz_kfake", "ratio"), figure.Reported("kafka_default_vs_tuned_kfake", "ratio"),
		}},
	}, closing, nil
}

func onFake(ctx context.Context, samples *figure.Samples) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return err
	}
	defer cluster.Close()
	w := kafka.NewWorld(strings.Join(cluster.ListenAddrs(), ","), 4)
	return errors.Join((&kafkaSession{w}).throughput("kfake")(ctx, samples), franz("_kfake", w, kafkaBacklog)(ctx, samples))
}

// throughput compares redrive with its peers, for the figures prefix_vs_raw and
// prefix_vs_watermill.
func (s *kafkaSession) throughput(prefix string) func(context.Context, *figure.Samples) error {
	return func(ctx context.Context, samples *figure.Samples) error {
		all, err := s.contest(ctx, "throughput", 3, []entrant{
			{"raw-reader", kafkaBacklog, s.world.RawReader(1000).Time},
			{"redrive", kafkaBacklog, contender.Redrive(s.world, consumer.Config{Prefetch: kafkaConfig.Prefetch}).Time},
			{"raw-group", kafkaBacklog, s.world.RawGroup(10<<20, 1000).Time},
			{"watermill", kafkaBacklog, s.world.Watermill().Time},
		})
		raw := all.fastest("raw-reader", "raw-group")
		figure.Note("the faster of the raw ones is %s", raw)
		all.compare(samples, prefix+"_vs_raw", "redrive", raw)
		all.compare(samples, prefix+"_vs_watermill", "redrive", "watermill")
		return err
	}
}

// franz compares redrive with franz-go, from the forming of the group on, and on its
// default Config with itself.
func franz(suffix string, w *kafka.World, messages int) func(context.Context, *figure.Samples) error {
	return func(ctx context.Context, samples *figure.Samples) error {
		tuned := contender.Redrive(w, consumer.Config{Prefetch: kafkaConfig.Prefetch})
		all, err := (&kafkaSession{w}).contest(ctx, "franz", 3, []entrant{
			{"franz-go", messages, w.SinceJoined(w.Franz())},
			{"redrive", messages, w.SinceJoined(tuned)},
			{"redrive-default", messages, w.SinceJoined(contender.Redrive(w, consumer.Config{}))},
		})
		all.compare(samples, "kafka_vs_franz"+suffix, "redrive", "franz-go")
		all.compare(samples, "kafka_default_vs_tuned"+suffix, "redrive-default", "redrive")
		return err
	}
}

// allocated measures the bytes that a message takes from the heap, in the second half
// of a backlog: buffers have their size then.
func (s *kafkaSession) allocated(ctx context.Context, samples *figure.Samples) error {
	const from = kafkaBacklog / 2
	topics, err := s.world.Fill(ctx, kafkaBacklog, "bytes")
	if err != nil {
		return err
	}
	var at [2]runtime.MemStats
	for range figure.Rounds(ctx, 3) {
		s.world.NextGroup()
		handled := 0
		_, err := contender.Contender(func(ctx context.Context, queue string, handle func()) error {
			var mu sync.Mutex
			return contender.Redrive(s.world, kafkaConfig)(ctx, queue, func() {
				mu.Lock()
				defer mu.Unlock()
				switch handled++; handled {
				case from:
					runtime.ReadMemStats(&at[0])
				case kafkaBacklog:
					runtime.ReadMemStats(&at[1])
				}
				handle()
			})
		}).Time(ctx, topics[0], kafkaBacklog)
		if err != nil {
			return err
		}
		samples.Add("kafka_bytes_per_message", float64(at[1].TotalAlloc-at[0].TotalAlloc)/(kafkaBacklog-from))
	}
	return nil
}

// failures compares redrive with itself when nothing fails, in more rounds: what
// 1 % of failures cost is less than by how much two rounds differ.
func (s *kafkaSession) failures(ctx context.Context, samples *figure.Samples) error {
	all, err := s.contest(ctx, "failures", 7, []entrant{
		{"fail0", kafkaBacklog, failing(s.world, kafkaConfig, 0)},
		{"fail1", kafkaBacklog, failing(s.world, kafkaConfig, 1)},
		{"fail10", kafkaBacklog, failing(s.world, kafkaConfig, 10)},
	})
	all.compare(samples, "kafka_fail1", "fail1", "fail0")
	all.compare(samples, "kafka_fail10", "fail10", "fail0")
	return err
}

// contest lets the entrants consume one topic, each in groups of its own: twice,
// of which the second time counts. While an entrant does so first, for a second
// or two, its heap grows, and every page of that costs as much as some messages:
// a worker has that once.
func (s *kafkaSession) contest(ctx context.Context, topic string, rounds int, entrants []entrant) (rates, error) {
	topics, err := s.world.Fill(ctx, entrants[0].n, topic)
	if err != nil {
		return nil, err
	}
	return contest(ctx, rounds, entrants, unprepared, func(round int, e entrant) (rate float64, err error) {
		figure.Note("%s, round %d, twice:", e.name, round+1)
		for range 2 {
			s.world.NextGroup()
			var once error
			rate, once = e.rate(ctx, s.world, topics[0])
			err = errors.Join(err, once)
		}
		return rate, err
	})
}
