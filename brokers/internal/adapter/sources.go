package adapter

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Sources are the open sources of a broker. The zero value has none.
type Sources[S interface {
	comparable
	Close(context.Context) error
}] struct {
	mu     sync.Mutex
	closed bool
	open   map[S]struct{}
}

// Add takes s in, and reports whether it could: not after Close.
func (o *Sources[S]) Add(s S) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	if o.open == nil {
		o.open = make(map[S]struct{})
	}
	o.open[s] = struct{}{}
	return true
}

// Remove forgets a source that is closed.
func (o *Sources[S]) Remove(s S) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, s)
}

// Closed reports whether Close was called.
func (o *Sources[S]) Closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// Open returns the sources that are open.
func (o *Sources[S]) Open() []S {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.open))
}

// Close lets no more in, and closes all that are open, at the same time.
func (o *Sources[S]) Close(ctx context.Context) error {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	open := o.Open()
	errs := make([]error, len(open))
	var work sync.WaitGroup
	for i, s := range open {
		work.Go(func() { errs[i] = s.Close(ctx) })
	}
	work.Wait()
	return errors.Join(errs...)
}
