package kafka

import "container/heap"

// index holds the records of a delay partition that wait, in the order in
// which they become due. Records of one millisecond leave in the order of the log.
type index struct {
	heap dueFirst
}

// waiting is a record that is not due yet.
type waiting struct {
	due    int64 // Unix milliseconds
	offset int64
}

// indexKept is the capacity that an index keeps however empty it is.
const indexKept = 128

// dueFirst is a heap of which only heap.Fix is used, which allocates nothing.
type dueFirst []waiting

func (h dueFirst) Len() int      { return len(h) }
func (h dueFirst) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (dueFirst) Push(any)        {}
func (dueFirst) Pop() any        { return nil }

func (h dueFirst) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].offset < h[j].offset
}

// add adds a record that is due at the given Unix milliseconds.
func (x *index) add(offset, due int64) {
	x.heap = append(x.heap, waiting{due: due, offset: offset})
	heap.Fix(&x.heap, len(x.heap)-1)
}

// len returns how many records wait.
func (x *index) len() int { return len(x.heap) }

// next returns when the first record is due, if there is one.
func (x *index) next() (due int64, ok bool) {
	if len(x.heap) == 0 {
		return 0, false
	}
	return x.heap[0].due, true
}

// pop removes the first record and returns it, if it is due at now, which is in
// Unix milliseconds.
func (x *index) pop(now int64) (offset, due int64, ok bool) {
	if len(x.heap) == 0 || x.heap[0].due > now {
		return 0, 0, false
	}
	first := x.heap[0]
	if last := x.cut(); len(x.heap) > 0 {
		x.heap[0] = last
		heap.Fix(&x.heap, 0)
	}
	return first.offset, first.due, true
}

// cut removes and returns a record that is not among the first.
func (x *index) cut() waiting {
	end := len(x.heap) - 1
	w := x.heap[end]
	x.heap = x.heap[:end]
	x.shrink()
	return w
}

// shrink gives memory back when three quarters of it are empty.
func (x *index) shrink() {
	if c := cap(x.heap); c > indexKept && len(x.heap) < c/4 {
		x.heap = append(make([]waiting, 0, max(c/2, indexKept)), x.heap...)
	}
}
