package service

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"sync"
	"time"
)

// Heap is a [Schedule] in the process: a heap for each tenant. It never fails.
//
// What is not due soon waits in buckets, of about a second each, so that a Take costs
// the same however many wait.
type Heap struct {
	mu      sync.Mutex
	rows    map[int64]position // of every task
	tenants map[string]*line
	waiting lines             // those whose first task is not due yet, by its time
	turns   []*line           // the others, in the order of their turns
	far     map[int64][]entry // what is not in the lines, by bucket
	buckets buckets           // those in far, a heap
	near    int64             // all buckets up to this one are in the lines
	entries int               // in lines and buckets
	moves   uint64
}

// NewHeap returns an empty Heap.
func NewHeap() *Heap {
	h := &Heap{rows: map[int64]position{}}
	h.reset()
	return h
}

func (h *Heap) reset() {
	h.tenants, h.far = map[string]*line{}, map[int64][]entry{}
	h.waiting, h.turns, h.buckets = nil, nil, nil
	h.near, h.entries = math.MinInt64, 0
}

// position is where a task is: entries of it with another move are stale. They stay
// where they are until they are first, or are too many.
type position struct {
	at   int64 // Unix milliseconds
	move uint64
}

type entry struct {
	position
	row    int64
	tenant string
}

// bucket is the one of a time.
func bucket(at int64) int64 { return at >> 10 }

// line has the tasks of one tenant that are near.
type line struct {
	tenant  string
	entries entries // never empty outside of Add and Take
	index   int     // in Heap.waiting; -1 while it has a turn
}

// Add implements [Schedule].
func (h *Heap) Add(_ context.Context, tasks ...Due) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range tasks {
		at := d.At.UnixMilli()
		if old, known := h.rows[d.Row]; known && old.at == at {
			continue
		}
		h.moves++
		p := position{at, h.moves}
		h.rows[d.Row] = p
		h.insert(entry{p, d.Row, d.Tenant})
	}
	if h.entries > 2*len(h.rows)+1000 {
		h.compact()
	}
	return nil
}

func (h *Heap) insert(e entry) {
	h.entries++
	if b := bucket(e.at); b > h.near {
		if h.far[b] == nil {
			heap.Push(&h.buckets, b)
		}
		h.far[b] = append(h.far[b], e)
		return
	}
	l := h.tenants[e.tenant]
	if l == nil {
		l = &line{tenant: e.tenant, entries: entries{e}}
		h.tenants[e.tenant] = l
		heap.Push(&h.waiting, l)
		return
	}
	heap.Push(&l.entries, e)
	if l.index >= 0 {
		heap.Fix(&h.waiting, l.index)
	}
}

func (h *Heap) stale(e entry) bool { return h.rows[e.row] != e.position }

// compact drops what is stale.
func (h *Heap) compact() {
	tenants, far := h.tenants, h.far
	h.reset()
	keep := func(some []entry) {
		for _, e := range some {
			if !h.stale(e) {
				h.insert(e)
			}
		}
	}
	for _, l := range tenants {
		keep(l.entries)
	}
	for _, some := range far {
		keep(some)
	}
}

// Take implements [Schedule].
func (h *Heap) Take(_ context.Context, now time.Time, n int) (due []Due, next time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := now.UnixMilli()
	h.load(limit)
	for h.arrange(limit); len(due) < n && len(h.turns) > 0; h.arrange(limit) {
		l := h.turns[0]
		e := h.pop(l)
		delete(h.rows, e.row)
		due = append(due, Due{Row: e.row, Tenant: e.tenant, At: time.UnixMilli(e.at)})
		h.turns = h.turns[1:]
		if h.clean(l) {
			h.turns = append(h.turns, l)
		}
	}
	return due, h.next(), nil
}

// load brings what is due by then, and what is in the same bucket, into the lines.
func (h *Heap) load(limit int64) {
	h.near = max(h.near, bucket(limit))
	for len(h.buckets) > 0 && h.buckets[0] <= h.near {
		b := heap.Pop(&h.buckets).(int64)
		some := h.far[b]
		delete(h.far, b)
		h.entries -= len(some)
		for _, e := range some {
			if !h.stale(e) {
				h.insert(e)
			}
		}
	}
}

// next is when the first task is due, or its bucket begins.
func (h *Heap) next() time.Time {
	switch {
	case len(h.turns) > 0:
		return time.UnixMilli(h.turns[0].entries[0].at)
	case len(h.waiting) > 0:
		return time.UnixMilli(h.waiting[0].entries[0].at)
	case len(h.buckets) > 0:
		return time.UnixMilli(h.buckets[0] << 10)
	}
	return time.Time{}
}

// arrange gives turns to tenants that wait and have something due, and takes them
// from those at the front that have nothing. Then what is first of turns is due, and
// what is first of waiting is not.
func (h *Heap) arrange(limit int64) {
	for len(h.waiting) > 0 {
		l := h.waiting[0]
		first := l.entries[0].at
		if !h.clean(l) {
			heap.Pop(&h.waiting)
			continue
		}
		if l.entries[0].at != first {
			heap.Fix(&h.waiting, 0)
			continue
		}
		if first > limit {
			break
		}
		heap.Pop(&h.waiting)
		h.turns = append(h.turns, l)
	}
	for len(h.turns) > 0 {
		l := h.turns[0]
		some := h.clean(l)
		if some && l.entries[0].at <= limit {
			return
		}
		h.turns = h.turns[1:]
		if some {
			heap.Push(&h.waiting, l)
		}
	}
}

// clean drops stale entries from the front, and forgets a tenant without any other.
func (h *Heap) clean(l *line) bool {
	for len(l.entries) > 0 {
		if !h.stale(l.entries[0]) {
			return true
		}
		h.pop(l)
	}
	delete(h.tenants, l.tenant)
	return false
}

func (h *Heap) pop(l *line) entry {
	h.entries--
	return heap.Pop(&l.entries).(entry)
}

// Close implements [Schedule]: there is nothing to let go of.
func (h *Heap) Close() error { return nil }

// entries is a heap.Interface, by time and then by row.
type entries []entry

func (e entries) Len() int { return len(e) }
func (e entries) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].row, e[j].row)) < 0
}
func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *entries) Push(x any)   { *e = append(*e, x.(entry)) }
func (e *entries) Pop() any     { return popLast((*[]entry)(e)) }

// lines is a heap.Interface, by the time of the first task.
type lines []*line

func (l lines) Len() int           { return len(l) }
func (l lines) Less(i, j int) bool { return l[i].entries[0].at < l[j].entries[0].at }
func (l lines) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}
func (l *lines) Push(x any) {
	x.(*line).index = len(*l)
	*l = append(*l, x.(*line))
}
func (l *lines) Pop() any {
	x := popLast((*[]*line)(l))
	x.index = -1
	return x
}

// buckets is a heap.Interface.
type buckets []int64

func (b buckets) Len() int           { return len(b) }
func (b buckets) Less(i, j int) bool { return b[i] < b[j] }
func (b buckets) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *buckets) Push(x any)        { *b = append(*b, x.(int64)) }
func (b *buckets) Pop() any          { return popLast((*[]int64)(b)) }

// popLast removes the last element, and leaves no pointer of it behind.
func popLast[T any](list *[]T) T {
	last := len(*list) - 1
	var zero, x T
	x, (*list)[last] = (*list)[last], zero
	*list = (*list)[:last]
	return x
}
