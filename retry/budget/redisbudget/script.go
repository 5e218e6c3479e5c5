package redisbudget

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lease.lua
var leaseSource string

// span asks for n retries spread over the slots from and before to.
type span struct{ from, to, n int64 }

// pair is a slot and a number that belongs to it.
type pair struct{ slot, n int64 }

// request is what a worker sends in one call.
type request struct {
	delivered []pair
	held      []pair // leases that Redis forgot
	wants     []span
	seat      int64
	epoch     string
	calls     int64
}

// answer is what the script returns.
type answer struct {
	time    int64 // of the server's clock, in nanoseconds since 1970
	epoch   string
	calls   int64 // of all workers in the epoch
	settled bool
	seat    int64 // -1: all are taken
	limit   int64 // of the pool, for a window
	open    []pair
	granted []pair
}

// once is a command that the client must not repeat: a repeated call would
// count its deliveries twice.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// arguments returns the ARGV of the script.
func (b *Budget) arguments(r request) []any {
	args := []any{
		int64(b.width / time.Microsecond), horizon, lag, settle,
		strconv.FormatFloat(b.share, 'g', -1, 64), b.poolFloor, maxLimit,
		b.id, r.seat, b.seats, r.epoch, r.calls,
	}
	for _, pairs := range [][]pair{r.delivered, r.held} {
		args = append(args, len(pairs))
		for _, p := range pairs {
			args = append(args, p.slot, p.n)
		}
	}
	args = append(args, len(r.wants))
	for _, w := range r.wants {
		args = append(args, w.from, w.to, w.n)
	}
	return args
}

// lease runs the script, and loads it into a server that does not have it.
func (b *Budget) lease(ctx context.Context, r request) (answer, error) {
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
		reply, err = run("eval", leaseSource)
	}
	if err != nil {
		return answer{}, err
	}
	return parse(reply)
}

// parse reads a reply: eight fields, pairs of open slots, pairs of grants.
func parse(reply any) (answer, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) < 8 {
		return answer{}, fmt.Errorf("the answer is not one of the script: %.80v", reply)
	}
	var a answer
	var bad error
	next := 0
	number := func() int64 {
		n, err := strconv.ParseInt(fmt.Sprint(fields[next]), 10, 64)
		if err != nil && bad == nil {
			bad = fmt.Errorf("field %d of the answer: %w", next, err)
		}
		next++
		return n
	}
	seconds, micros := number(), number()
	if bad == nil && (seconds <= 0 || seconds >= 1<<33 || micros < 0 || micros >= 1e6) {
		bad = fmt.Errorf("the server's time is %d s and %d µs", seconds, micros)
	}
	a.time = seconds*int64(time.Second) + micros*int64(time.Microsecond)
	a.epoch = fmt.Sprint(fields[next])
	next++
	a.calls, a.settled, a.seat, a.limit = number(), number() == 1, number(), number()
	open := number()
	if rest := int64(len(fields) - next); bad == nil && (open < 0 || open > rest/2 || rest%2 != 0) {
		bad = fmt.Errorf("%d of %d pairs of the answer are open slots", open, rest/2)
	}
	for bad == nil && next < len(fields) {
		p := pair{number(), number()}
		if int64(len(a.open)) < open {
			a.open = append(a.open, p)
		} else {
			a.granted = append(a.granted, p)
		}
	}
	return a, bad
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
