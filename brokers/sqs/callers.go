package sqs

import "sync"

// callers make calls to SQS side by side. While a source is open, a goroutine
// that has made one waits for the next: the SDK goes so deep that a new one would
// grow its stack several times for each.
type callers struct {
	next chan func()

	mu   sync.Mutex
	open int           // sources
	over chan struct{} // closed while there are none
}

func newCallers() *callers {
	c := &callers{next: make(chan func()), over: make(chan struct{})}
	close(c.over)
	return c
}

// enter is told of a source that is opened.
func (c *callers) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open++; c.open == 1 {
		c.over = make(chan struct{})
	}
}

// leave is told of a source that has ended.
func (c *callers) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open--; c.open == 0 {
		close(c.over)
	}
}

// start has call made by a goroutine that is free, or a new one. Whoever starts
// it waits for it.
func (c *callers) start(call func()) {
	select {
	case c.next <- call:
	default:
		go c.run(call)
	}
}

func (c *callers) run(call func()) {
	for {
		call()
		c.mu.Lock()
		over := c.over
		c.mu.Unlock()
		select {
		case call = <-c.next:
		case <-over:
			return
		}
	}
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
