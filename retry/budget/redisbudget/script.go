package redisbudget

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget/internal/pace"
)

//go:embed budget.lua
var source string

const (
	bucketWidth = 8 * time.Second // of the line in the script
	buckets     = int(pace.Longest/bucketWidth) + 2
)

// report is what happened to a worker since its latest call.
type report struct {
	delivered int64
	refunded  int64
	line      [buckets]uint32 // retries told to ask again, by how far ahead
	deferred  int64           // sum of line
}

// request is what a worker sends in one call.
type request struct {
	report
	elapsed       time.Duration // that the report is about
	surplus, want int           // leases
	seat          int64
}

// answer is what the script returns.
type answer struct {
	seat    int64 // -1: all are taken
	granted int
	pool
}

// pool is the state of the tokens in Redis.
type pool struct {
	tokens, capacity, limit float64
	line                    pace.Line
}

// once is a command that the client must not repeat: a repeated call would
// count its deliveries twice.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// arguments returns the ARGV of the script.
func (b *Budget) arguments(r request) []any {
	args := []any{
		b.share, b.floor,
		pace.Span.Seconds(), pace.Saved.Seconds(), pace.HalfLife.Seconds(), pace.LeastPeak, pace.Longest.Seconds(),
		pace.Sample, pace.Failing, pace.Passing, pace.Smooth, pace.Forget, pace.Quiet, pace.Trial, pace.Backoff, pace.Growth,
		b.id, r.seat, b.seats,
		r.delivered, r.refunded, r.elapsed.Seconds(), r.surplus, r.want,
	}
	for ahead, n := range r.line {
		if n > 0 {
			args = append(args, ahead, n)
		}
	}
	return args
}

// exchange runs the script, and loads it into a server that does not have it.
func (b *Budget) exchange(ctx context.Context, r request) (answer, error) {
	args := b.arguments(r)
	run := func(command, script string) (any, error) {
		b.trips.Add(1)
		c := once{redis.NewCmd(ctx, append([]any{command, script, 1, b.key}, args...)...)}
		c.SetFirstKeyPos(3)
		_ = b.client.Process(ctx, c)
		return c.Result()
	}
	reply, err := run("evalsha", b.script)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = run("eval", source)
	}
	if err != nil {
		return answer{}, err
	}
	return parse(reply, r.want)
}

// parse reads a reply to a call that wanted so many tokens.
func parse(reply any, want int) (answer, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) != 9 {
		return answer{}, fmt.Errorf("the answer is not one of the script: %.80v", reply)
	}
	var n [9]float64
	for i, field := range fields {
		var err error
		if n[i], err = strconv.ParseFloat(fmt.Sprint(field), 64); err != nil || math.IsNaN(n[i]) || math.Abs(n[i]) > 1e15 {
			return answer{}, fmt.Errorf("field %d of the answer is no number: %.80v", i, field)
		}
	}
	if n[1] < 0 || n[1] > float64(want) {
		return answer{}, fmt.Errorf("the answer grants %v tokens of %d", n[1], want)
	}
	if n[3] <= 0 || n[4] <= 0 || n[5] <= 0 || n[6] <= 0 || n[7] < 0 || n[8] < 0 {
		return answer{}, fmt.Errorf("the answer has a number out of range: %.80v", fields)
	}
	return answer{seat: int64(n[0]), granted: int(n[1]), pool: pool{
		tokens: n[2], capacity: n[3], limit: n[4],
		line: pace.Line{
			Ceiling: n[5], Rate: n[6], Waiting: n[7],
			Age: time.Duration(min(n[8], 1e9) * float64(time.Second)),
		},
	}}, nil
}

// evicting returns the policy by which the server removes keys to save memory;
// "" if it keeps them, or does not say.
func (b *Budget) evicting(ctx context.Context) string {
	b.trips.Add(1)
	info, err := b.client.Info(ctx, "memory").Result()
	if err != nil {
		return ""
	}
	var limit, policy string
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			limit = value
		case "maxmemory_policy":
			policy = value
		}
	}
	if limit == "" || limit == "0" || policy == "noeviction" {
		return ""
	}
	return policy
}
