package storm

import "time"

// kind is what happens at a task's time.
type kind uint8

const (
	due   kind = iota // the message may be called for
	ended             // its call is over
	woken             // the breaker may answer differently
)

// task is a message and the one thing that happens to it next.
type task struct {
	at     time.Duration
	kind   kind
	order  uint64 // among tasks of one time
	place  int    // in the agenda
	queued bool   // in the agenda

	of        uint64 // the message, by number from 1
	calls     int
	calledAt  time.Duration
	failed    bool          // the last call
	failedAt  time.Duration // for the first time
	delay     time.Duration // before the last call
	disturbed bool          // it failed, or was held back
}

// agenda is a heap of tasks by time; those of one time come in the order that
// they were scheduled in.
type agenda struct {
	tasks []*task
	count uint64
}

func (a *agenda) Len() int { return len(a.tasks) }

func (a *agenda) Less(i, j int) bool {
	x, y := a.tasks[i], a.tasks[j]
	return x.at < y.at || x.at == y.at && x.order < y.order
}

func (a *agenda) Swap(i, j int) {
	a.tasks[i], a.tasks[j] = a.tasks[j], a.tasks[i]
	a.tasks[i].place, a.tasks[j].place = i, j
}

func (a *agenda) Push(x any) {
	t := x.(*task)
	t.place, t.queued, t.order = len(a.tasks), true, a.count
	a.count++
	a.tasks = append(a.tasks, t)
}

func (a *agenda) Pop() any {
	last := len(a.tasks) - 1
	t := a.tasks[last]
	a.tasks[last], a.tasks = nil, a.tasks[:last]
	t.queued = false
	return t
}
