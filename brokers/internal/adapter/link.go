package adapter

import (
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/health"
)

// Link keeps the state of a source's connection. One goroutine at a time changes it,
// and anyone may read it.
type Link struct {
	last atomic.Pointer[health.Connection]
}

// Up says that there is a connection.
func (l *Link) Up() { l.turn(health.Running, nil) }

// Down says that there is none, or why an attempt to connect failed.
func (l *Link) Down(cause error) { l.turn(health.Opening, cause) }

func (l *Link) turn(to health.State, cause error) {
	next, now := l.Connection(), time.Now()
	if next.State != to {
		next.State, next.Since = to, now
	}
	if cause != nil {
		next.Error, next.ErrorAt = cause.Error(), now
	}
	l.last.Store(&next)
}

// Connection returns the latest state.
func (l *Link) Connection() health.Connection {
	if c := l.last.Load(); c != nil {
		return *c
	}
	return health.Connection{}
}
