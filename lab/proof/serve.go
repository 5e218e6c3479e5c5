package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// workerCommand is the first argument of a process that is a worker.
const workerCommand = "worker"

// job is what the command is told, and a worker process by its second argument.
type job struct {
	Broker          string
	Seed            uint64
	Messages, Kills int
	Stops           int  // in good order
	Loops           int  // messages that kill the worker that runs them, each time
	Partitions      int  // on Kafka: of each topic
	Copies          bool // on SQS: no retry in place
	FIFO            bool // on SQS: FIFO queues
	Number, Slot    int
	Start           int64 // of the run, in nanoseconds since 1970
	URL, Tag        string
	Bug             string // planted by a test
}

// serve is the life of a worker process. It speaks with the driver in lines:
// it asks "run ID" and is told how often that message was run before, tells
// "event JSON", "at POINT", "queue NAME" and "exchange NAME", and takes "arm
// POINT" and "stop". When its input ends, so does the process.
func serve(told string, in io.Reader, out, problems io.Writer, bugs map[string]rig) (status int) {
	var j job
	if err := json.Unmarshal([]byte(told), &j); err != nil {
		fmt.Fprintln(problems, "proof: a worker is started by the proof, not by hand:", err)
		return 2
	}
	c := &clerk{out: out, answers: make(chan int)}
	t := &trap{tell: func(p point) { c.tell("at", string(p)) }}
	s := newServedScenario(j)
	l := c.ledger(j)
	b, err := connect(j, t, c.tell)
	if err != nil {
		fmt.Fprintln(problems, "proof:", err)
		return 2
	}
	r := &run{scenario: s, ledger: l, connect: func() brokers.Broker { return b }, rig: bugs[j.Bug], trap: t}
	w := r.connectWorker(j.Number, &s.slots[j.Slot])
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with the process
		c.listen(in, t, func() {
			w.asked.Store(true)
			stop()
			time.Sleep(time.Duration(rand.Int64N(int64(40 * time.Millisecond))))
			t.reach(inDrain)
		})
		os.Exit(3)
	}()
	w.work(ctx)
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	b.Close(closing)
	return 0
}

// clerk speaks with the driver.
type clerk struct {
	mu      sync.Mutex // of out
	out     io.Writer
	asking  sync.Mutex
	answers chan int
}

// ledger is what this worker sees, written to the driver before it goes on. Its
// times count from the start of the run by the clock that all processes share.
func (c *clerk) ledger(j job) *ledger {
	const deliveries = 1_000_000_000 // more than any worker gets
	l := newLedger(nil)
	l.start, l.deliveries, l.count = time.Unix(0, j.Start), j.Number*deliveries, c.count
	l.tell = func(e event) {
		line, err := json.Marshal(e)
		if err != nil {
			panic(fmt.Sprintf("write the ledger: %v", err)) // without one the run proves nothing
		}
		c.tell("event", string(line))
	}
	return l
}

func (c *clerk) tell(what, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintln(c.out, what, name)
}

// count asks how often handlers have started on a message, and counts this
// start.
func (c *clerk) count(id string) int {
	c.asking.Lock()
	defer c.asking.Unlock()
	c.tell("run", id)
	return <-c.answers
}

// listen returns when the input ends.
func (c *clerk) listen(in io.Reader, t *trap, stop func()) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		what, rest, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "run":
			n, _ := strconv.Atoi(rest)
			c.answers <- n
		case "arm":
			t.arm(point(rest))
		case "stop":
			go stop() // must not keep answers waiting
		}
	}
}

// point is where a worker process is killed.
type point string

const (
	anywhere      point = "random"
	afterReceive  point = "after_receive"  // deliveries are about to be handed to the consumer
	inHandler     point = "in_handler"     // at least one handler runs
	beforeConfirm point = "before_confirm" // the broker has confirmed a retry, and the worker does not know
	beforeAck     point = "before_ack"     // the worker knows, of that or of a dead letter, and is about to write an ack
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
