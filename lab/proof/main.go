// Command proof plays random scenarios on a broker and holds what happened
// against the promises of redrive: nothing is lost, nothing runs early, and
// every duplicate and every extra run is explained by a fault that was written
// down.
//
//	go run ./lab/proof -broker rabbitmq -seed 1 -messages 10000
//
// It prints one line a figure: name, value, unit, goal, and ok or short,
// between tabs. The exit status is 1 when a promise is broken, with the lives
// of the messages concerned on standard error, and 2 when it is called wrongly.
//
// # How it works
//
// A scenario is derived from a seed: topics, policies, workers and their
// settings, messages, what each handler run does, what goes wrong with the
// broker, and which workers stop or die when. While it plays, a ledger takes
// down what the producer, the handlers and a wrapper around the broker see.
// The checker is a pure function of the ledger and of what is left in the
// topics; it asks nothing of the consumer's own counters. What may follow a run
// it asks the pure functions of packages classify and retry.
//
// As long as nothing goes wrong with a message, each of its deliveries must be
// accounted for. Once a fault has touched it, nobody knows what has had its
// effect: from then on it may come more often, but still must not be lost, come
// early, exceed its attempts, or die without a reason.
//
// TestScenarios plays thousands of scenarios on the memory broker in virtual time,
// with times of minutes and hours; make proof BROKER=memory runs it.
//
// This command works on real brokers, with times of seconds. There each worker is
// a process, which it starts, kills (SIGKILL) and starts again: at random times and
// at named points, at which the worker waits for its death, and which the figures
// count. Workers write their ledgers to this command, each line before they go on,
// so that nothing is missing when they die; the clock of the machine puts them in
// order. With -loops there are messages whose handler takes the process with it,
// each time: they must end as dead letters with the reason crash-loop, and no other
// message may. At the end every topic but those of dead letters must be empty, and
// all of them are deleted. Signals that end this command end the workers.
//
// On RabbitMQ workers read along on their own connections, to be killed between
// the confirm of a copy and the ack of its original. To a Kafka of one
// address all connections go, whatever it advertises. On SQS leases
// are 3 s, and by default retries wait in place, so that workers read estimates of
// what others have counted: see docs/explanation/sqs.md. With -copies nothing is
// estimated; with -fifo the messages of a key must be handled one at a time and in
// the order in which they were sent.
//
// Another broker is added by a [server], which tells what is left in its topics.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are what the command is told.
type options struct {
	job

	// Unless nil, somebody else causes faults meanwhile, and says so in lines
	// "begin NAME" and "end NAME", each of which is answered by "noted". The
	// first line to them is "ready". The line "workers" is answered by that
	// word and the numbers of the processes that are workers now.
	faults  io.Reader
	answers io.Writer
}

// servedBrokers are those that can be put to the proof by this command.
var servedBrokers = []string{"kafka", "rabbitmq", "sqs"}

