// Package redisschedule is the schedule of a retry service in Redis 7 or Valkey,
// for several processes that share the tasks of one store.
//
// Each tenant has a sorted set of its own, the rows of its tasks by the time when
// they are due, and one more has the tenants by the time when their first task is.
// The names of the keys of tenants have a hash tag, so that a Redis Cluster spreads
// them; every command and script touches one key.
//
// # What is not promised
//
// Redis keeps what it can: one that is emptied, evicts keys or fails over forgets
// tasks, and so does a call whose answer is lost. The sweeper of the service brings
// them back. The times are those of the callers, whose clocks should agree to
// within what delay is tolerable.
package redisschedule

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/redisguard"
)

const defaultPrefix = "redrive:retry"

// none is the time of a first task that is not there.
var none = math.Inf(1)

// mostTenants is among how many tenants that have something due turns are taken.
const mostTenants = 1000

// mostTaken is how many tasks one script takes, which holds Redis up meanwhile.
const mostTaken = 1000

// Schedule is a service.Schedule in Redis. Make one with [New].
type Schedule struct {
	client redis.UniversalClient
	prefix string

	mu   sync.Mutex
	last string // tenant that had its turn
}

var _ service.Schedule = (*Schedule)(nil)

// New returns a schedule, and makes no call. Close closes the client, unless New
// fails. Set ContextTimeoutEnabled in its options, or calls take as long as its own
// timeouts and retries let them, whatever their context says. Prefix begins the names
// of the keys, which are those of one store: two services with one Redis need two.
// It must not have braces; "" means "redrive:retry".
//
// New adds a hook to the client. On connections that the client opens later, a
// malformed answer, or one that announces more than 512 MiB, becomes an error.
// A panic of the client becomes an error, too.
func New(client redis.UniversalClient, prefix string) (*Schedule, error) {
	switch {
	case client == nil:
		return nil, errors.New("redisschedule: the client is nil: pass what redis.NewClient or redis.NewClusterClient returns")
	case strings.ContainsAny(prefix, "{}"):
		return nil, fmt.Errorf("redisschedule: the prefix %q has braces, which decide where a cluster keeps a key: leave them out", prefix)
	case prefix == "":
		prefix = defaultPrefix
	}
	redisguard.Protect(client)
	return &Schedule{client: client, prefix: prefix}, nil
}

// tenants is the key of the index: the tenants by when their first task is due. A
// score may be too early for a moment, which costs a look at the tenant, and is too
// late only if a process dies in the middle of Add.
func (s *Schedule) tenants() string { return "{" + s.prefix + "}:tenants" }

// tasks is the key of what a tenant has.
func (s *Schedule) tasks(tenant string) string { return "{" + s.prefix + ":" + tenant + "}" }

func failed(what string, err error) error {
	return fmt.Errorf("redisschedule: Redis did not %s: %w", what, err)
}

// Add implements service.Schedule. The tasks go in before the index tells of them,
// and that is only ever brought forward here: see settle.
func (s *Schedule) Add(ctx context.Context, tasks ...service.Due) error {
	if len(tasks) == 0 {
		return nil
	}
	members, first := map[string][]redis.Z{}, map[string]float64{}
	for _, d := range tasks {
		at := float64(d.At.UnixMilli())
		members[d.Tenant] = append(members[d.Tenant], redis.Z{Score: at, Member: d.Row})
		if earliest, ok := first[d.Tenant]; !ok || at < earliest {
			first[d.Tenant] = at
		}
	}
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for tenant, all := range members {
			p.ZAdd(ctx, s.tasks(tenant), all...)
		}
		return nil
	})
	if err == nil {
		err = s.bringForward(ctx, first)
	}
	if err != nil {
		return failed("take tasks", err)
	}
	return nil
}

func (s *Schedule) bringForward(ctx context.Context, first map[string]float64) error {
	index := make([]redis.Z, 0, len(first))
	for tenant, at := range first {
		index = append(index, redis.Z{Score: at, Member: tenant})
	}
	if len(index) == 0 {
		return nil
	}
	return s.client.ZAddLT(ctx, s.tenants(), index...).Err()
}

// Take implements service.Schedule.
func (s *Schedule) Take(ctx context.Context, now time.Time, n int) (due []service.Due, next time.Time, err error) {
	limit := now.UnixMilli()
	if n > 0 {
		if due, err = s.takeDue(ctx, limit, n); err != nil {
			return nil, time.Time{}, failed("give tasks", err)
		}
	}
	first, err := s.client.ZRangeWithScores(ctx, s.tenants(), 0, 0).Result()
	if err == nil && len(first) > 0 {
		next = time.UnixMilli(int64(first[0].Score))
	}
	if err != nil && len(due) == 0 {
		return nil, time.Time{}, failed("say what is due next", err)
	}
	return due, next, nil // what was taken is worth more than the error
}

