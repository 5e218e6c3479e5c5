package memory

// queue holds entries in the order of their seq. Entries that arrive in order
// cost O(1); the others, which came back, O(log n) of those.
type queue struct {
	fifo []*entry // ascending from head on
	head int
	back []*entry // a heap
}

func (q *queue) len() int { return len(q.fifo) - q.head + len(q.back) }

func (q *queue) push(e *entry) {
	if n := len(q.fifo); n > q.head && q.fifo[n-1].seq > e.seq {
		q.pushBack(e)
		return
	}
	if q.head > 0 && len(q.fifo) == cap(q.fifo) && q.head >= len(q.fifo)/2 {
		n := copy(q.fifo, q.fifo[q.head:])
		clear(q.fifo[n:])
		q.fifo, q.head = q.fifo[:n], 0
	}
	q.fifo = append(q.fifo, e)
}

// front returns the first entry; the queue must not be empty.
func (q *queue) front() *entry {
	if q.backFirst() {
		return q.back[0]
	}
	return q.fifo[q.head]
}

func (q *queue) pop() *entry {
	if q.backFirst() {
		return q.popBack()
	}
	e := q.fifo[q.head]
	q.fifo[q.head] = nil
	q.head++
	if q.head == len(q.fifo) {
		q.fifo, q.head = q.fifo[:0], 0
	}
	return e
}

func (q *queue) backFirst() bool {
	if len(q.back) == 0 {
		return false
	}
	return q.head == len(q.fifo) || q.back[0].seq < q.fifo[q.head].seq
}

func (q *queue) pushBack(e *entry) {
	q.back = append(q.back, e)
	i := len(q.back) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if q.back[parent].seq < e.seq {
			break
		}
		q.back[i] = q.back[parent]
		i = parent
	}
	q.back[i] = e
}

func (q *queue) popBack() *entry {
	first, n := q.back[0], len(q.back)-1
	last := q.back[n]
	q.back[n] = nil
	q.back = q.back[:n]
	i := 0
	for child := 1; child < n; child = 2*i + 1 {
		if child+1 < n && q.back[child+1].seq < q.back[child].seq {
			child++
		}
		if last.seq < q.back[child].seq {
			break
		}
		q.back[i] = q.back[child]
		i = child
	}
	if n > 0 {
		q.back[i] = last
	}
	return first
}
