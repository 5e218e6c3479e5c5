// Package redisstore keeps idempotency keys in Redis, for all workers that use
// it.
//
// It keeps the contract of idempotency.Store with one script per call, so that
// each call is indivisible and takes one round trip. Leases and records are
// keys that expire: Redis measures them with its own clock and removes them by
// itself, and the clocks of the workers need not agree. It works on Redis
// Cluster, because a call touches one key.
//
// # What is not promised
//
// Redis keeps what it can. A server that evicts keys to save memory, that is
// not persistent and restarts, or that fails over to a replica which had not
// got the last writes, forgets claims and records; messages behind them are
// handled again if they come again. Use the policy noeviction, and
// persistence.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/redisguard"
)

const defaultPrefix = "redrive:idempotency:"

// Store is an idempotency.Store in Redis.
type Store struct {
	client redis.Scripter
	prefix string
}

// New makes a Store and does not talk to the server. The client stays the
// caller's to close; any of go-redis will do. Set its ContextTimeoutEnabled,
// or calls take as long as its own timeouts and retries let them, whatever
// their context says. Prefix begins the names of the keys in Redis; "" means
// "redrive:idempotency:".
//
// New adds a hook to the client. On connections that the client opens later, a
// malformed answer, or one that announces more than 512 MiB, becomes an error.
// A panic of the client becomes an error, too.
func New(client redis.Scripter, prefix string) (*Store, error) {
	if client == nil {
		return nil, errors.New("redisstore: the client is nil: pass what redis.NewClient returns")
	}
	redisguard.Protect(client)
	if prefix == "" {
		prefix = defaultPrefix
	}
	return &Store{client: client, prefix: prefix}, nil
}

// A key in Redis is a hash: the token, the fingerprint, and done as "1" after
// the success. The scripts get token, fingerprint and milliseconds, and begin
// returns whose the key is, the fingerprint, and the milliseconds left.
var (
	begin = redis.NewScript(`
local token, fingerprint, done = unpack(redis.call('HMGET', KEYS[1], 'token', 'fingerprint', 'done'))
if done then return {'done', fingerprint, redis.call('PTTL', KEYS[1])} end
if token and token ~= ARGV[1] then return {'other', fingerprint, redis.call('PTTL', KEYS[1])} end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fingerprint', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'own', ARGV[2], tonumber(ARGV[3])}`)

	complete = redis.NewScript(`
local token = redis.call('HGET', KEYS[1], 'token')
if token and token ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fingerprint', ARGV[2], 'done', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`)

	release = redis.NewScript(`
local token, done = unpack(redis.call('HMGET', KEYS[1], 'token', 'done'))
if token == ARGV[1] and not done then redis.call('DEL', KEYS[1]) end
return 1`)
)

// Begin implements idempotency.Store.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	reply, err := s.run(ctx, begin, c, lease).Slice()
	if err != nil {
		return idempotency.Record{}, failed("claim", err)
	}
	if len(reply) != 3 {
		return idempotency.Record{}, failed("claim", fmt.Errorf("the server answered %v", reply))
	}
	whose, _ := reply[0].(string)
	fingerprint, _ := reply[1].(string)
	left, _ := reply[2].(int64)
	return idempotency.Record{
		State:       states[whose],
		Fingerprint: fingerprint,
		Left:        time.Duration(max(left, 0)) * time.Millisecond,
	}, nil
}

var states = map[string]idempotency.State{"own": idempotency.Claimed, "done": idempotency.Done}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, c idempotency.Claim, ttl time.Duration) error {
	recorded, err := s.run(ctx, complete, c, ttl).Bool()
	switch {
	case err != nil:
		return failed("record", err)
	case !recorded:
		return idempotency.ErrClaimLost
	}
	return nil
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	if err := s.run(ctx, release, c, 0).Err(); err != nil {
		return failed("release", err)
	}
	return nil
}

func (s *Store) run(ctx context.Context, script *redis.Script, c idempotency.Claim, d time.Duration) *redis.Cmd {
	ms := max(d.Milliseconds(), 1)
	return script.Run(ctx, s.client, []string{s.prefix + c.Key}, c.Token, c.Fingerprint, ms)
}

func failed(what string, err error) error {
	return fmt.Errorf("redisstore: %s an idempotency key: %w", what, err)
}

var _ idempotency.Store = (*Store)(nil)
