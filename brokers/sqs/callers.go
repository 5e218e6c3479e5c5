package sqs

import (
	"runtime"
	"sync"
)

// callers make calls to SQS side by side. While a source is open, a goroutine
// that has made one waits for the next: the SDK goes so deep that a new one would
// grow its stack several times for each. The one that has waited least is next,
// whose stack is still in the caches of a processor.
type callers struct {
	mu   sync.Mutex
	open int           // sources
	free []chan func() // of goroutines that wait
}

// enter is told of a source that is opened.
func (c *callers) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
}

// leave is told of a source that has ended.
func (c *callers) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open--; c.open > 0 {
		return
	}
	for _, next := range c.free {
		close(next)
	}
	c.free = nil
}

// start has call made by a goroutine that is free, or a new one. Whoever starts
// it waits for it.
func (c *callers) start(call func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.free) - 1
	if last < 0 {
		go c.run(call)
		return
	}
	c.free[last] <- call
	c.free = c.free[:last]
}

// ballast is a fourth of the 32 KiB to which the SDK makes a stack grow. The
// collector halves a stack of which less than a fourth is in use.
const ballast = 8 << 10

func (c *callers) run(call func()) {
	var used [ballast]byte
	defer runtime.KeepAlive(&used)
	next := make(chan func(), 1)
	for call != nil {
		call()
		if !c.wait(next) {
			return
		}
		call = <-next
	}
}

// wait reports whether there will be something in next.
func (c *callers) wait(next chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 0 {
		c.free = append(c.free, next)
	}
	return c.open > 0
}

// each calls f with every number from 0 up to but not including n at the same
// time, and waits for all.
func (c *callers) each(n int, f func(i int)) {
	var work sync.WaitGroup
	for i := range n - 1 {
		work.Add(1)
		c.start(func() {
			defer work.Done()
			f(i)
		})
	}
	if n > 0 {
		f(n - 1)
	}
	work.Wait()
}
