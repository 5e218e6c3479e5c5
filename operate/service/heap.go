package service

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"
)

// Heap is a [Schedule] in the process: a heap for each tenant. It never fails.
type Heap struct {
	mu      sync.Mutex
	rows    map[int64]position // of every task
	tenants map[string]*line
	waiting lines   // those whose first task is not due yet, by its time
	turns   []*line // the others, in the order of their turns
	moves   uint64
}

// NewHeap returns an empty Heap.
func NewHeap() *Heap {
	return &Heap{rows: map[int64]position{}, tenants: map[string]*line{}}
}

// position is where a task is: entries of it with another move are stale. They stay
// where they are until they are first, or are too many.
type position struct {
	at   int64 // Unix milliseconds
	move uint64
}

type entry struct {
	position
	row int64
}

// line has the tasks of one tenant.
type line struct {
	tenant  string
	entries entries // never empty outside of Add and Take
	tasks   int     // entries that are not stale
	index   int     // in Heap.waiting; -1 while it has a turn
}

// Add implements [Schedule].
func (h *Heap) Add(_ context.Context, tasks ...Due) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range tasks {
		h.add(d)
	}
	return nil
}

func (h *Heap) add(d Due) {
	at := d.At.UnixMilli()
	old, known := h.rows[d.Row]
	if known && old.at == at {
		return
	}
	l := h.tenants[d.Tenant]
	fresh := l == nil
	if fresh {
		l = &line{tenant: d.Tenant}
		h.tenants[d.Tenant] = l
	}
	h.moves++
	p := position{at, h.moves}
	h.rows[d.Row] = p
	if !known {
		l.tasks++
	}
	heap.Push(&l.entries, entry{p, d.Row})
	switch {
	case fresh:
		heap.Push(&h.waiting, l)
		return
	case len(l.entries) > 2*l.tasks+64:
		h.compact(l)
	}
	if l.index >= 0 {
		heap.Fix(&h.waiting, l.index)
	}
}

// compact drops what is stale.
func (h *Heap) compact(l *line) {
	kept := l.entries[:0]
	for _, e := range l.entries {
		if h.rows[e.row] == e.position {
			kept = append(kept, e)
		}
	}
	l.entries = kept
	heap.Init(&l.entries)
}

// Take implements [Schedule].
func (h *Heap) Take(_ context.Context, now time.Time, n int) (due []Due, next time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := now.UnixMilli()
	for h.arrange(limit); len(due) < n && len(h.turns) > 0; h.arrange(limit) {
		l := h.turns[0]
		e := heap.Pop(&l.entries).(entry)
		delete(h.rows, e.row)
		l.tasks--
		due = append(due, Due{Row: e.row, Tenant: l.tenant, At: time.UnixMilli(e.at)})
		h.turns = h.turns[1:]
		if h.clean(l) {
			h.turns = append(h.turns, l)
		}
	}
	switch {
	case len(h.turns) > 0:
		next = time.UnixMilli(h.turns[0].entries[0].at)
	case len(h.waiting) > 0:
		next = time.UnixMilli(h.waiting[0].entries[0].at)
	}
	return due, next, nil
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
		if e := l.entries[0]; h.rows[e.row] == e.position {
			return true
		}
		heap.Pop(&l.entries)
	}
	delete(h.tenants, l.tenant)
	return false
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
func (e *entries) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

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
	last := len(*l) - 1
	x := (*l)[last]
	(*l)[last] = nil
	x.index = -1
	*l = (*l)[:last]
	return x
}
