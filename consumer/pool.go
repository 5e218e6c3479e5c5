package consumer

import (
	"slices"
	"sync"
	"sync/atomic"
)

// pool is the workers and the jobs that wait for them. Each topic has slots of
// its own, so that a slow one takes none from another; most bounds them all
// together. Workers are started as they are needed, and the one that was idle
// last is woken first.
// At most one worker is on its way to a job at a time: when it has taken it
// and more wait, it calls the next one before it starts. Quick handlers are so
// left to few workers, and slow ones have as many as they need at once.
type pool struct {
	start func() *worker
	most  int // 0 means no limit

	mu      sync.Mutex
	queues  []*topicQueue
	turn    int // the queue to begin with
	workers []*worker
	idle    []*worker
	jobs    int  // that none has
	busy    int  // workers that have one
	calling bool // a worker is on its way
	closed  bool

	working sync.WaitGroup
}

// topicQueue is the jobs of a topic that wait, and its slots. It belongs to the pool.
type topicQueue struct {
	number int          // in queues
	limit  int          // jobs at once
	busy   atomic.Int32 // of those; written under the mu of the pool
	jobs   [][]*delivery
	head   int // of jobs
}

// add queues a job.
func (p *pool) add(q *topicQueue, job []*delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.jobs = append(q.jobs, job)
	p.jobs++
	p.call()
}

// free reports whether a job of q could start now.
func (p *pool) free(q *topicQueue) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(q.busy.Load())+len(q.jobs)-q.head < q.limit && (p.most == 0 || p.busy+p.jobs < p.most)
}

// next returns a job for w, waiting for one; nil once there will be none.
func (p *pool) next(w *worker) []*delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.queue != nil {
		w.queue.busy.Add(-1)
		p.busy--
		w.queue, w.job = nil, nil
	}
	q := p.ready()
	for ; q == nil; q = p.ready() {
		if p.closed {
			return nil
		}
		p.idle = append(p.idle, w)
		p.mu.Unlock()
		<-w.called
		p.mu.Lock()
		p.calling = false
	}
	w.queue = q
	q.busy.Add(1)
	p.busy++
	p.jobs--
	p.turn = q.number + 1
	w.job = q.take()
	p.call()
	return w.job
}

// all returns what waits for a worker, and what workers have.
func (p *pool) all() (ds []*delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		ds = append(ds, slices.Concat(q.jobs[q.head:]...)...)
	}
	for _, w := range p.workers {
		ds = append(ds, w.job...)
	}
	return ds
}

// ready returns the next queue, in turn, that has a job and a slot for it; nil
// if none has. mu is held.
func (p *pool) ready() *topicQueue {
	if p.jobs == 0 || p.most > 0 && p.busy >= p.most {
		return nil
	}
	for i := range p.queues {
		if q := p.queues[(p.turn+i)%len(p.queues)]; q.head < len(q.jobs) && int(q.busy.Load()) < q.limit {
			return q
		}
	}
	return nil
}

// take removes the oldest job.
func (q *topicQueue) take() []*delivery {
	job := q.jobs[q.head]
	q.jobs[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.jobs):
		q.jobs, q.head = q.jobs[:0], 0
	case q.head >= 1024 && q.head > len(q.jobs)/2:
		q.jobs = append(q.jobs[:0], q.jobs[q.head:]...)
		q.head = 0
	}
	return job
}

// call gets one more worker to come if a job can be done and none is on its
// way. mu is held.
func (p *pool) call() {
	if p.calling || p.ready() == nil {
		return
	}
	p.calling = true
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		w.called <- struct{}{}
		return
	}
	w := p.start()
	p.workers = append(p.workers, w)
	p.working.Go(func() {
		p.mu.Lock()
		p.calling = false // it is ready for its first job
		p.mu.Unlock()
		w.loop()
	})
}

// close has the workers stop when they are done, and returns the jobs that none
// has taken.
func (p *pool) close() (left [][]*delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, q := range p.queues {
		left = append(left, q.jobs[q.head:]...)
		q.jobs, q.head = nil, 0
		p.jobs = 0
	}
	for _, w := range p.idle {
		w.called <- struct{}{}
	}
	p.idle = nil
	return left
}

// members returns the workers there are.
func (p *pool) members() []*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[:len(p.workers):len(p.workers)]
}
