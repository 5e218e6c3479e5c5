// Package redisguard keeps the answers of a Redis from ending the process.
//
// The client library reserves as much memory as a header announces. A header of
// a few bytes can therefore make the library panic, also in its own goroutines.
// It can even make the runtime end the process, which no recover prevents.
// [Protect] checks each answer before the library reads it, and turns the
// remaining panics into errors.
//
// redisstore.New and redisbudget.New protect their clients. Call Protect for a
// store or budget of your own, and compare errors with [ErrMalformed] and
// [ErrPanic].
package redisguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrPanic says that the client library panicked. Whether the server carried
	// out the command is unknown.
	ErrPanic = errors.New("the client of Redis panicked")

	errStale = errors.New("the client of Redis panicked while this connection was open: the connection is not used again")
)

// Protect adds a hook to a client of go-redis. The hook checks the answers on
// all connections that the client opens later, and turns panics of the client
// into errors. In a cluster, it protects the nodes that the client finds later.
// Protect leaves a client without hooks unchanged. It is safe to protect a
// client twice.
func Protect(client any) {
	if c, ok := client.(interface{ AddHook(redis.Hook) }); ok {
		c.AddHook(&hook{})
	}
	if c, ok := client.(interface{ OnNewNode(func(*redis.Client)) }); ok {
		c.OnNewNode(func(node *redis.Client) { node.AddHook(&hook{}) })
	}
	if ring, ok := client.(*redis.Ring); ok { // a ring has its nodes already
		_ = ring.ForEachShard(context.Background(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(&hook{})
			return nil
		})
	}
}

// hook is a redis.Hook. After a command panicked, the oldest version of
// go-redis that this module allows puts its connection back into the pool, with
// half a command written or half an answer read. The hook makes such a
// connection fail.
type hook struct{ panics atomic.Int64 }

// DialHook implements redis.Hook.
func (h *hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		defer h.recovered(&err)
		c, err = next(ctx, network, addr)
		if c == nil || err != nil {
			return c, err
		}
		guarded := &conn{Conn: c, hook: h, opened: h.panics.Load()}
		if s, ok := c.(syscall.Conn); ok { // the pool needs it to see that the server hung up
			return &rawConn{guarded, s}, nil
		}
		return guarded, nil
	}
}

// ProcessHook implements redis.Hook.
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		defer h.recovered(&err, cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		defer h.recovered(&err, cmds...)
		return next(ctx, cmds)
	}
}

// recovered turns a panic into an error of all commands: it is unknown which of
// them the server carried out.
func (h *hook) recovered(err *error, cmds ...redis.Cmder) {
	v := recover()
	if v == nil {
		return
	}
	h.panics.Add(1)
	*err = fmt.Errorf("%w: %v", ErrPanic, v)
	for _, cmd := range cmds {
		cmd.SetErr(*err)
	}
}

// conn is a connection whose answers are checked. It fails after a malformed
// answer and after a panic of the client, so that the client closes it.
type conn struct {
	net.Conn
	hook    *hook
	opened  int64 // hook.panics when the connection was opened
	answers checker
}

// rawConn is a conn whose socket the pool may examine.
type rawConn struct {
	*conn
	syscall.Conn
}

// Read implements net.Conn. It returns the bytes before a malformed header, and
// then the error.
func (c *conn) Read(p []byte) (int, error) {
	if err := c.failure(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if good := c.answers.check(p[:n]); good < n {
		if good == 0 {
			return 0, c.answers.err
		}
		return good, nil
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.failure(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *conn) failure() error {
	if c.hook.panics.Load() != c.opened {
		return errStale
	}
	return c.answers.err
}

// NetConn returns the connection that is checked. go-redis looks for it.
func (c *conn) NetConn() net.Conn { return c.Conn }
