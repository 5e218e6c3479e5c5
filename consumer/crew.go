package consumer

import "sync"

// crew is the workers and the jobs that wait for them. Workers are started as
// they are needed, and the one that was idle last is woken first; up to limit
// of them have a job at once.
// At most one worker is on its way to a job at a time: when it has taken it
// and more wait, it calls the next one before it starts. Quick handlers are so
// left to few workers, and slow ones have as many as they need at once.
type crew struct {
	start func() *worker

	mu      sync.Mutex
	limit   int
	jobs    [][]*run
	head    int // of jobs
	workers []*worker
	idle    []*worker
	busy    int  // workers that have a job
	calling bool // a worker is on its way
	closed  bool

	working sync.WaitGroup
}

// add queues a job.
func (c *crew) add(job []*run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, job)
	c.call()
}

// next returns a job for w, waiting for one; nil once there will be none.
func (c *crew) next(w *worker) []*run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.engaged {
		w.engaged = false
		c.busy--
	}
	for c.head == len(c.jobs) || c.busy >= c.limit {
		if c.closed {
			return nil
		}
		c.idle = append(c.idle, w)
		c.mu.Unlock()
		<-w.called
		c.mu.Lock()
		c.calling = false
	}
	job := c.take()
	w.engaged = true
	c.busy++
	c.call()
	return job
}

// allow changes how many workers may have a job at once.
func (c *crew) allow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = n
	c.call()
}

// arrived says that a new worker is ready for its first job.
func (c *crew) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calling = false
}

// take removes the oldest job. mu is held.
func (c *crew) take() []*run {
	job := c.jobs[c.head]
	c.jobs[c.head] = nil
	c.head++
	switch {
	case c.head == len(c.jobs):
		c.jobs, c.head = c.jobs[:0], 0
	case c.head >= 1024 && c.head > len(c.jobs)/2:
		c.jobs = append(c.jobs[:0], c.jobs[c.head:]...)
		c.head = 0
	}
	return job
}

// call gets one more worker to come if a job waits and none is on its way. mu
// is held.
func (c *crew) call() {
	if c.calling || c.head == len(c.jobs) || c.busy >= c.limit {
		return
	}
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.calling = true
		w.called <- struct{}{}
		return
	}
	if len(c.workers) < c.limit {
		w := c.start()
		c.workers = append(c.workers, w)
		c.calling = true
		c.working.Go(func() {
			c.arrived()
			w.loop()
		})
	}
}

// close lets the workers go home, and returns the jobs that none has taken.
func (c *crew) close() (left [][]*run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	left = c.jobs[c.head:]
	c.jobs, c.head = nil, 0
	for _, w := range c.idle {
		w.called <- struct{}{}
	}
	c.idle = nil
	return left
}

// members returns the workers there are.
func (c *crew) members() []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers[:len(c.workers):len(c.workers)]
}