// takeDue takes from the tenants whose turn it is, the same from each, and from those
// that have more until there are n.
func (s *Schedule) takeDue(ctx context.Context, limit int64, n int) (due []service.Due, err error) {
	for len(due) < n {
		tenants, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
			Key: s.tenants(), ByScore: true, Start: "-inf", Stop: limit, Count: mostTenants,
		}).Result()
		if err != nil || len(tenants) == 0 {
			return due, orTaken(due, err)
		}
		room := n - len(due)
		tenants = s.inTurn(tenants, room)
		taken, err := s.claim(ctx, tenants, limit, min(max(room/len(tenants), 1), mostTaken))
		due = append(due, taken...)
		if err != nil {
			return due, orTaken(due, err)
		}
	}
	return due, nil
}

// inTurn returns up to n of tenants: those whose names follow that of the last one
// that had its turn in this process.
func (s *Schedule) inTurn(tenants []string, n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(tenants)
	from := sort.Search(len(tenants), func(i int) bool { return tenants[i] > s.last })
	tenants = slices.Concat(tenants[from:], tenants[:from])
	tenants = tenants[:min(n, len(tenants))]
	s.last = tenants[len(tenants)-1]
	return tenants
}

// orTaken returns err, unless something was taken before: that must not be lost.
func orTaken(due []service.Due, err error) error {
	if len(due) > 0 {
		return nil
	}
	return err
}

// claim is ZPOPMIN with a limit: it removes up to ARGV[2] members with a score of up
// to ARGV[1], and returns them, and the first of the rest, with their scores.
const claim = `
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due / 2 - 1) end
return {due, redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')}`

// claim takes up to share tasks from each tenant.
func (s *Schedule) claim(ctx context.Context, tenants []string, limit int64, share int) (due []service.Due, err error) {
	calls := make([]*redis.Cmd, len(tenants))
	_, failure := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, tenant := range tenants {
			calls[i] = p.Eval(ctx, claim, []string{s.tasks(tenant)}, limit, share)
		}
		return nil
	})
	heads := make(map[string]float64, len(tenants))
	for i, tenant := range tenants {
		taken, head, some, err := parse(calls[i].Result())
		if err != nil {
			failure = err // of this tenant alone, perhaps: the others have been taken from
			continue
		}
		for _, z := range taken {
			row, _ := strconv.ParseInt(z.Member.(string), 10, 64)
			due = append(due, service.Due{Row: row, Tenant: tenant, At: time.UnixMilli(int64(z.Score))})
		}
		heads[tenant] = none
		if some {
			heads[tenant] = head.Score
		}
	}
	if err := s.settle(ctx, heads); err != nil {
		failure = err
	}
	return due, failure
}

// settle tells the index what the tenants have left, and then looks at them once
// more: what was added before the index changed is seen now, and what is added later
// will bring the index forward by itself.
func (s *Schedule) settle(ctx context.Context, heads map[string]float64) error {
	var empty []any
	var left []redis.Z
	for tenant, head := range heads {
		if head == none {
			empty = append(empty, tenant)
		} else {
			left = append(left, redis.Z{Score: head, Member: tenant})
		}
	}
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		if len(empty) > 0 {
			p.ZRem(ctx, s.tenants(), empty...)
		}
		if len(left) > 0 {
			p.ZAdd(ctx, s.tenants(), left...)
		}
		return nil
	})
	if err != nil || len(heads) == 0 {
		return err
	}
	firsts := make(map[string]*redis.ZSliceCmd, len(heads))
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for tenant := range heads {
			firsts[tenant] = p.ZRangeWithScores(ctx, s.tasks(tenant), 0, 0)
		}
		return nil
	})
	if err != nil {
		return err
	}
	earlier := map[string]float64{}
	for tenant, first := range firsts {
		if z := first.Val(); len(z) > 0 && (heads[tenant] == none || z[0].Score < heads[tenant]) {
			earlier[tenant] = z[0].Score
		}
	}
	return s.bringForward(ctx, earlier)
}

// parse reads what the script returns.
func parse(reply any, err error) (taken []redis.Z, head redis.Z, some bool, _ error) {
	if err != nil {
		return nil, head, false, err
	}
	both, _ := reply.([]any)
	if len(both) != 2 {
		return nil, head, false, fmt.Errorf("the answer is not one of the script: %.80v", reply)
	}
	taken, err = scored(both[0])
	if err != nil {
		return nil, head, false, err
	}
	rest, err := scored(both[1])
	if err != nil || len(rest) == 0 {
		return taken, head, false, err
	}
	return taken, rest[0], true, nil
}

// scored reads members, which are rows, and their scores.
func scored(reply any) ([]redis.Z, error) {
	flat, ok := reply.([]any)
	if !ok || len(flat)%2 != 0 {
		return nil, fmt.Errorf("the answer is not one of the script: %.80v", reply)
	}
	all := make([]redis.Z, 0, len(flat)/2)
	for i := 0; i < len(flat); i += 2 {
		member, _ := flat[i].(string)
		text, _ := flat[i+1].(string)
		score, err := strconv.ParseFloat(text, 64)
		if _, noRow := strconv.ParseInt(member, 10, 64); noRow != nil || err != nil {
			return nil, fmt.Errorf("%.40q is no row, or %.40q no time: somebody else uses the key", member, text)
		}
		all = append(all, redis.Z{Score: score, Member: member})
	}
	return all, nil
}

// Close closes the client.
func (s *Schedule) Close() error { return s.client.Close() }
