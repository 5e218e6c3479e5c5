package consumer

import "sync"

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
	lines   []*line
	turn    int // the line to look at first
	workers []*worker
	idle    []*worker
	jobs    int  // that none has
	busy    int  // workers that have one
	calling bool // a worker is on its way
	closed  bool

	working sync.WaitGroup
}

// line is the jobs of a topic that wait, and its slots. It belongs to the pool.
type line struct {
	number int // in lines
	limit  int // jobs at once
	busy   int // of those
	jobs   [][]*delivery
	head   int // of jobs
}

// add queues a job.
func (p *pool) add(l *line, job []*delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.jobs = append(l.jobs, job)
	p.jobs++
	p.call()
}

// free reports whether a job of l could start now.
func (p *pool) free(l *line) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.busy+len(l.jobs)-l.head < l.limit && (p.most == 0 || p.busy+p.jobs < p.most)
}

// next returns a job for w, waiting for one; nil once there will be none.
func (p *pool) next(w *worker) []*delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.line != nil {
		w.line.busy--
		p.busy--
		w.line = nil
	}
	l := p.ready()
	for ; l == nil; l = p.ready() {
		if p.closed {
			return nil
		}
		p.idle = append(p.idle, w)
		p.mu.Unlock()
		<-w.called
		p.mu.Lock()
		p.calling = false
	}
	w.line = l
	l.busy++
	p.busy++
	p.jobs--
	p.turn = l.number + 1
	job := l.take()
	p.call()
	return job
}

// ready returns the next line, in turn, that has a job and a slot for it; nil
// if none has. mu is held.
func (p *pool) ready() *line {
	if p.jobs == 0 || p.most > 0 && p.busy >= p.most {
		return nil
	}
	for i := range p.lines {
		if l := p.lines[(p.turn+i)%len(p.lines)]; l.head < len(l.jobs) && l.busy < l.limit {
			return l
		}
	}
	return nil
}

// take removes the oldest job.
func (l *line) take() []*delivery {
	job := l.jobs[l.head]
	l.jobs[l.head] = nil
	l.head++
	switch {
	case l.head == len(l.jobs):
		l.jobs, l.head = l.jobs[:0], 0
	case l.head >= 1024 && l.head > len(l.jobs)/2:
		l.jobs = append(l.jobs[:0], l.jobs[l.head:]...)
		l.head = 0
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
	for _, l := range p.lines {
		left = append(left, l.jobs[l.head:]...)
		l.jobs, l.head = nil, 0
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
