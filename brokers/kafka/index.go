package kafka

// index holds the records of a delay partition that wait, in the order in
// which they become due: a heap in which every entry has up to indexArity
// children, which lie next to each other in memory. Records of one millisecond
// leave in the order of the log.
type index struct {
	heap []waiting
}

// waiting is a record that is not due yet.
type waiting struct {
	due    int64 // Unix milliseconds
	offset int64
}

const (
	indexArity = 4

	// indexKept is the capacity that an index keeps however empty it is.
	indexKept = 128
)

func (w waiting) before(other waiting) bool {
	return w.due < other.due || w.due == other.due && w.offset < other.offset
}

// add adds a record that is due at the given Unix milliseconds.
func (x *index) add(offset, due int64) {
	w := waiting{due: due, offset: offset}
	x.heap = append(x.heap, w)
	i := len(x.heap) - 1
	for i > 0 {
		parent := (i - 1) / indexArity
		if !w.before(x.heap[parent]) {
			break
		}
		x.heap[i] = x.heap[parent]
		i = parent
	}
	x.heap[i] = w
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
	end := len(x.heap) - 1
	w := x.heap[end]
	x.heap = x.heap[:end]
	if end > 0 {
		x.sink(w)
	}
	x.shrink()
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

// sink puts w, from the top on, where it belongs.
func (x *index) sink(w waiting) {
	i := 0
	for {
		child := indexArity*i + 1
		if child >= len(x.heap) {
			break
		}
		least := child
		for c := child + 1; c < min(child+indexArity, len(x.heap)); c++ {
			if x.heap[c].before(x.heap[least]) {
				least = c
			}
		}
		if !x.heap[least].before(w) {
			break
		}
		x.heap[i] = x.heap[least]
		i = least
	}
	x.heap[i] = w
}

// shrink gives memory back when three quarters of it are empty.
func (x *index) shrink() {
	if c := cap(x.heap); c > indexKept && len(x.heap) < c/4 {
		x.heap = append(make([]waiting, 0, max(c/2, indexKept)), x.heap...)
	}
}
