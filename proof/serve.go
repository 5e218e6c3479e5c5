package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// workerCommand is the first argument of a process that is a worker.
const workerCommand = "worker"

// job is what a worker process is told by its arguments.
type job struct {
	broker            string
	seed              uint64
	messages, kills   int
	stops             int  // in good order
	loops             int  // messages that kill the worker that runs them, each time
	copies            bool // on SQS: no retry in place
	fifo              bool // on SQS: FIFO queues
	number, slot      int
	start             int64 // of the run, in nanoseconds since 1970
	url, tag, journal string
}

func (j job) args() []string {
	return []string{workerCommand, "-broker", j.broker, "-seed", strconv.FormatUint(j.seed, 10),
		"-messages", strconv.Itoa(j.messages), "-kills", strconv.Itoa(j.kills), "-stops", strconv.Itoa(j.stops), "-loops", strconv.Itoa(j.loops),
		"-copies=" + strconv.FormatBool(j.copies), "-fifo=" + strconv.FormatBool(j.fifo), "-number", strconv.Itoa(j.number), "-slot", strconv.Itoa(j.slot), "-start", strconv.FormatInt(j.start, 10),
		"-url", j.url, "-tag", j.tag, "-journal", j.journal}
}

func parseJob(args []string, problems io.Writer) (j job, err error) {
	flags := flag.NewFlagSet("proof "+workerCommand, flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&j.broker, "broker", "", "of the scenario")
	flags.Uint64Var(&j.seed, "seed", 0, "of the scenario")
	flags.IntVar(&j.messages, "messages", 0, "of the scenario")
	flags.IntVar(&j.kills, "kills", 0, "of the scenario")
	flags.IntVar(&j.stops, "stops", 0, "of the scenario")
	flags.IntVar(&j.loops, "loops", 0, "of the scenario")
	flags.BoolVar(&j.copies, "copies", false, "of the scenario")
	flags.BoolVar(&j.fifo, "fifo", false, "of the scenario")
	flags.IntVar(&j.number, "number", 0, "of this worker")
	flags.IntVar(&j.slot, "slot", 0, "of this worker")
	flags.Int64Var(&j.start, "start", 0, "of the run")
	flags.StringVar(&j.url, "url", "", "of the broker")
	flags.StringVar(&j.tag, "tag", "", "of what is declared")
	flags.StringVar(&j.journal, "journal", "", "the file to write to")
	err = flags.Parse(args)
	if err == nil && (j.slot < 0 || j.messages < 1) {
		err = fmt.Errorf("a worker is started by the proof, not by hand")
	}
	return j, err
}

// serve is the life of a worker process. It speaks with the driver in lines:
// it asks "run ID" and is told how often that message was run before, tells
// "at POINT", "queue NAME" and "exchange NAME", and takes "arm POINT" and
// "stop". When its input ends, so does the process.
func serve(args []string, in io.Reader, out, problems io.Writer, g rig) (status int) {
	j, err := parseJob(args, problems)
	if err != nil {
		fmt.Fprintln(problems, "proof:", err)
		return 2
	}
	file, err := os.OpenFile(j.journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(problems, "proof:", err)
		return 2
	}
	defer file.Close()
	c := &clerk{out: out, answers: make(chan int)}
	t := &trap{tell: func(p point) { c.tell("at", string(p)) }}
	s := newServedScenario(j)
	l := newJournal(file, time.Unix(0, j.start), j.number, c.count)
	link, err := connectWorker(j, s, l, t, c)
	if err != nil {
		fmt.Fprintln(problems, "proof:", err)
		return 2
	}
	r := &run{scenario: s, ledger: l, target: oneLink{link: link}, rig: g, trap: t}
	w := r.connectWorker(j.number, &s.slots[j.slot])
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
	link.Close(closing)
	return 0
}

// connectWorker connects a worker process.
func connectWorker(j job, s *scenario, l *ledger, t *trap, c *clerk) (link, error) {
	note := func(k kind, id string) { l.add(event{Kind: k, Worker: j.number, ID: id}) }
	switch s.broker {
	case "kafka":
		return connectKafka(j.url, j.tag, &kafkaTap{trap: t, isDead: s.isDead, isDelay: isDelayTopic(j.tag), note: func(e event) {
			e.Worker = j.number
			l.add(e)
		}})
	case "sqs":
		return connectSQS(j, &sqsTap{trap: t, polled: func(id string, err error) {
			e := event{Kind: polled, Worker: j.number, ID: id}
			if err != nil {
				e.Err, e.Note = failOf(err), err.Error()
			}
			l.add(e)
		}})
	}
	return connectRabbit(j.url, j.tag, &wiretap{trap: t, isDead: s.isDead, declared: c.tell,
		consuming: func() { note(consuming, "") }, copying: func(id string) { note(copying, id) }})
}

// clerk speaks with the driver.
type clerk struct {
	mu      sync.Mutex // of out
	out     io.Writer
	asking  sync.Mutex
	answers chan int
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

// oneLink is the target as a worker process sees it.
type oneLink struct {
	target
	link link
}

func (t oneLink) worker(int) link { return t.link }

// rabbitLink is a connection to RabbitMQ.
type rabbitLink struct{ *rabbitmq.Broker }

func (rabbitLink) kill() {} // the driver does that

// callTimeout is how long an answer of the broker may take: a worker whose
// network is a black hole stops within that time, or twice.
const callTimeout = 5 * time.Second

// connectRabbit connects by way of a wiretap. The nodes of a cluster are URLs
// with commas in between.
func connectRabbit(url, tag string, t *wiretap) (link, error) {
	b, err := rabbitmq.New(rabbitmq.Options{
		URLs:        strings.Split(url, ","),
		Prefix:      tag,
		CallTimeout: callTimeout,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return t.conn(c), nil
		},
	})
	if err != nil {
		return nil, err
	}
	return rabbitLink{b}, nil
}

var _ brokers.Broker = rabbitLink{}
