package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/tasks"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/redisschedule"
)

// manyTasks wait, where it is said what that costs.
const manyTasks = 1_000_000

// serviceSession is one run of the command on a Redis.
type serviceSession struct {
	redis  *redis.Client
	prefix string // of the keys of all schedules
	dir    string
}

// serviceArea measures the retry service: on time, beside programs that somebody would
// write by hand, and with a million tasks that wait.
func serviceArea(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	client, err := onRedis()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "figures-service-")
	if err != nil {
		return nil, nil, err
	}
	s := &serviceSession{client, fmt.Sprintf("figures-%d", time.Now().UnixNano()), dir}
	return []figure.Measurement{
		{Name: "punctuality", Run: s.punctuality, Figures: []*figure.Figure{figure.AtMost("due_p99_ms", "ms", 5)}},
		{Name: "posts", Run: s.posts, Figures: []*figure.Figure{
			figure.AtLeast("task_api_vs_insert", "ratio", 0.5),
			figure.AtLeast("task_api_vs_insert_postgres", "ratio", 0.5),
		}},
		{Name: "claims", Run: s.claims, Figures: []*figure.Figure{
			figure.AtLeast("sqlite_tasks_vs_raw", "ratio", 0.5),
			figure.AtLeast("pg_tasks_vs_raw", "ratio", 0.5),
		}},
		{Name: "heap", Run: heapOfMany, Figures: []*figure.Figure{figure.AtMost("claim_flat_heap", "ratio", 1.3)}},
		{Name: "a schedule in Redis", Run: s.inRedis, Figures: []*figure.Figure{
			figure.AtMost("claim_flat_redis", "ratio", 1.3),
			figure.AtMost("redis_bytes_waiting", "B/task", 200),
		}},
		{Name: "rebuild", Run: s.rebuild, Limit: time.Hour, Figures: []*figure.Figure{figure.Reported("rebuild_s", "s")}},
	}, s.close, nil
}

func (s *serviceSession) close(ctx context.Context) error {
	keys, err := s.redis.Keys(ctx, "*"+s.prefix+"*").Result()
	if err == nil && len(keys) > 0 {
		err = s.redis.Unlink(ctx, keys...).Err()
	}
	return errors.Join(err, s.redis.Close(), os.RemoveAll(s.dir))
}

// punctuality has 500 tasks a second come due, for ten seconds in each round.
func (s *serviceSession) punctuality(ctx context.Context, samples *figure.Samples) error {
	const rounds, n, interval = 5, 5_000, 2 * time.Millisecond
	for round := range figure.Rounds(ctx, rounds) {
		late, err := tasks.Lateness(ctx, filepath.Join(s.dir, fmt.Sprintf("late-%d.db", round)), n, interval)
		if err != nil {
			return err
		}
		if first := slices.Min(late); first < 0 {
			return fmt.Errorf("a call came %v before it was due", -first)
		}
		figure.Note("lateness p50 %v, p99 %v, at most %v", figure.Median(late), figure.Quantile(late, 0.99), slices.Max(late))
		samples.Add("due_p99_ms", milliseconds(figure.Quantile(late, 0.99)))
	}
	return nil
}

// compare measures two in turn, in each round, and samples what the first is to the
// second.
func compare(ctx context.Context, samples *figure.Samples, name string, rounds int, measure ...func() (float64, error)) error {
	for round := range figure.Rounds(ctx, rounds) {
		var got [2]float64
		for place := range got {
			i := turn(place, round, len(got))
			var err error
			if got[i], err = measure[i](); err != nil {
				return err
			}
		}
		figure.Note("%s: %.4g to %.4g", name, got[0], got[1])
		samples.Add(name, got[0]/got[1])
	}
	return nil
}

// onBoth measures beside a program that is written by hand: on SQLite, and then on
// Postgres.
func (s *serviceSession) onBoth(ctx context.Context, onSQLite, onPostgres string, measure func(name string, p *tasks.Pair) error) error {
	on := func(name, url string) error {
		p, err := tasks.OpenPair(ctx, url)
		if err != nil {
			return err
		}
		return errors.Join(measure(name, p), p.Close())
	}
	err := on(onSQLite, filepath.Join(s.dir, onSQLite))
	server, e := postgrestest.Start()
	if e != nil {
		return errors.Join(err, e)
	}
	defer server.Stop()
	return errors.Join(err, on(onPostgres, server.URL))
}

// posts compares the API with bare inserts, tasks a second. Each is a commit.
func (s *serviceSession) posts(ctx context.Context, samples *figure.Samples) error {
	const rounds, n = 5, 5_000
	return s.onBoth(ctx, "task_api_vs_insert", "task_api_vs_insert_postgres", func(name string, p *tasks.Pair) error {
		return compare(ctx, samples, name, rounds,
			func() (float64, error) { return p.Post(ctx, n) }, func() (float64, error) { return p.Insert(ctx, n) })
	})
}

// claims compares claiming and settling with a loop that claims and marks, tasks a
// second.
func (s *serviceSession) claims(ctx context.Context, samples *figure.Samples) error {
	const rounds, n = 5, 10_000
	return s.onBoth(ctx, "sqlite_tasks_vs_raw", "pg_tasks_vs_raw", func(name string, p *tasks.Pair) error {
		return compare(ctx, samples, name, rounds,
			func() (float64, error) { return p.Settle(ctx, n) }, func() (float64, error) { return p.Mark(ctx, n) })
	})
}

// flat compares a Take of a schedule in which many tasks wait with that of one in
// which a thousand do, in seconds.
func flat(ctx context.Context, samples *figure.Samples, name string, few, many service.Schedule) error {
	const rounds, times = 9, 2000
	one, err := tasks.NewWheel(ctx, few, 1000)
	if err != nil {
		return err
	}
	other, err := tasks.NewWheel(ctx, many, manyTasks)
	if err != nil {
		return err
	}
	return compare(ctx, samples, name, rounds,
		func() (float64, error) { return other.Turn(ctx, times) }, func() (float64, error) { return one.Turn(ctx, times) })
}

func heapOfMany(ctx context.Context, samples *figure.Samples) error {
	return flat(ctx, samples, "claim_flat_heap", service.NewHeap(), service.NewHeap())
}

// inRedis compares in Redis, and asks that for the memory that it took. Those that
// are few do not count.
func (s *serviceSession) inRedis(ctx context.Context, samples *figure.Samples) error {
	few, e1 := redisschedule.New(s.redis, s.prefix+"-few")
	many, e2 := redisschedule.New(s.redis, s.prefix+"-many")
	before, e3 := s.memory(ctx)
	if err := errors.Join(e1, e2, e3); err != nil {
		return err
	}
	if err := flat(ctx, samples, "claim_flat_redis", few, many); err != nil {
		return err
	}
	after, err := s.memory(ctx)
	samples.Add("redis_bytes_waiting", float64(after-before)/manyTasks)
	return err
}

// memory is what Redis has in use.
func (s *serviceSession) memory(ctx context.Context) (int, error) {
	info, err := s.redis.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(info["Memory"]["used_memory"])
}

// rebuild has a service on Postgres find all that wait, beside an empty Redis.
func (s *serviceSession) rebuild(ctx context.Context, samples *figure.Samples) error {
	server, err := postgrestest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	empty, err := redisschedule.New(s.redis, s.prefix+"-empty")
	if err != nil {
		return err
	}
	took, err := tasks.Rebuild(ctx, server.URL, empty, manyTasks)
	if err == nil {
		samples.Add("rebuild_s", took.Seconds())
	}
	return err
}
