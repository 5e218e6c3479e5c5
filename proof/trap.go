package main

import (
	"sync"
)

// point is where a worker process is killed.
type point string

const (
	anywhere      point = "random"
	afterReceive  point = "after_receive"  // deliveries are about to be handed to the consumer
	inHandler     point = "in_handler"     // at least one handler runs
	beforeConfirm point = "before_confirm" // the broker has confirmed the copy of a retry, and the worker does not know
	beforeAck     point = "before_ack"     // the worker knows, of a dead letter or a retry, and is about to write the ack of that message
	inBurial      point = "in_dead_letter" // the broker has confirmed a dead letter, and the worker does not know
	inDrain       point = "in_drain"       // told to stop, and not yet down

	byMessage point = "by_message" // in the handler of a message that kills
)

var points = []point{anywhere, afterReceive, inHandler, beforeConfirm, beforeAck, inBurial, inDrain}

// trap stops a worker process at a point, for the driver to kill it there. A
// nil trap lets everything pass.
type trap struct {
	tell func(point)

	mu    sync.Mutex // kept by who is caught, so that others stop at the next point, too
	armed point
}

func (t *trap) arm(p point) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = p
}

// spring does not return: the driver kills the process.
func (t *trap) spring() {
	t.tell(byMessage)
	select {}
}

// reach does not return if the trap is armed for p.
func (t *trap) reach(p point) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.armed == p {
		t.tell(p)
		select {}
	}
}