func main() {
	if len(os.Args) > 2 && os.Args[1] == workerCommand {
		os.Exit(serve(os.Args[2], os.Stdin, os.Stdout, os.Stderr, nil))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func command(ctx context.Context, args []string, out, problems io.Writer) (status int) {
	flags := flag.NewFlagSet("proof", flag.ContinueOnError)
	flags.SetOutput(problems)
	var o options
	flags.StringVar(&o.Broker, "broker", "rabbitmq", "the broker to prove: "+strings.Join(servedBrokers, ", "))
	flags.Uint64Var(&o.Seed, "seed", 1, "what everything is derived from")
	flags.IntVar(&o.Messages, "messages", 10000, "how many messages to send")
	flags.IntVar(&o.Kills, "kills", 20, "how many worker processes to kill")
	flags.IntVar(&o.Stops, "stops", 0, "how many workers to stop in good order; 0 is 2 and a tenth of the kills")
	flags.IntVar(&o.Loops, "loops", 0, "how many of the messages kill the worker process that runs them, each time")
	flags.IntVar(&o.Partitions, "partitions", kafkaPartitions, "how many partitions each topic has; for kafka")
	flags.BoolVar(&o.Copies, "copies", false, "make every retry a copy; for sqs")
	flags.BoolVar(&o.FIFO, "fifo", false, "use FIFO queues, and hold the order of each key; for sqs")
	flags.StringVar(&o.URL, "url", "", "where the broker listens, unless an environment variable such as REDRIVE_KAFKA_URL tells")
	announced := flags.Bool("faults", false, "note faults that standard input tells of, until its end")
	if flags.Parse(args) != nil {
		return 2
	}
	if *announced {
		o.faults, o.answers = os.Stdin, out
	}
	if wrong := o.wrong(); wrong != "" || flags.NArg() > 0 {
		fmt.Fprintf(problems, "proof: %s\n", or(wrong, fmt.Sprintf("unexpected argument %q", flags.Arg(0))))
		return 2
	}
	rec, err := proveServed(ctx, o)
	if err != nil {
		fmt.Fprintf(problems, "proof: %v\n", err)
		return 1
	}
	return report(rec, o, out, problems)
}

// wrong says what is wrong with the options, "" if nothing is.
func (o options) wrong() string {
	switch {
	case !slices.Contains(servedBrokers, o.Broker):
		return fmt.Sprintf("unknown broker %q: use one of %s; make proof BROKER=memory runs the one of tests", o.Broker, strings.Join(servedBrokers, ", "))
	case o.Messages < 1:
		return fmt.Sprintf("-messages is %d: send at least 1", o.Messages)
	case o.Loops < 0 || o.Loops > o.Messages/10:
		return fmt.Sprintf("-loops is %d: use 0 to a tenth of -messages", o.Loops)
	case o.Partitions < 1:
		return fmt.Sprintf("-partitions is %d: use 1 or more", o.Partitions)
	case o.Kills < 0 || o.Stops < 0:
		return fmt.Sprintf("-kills is %d and -stops is %d: use 0 or more", o.Kills, o.Stops)
	}
	return ""
}

// report checks the record and writes the figures.
func report(r *record, o options, out, problems io.Writer) (status int) {
	v := check(r)
	if v.broken > 0 {
		explain(problems, r, v)
	}
	whole := v.write(out, o.Messages)
	v.writeWork(out)
	enough := !r.scenario.served || writeKills(r, o.Kills, out)
	faults := map[string]int{}
	for _, e := range r.events {
		if e.Kind == faulted {
			faults[e.Note]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		line(out, "faults_"+name, faults[name], "faults", "-", true)
	}
	if !whole || !enough {
		return 1
	}
	return 0
}

// writeKills writes where worker processes were killed.
func writeKills(r *record, want int, out io.Writer) (enough bool) {
	total := 0
	for _, p := range points {
		total += r.kills[p]
		line(out, "kills_"+string(p), r.kills[p], "kills", "-", true)
	}
	line(out, "kills_by_messages", r.kills[byMessage], "kills", "-", true)
	line(out, "kills", total, "kills", strconv.Itoa(want), total == want)
	residue := 0
	for _, n := range r.left {
		residue += n
	}
	line(out, "residue", residue, "messages", "0", residue == 0)
	return total == want
}

// figures count what happened.
type figures struct {
	sent, handled, dead, discarded, lost int
	runs, retries, early, broken         int
	duplicates, explained                int
	faults, crashes, stops               int
	perEnd                               int           // messages handled for each worker that ended, while workers came and went
	pause                                time.Duration // the longest without one
	latest                               time.Duration // worst lateness of a retry
}

// add takes in what another run has come to.
func (f *figures) add(g figures) {
	f.sent, f.handled, f.dead, f.discarded = f.sent+g.sent, f.handled+g.handled, f.dead+g.dead, f.discarded+g.discarded
	f.runs, f.retries, f.faults = f.runs+g.runs, f.retries+g.retries, f.faults+g.faults
	f.lost, f.early, f.broken = f.lost+g.lost, f.early+g.early, f.broken+g.broken
	f.duplicates, f.explained = f.duplicates+g.duplicates, f.explained+g.explained
	f.crashes, f.stops = f.crashes+g.crashes, f.stops+g.stops
	f.latest = max(f.latest, g.latest)
}

// write writes what must be so, whatever the scheduler does.
func (f figures) write(out io.Writer, messages int) (whole bool) {
	line(out, "sent", f.sent, "messages", strconv.Itoa(messages), f.sent == messages)
	line(out, "lost", f.lost, "messages", "0", f.lost == 0)
	line(out, "early", f.early, "runs", "0", f.early == 0)
	line(out, "unexplained", f.duplicates-f.explained, "duplicates", "0", f.duplicates <= f.explained)
	line(out, "violations", f.broken, "promises", "0", f.broken == 0)
	return f.broken == 0 && f.sent == messages
}

func (f figures) writeWork(out io.Writer) {
	for _, figure := range []struct {
		name  string
		value int
		unit  string
	}{
		{"handled", f.handled, "messages"},
		{"dead", f.dead, "messages"},
		{"discarded", f.discarded, "messages"},
		{"duplicates", f.duplicates, "messages"},
		{"runs", f.runs, "runs"},
		{"retries", f.retries, "messages"},
		{"worst_lateness_ms", int(f.latest.Milliseconds()), "ms"},
		{"workers_stopped", f.stops, "workers"},
		{"workers_killed", f.crashes, "workers"},
		{"handled_per_end", f.perEnd, "messages"},
		{"longest_pause_ms", int(f.pause.Milliseconds()), "ms"},
	} {
		line(out, figure.name, figure.value, figure.unit, "-", true)
	}
}

func line(out io.Writer, name string, value int, unit, goal string, ok bool) {
	verdict := "ok"
	if !ok {
		verdict = "short"
	}
	fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%s\n", name, value, unit, goal, verdict)
}
