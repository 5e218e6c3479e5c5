package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/retry"
)

// All of these wait more than they work.
func TestSQS(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	for name, test := range map[string]func(t *testing.T){
		"workers killed":       testSQSWorkersKilled,
		"scripted faults":      func(t *testing.T) { testSQSScript(t) },
		"scripted with copies": func(t *testing.T) { testSQSScript(t, "-copies") },
		"frozen workers":       testSQSFrozenWorkers,
		"stale worker":         testSQSStaleWorker,
		"crash loop":           func(t *testing.T) { testSQSCrashLoop(t, false, 22) }, // as the documentation counts
		"crash loop, copies":   func(t *testing.T) { testSQSCrashLoop(t, true, 13) },
		"letters not taken":    testSQSLettersNotTaken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// onSQS runs a test on the servers with processes of their own.
func onSQS(t *testing.T, test func(t *testing.T, target livetest.Target)) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		test(t, target)
	})
}

// fakeSQS is a server in this process, and what the proof has to know of it.
func fakeSQS(t *testing.T) (*sqstest.Server, livetest.Target) {
	server := sqstest.NewServer(sqstest.Options{})
	t.Cleanup(server.Close)
	return server, livetest.Target{Broker: harness.Broker{Product: harness.SQS}, URL: server.URL}
}

func testSQSWorkersKilled(t *testing.T) {
	onSQS(t, func(t *testing.T, target livetest.Target) {
		p := startProof(t, target, target.URL, "-messages", "2000", "-kills", "21", "-seed", "5")
		p.finish()
	})
}

// Workers that stand still for longer than their leases of 3 s.
func testSQSFrozenWorkers(t *testing.T) {
	onSQS(t, func(t *testing.T, target livetest.Target) {
		p := startProof(t, target, target.URL, "-messages", "2000", "-kills", "3", "-seed", "10")
		p.pause(time.Second)
		p.during("a worker frozen", func() { p.freeze(1, 7*time.Second) })
		p.pause(time.Second)
		p.during("two workers frozen", func() { p.freeze(2, 7*time.Second) })
		p.finish()
	})
}

// What AWS may answer, and what may become of an answer, under load.
func testSQSScript(t *testing.T, args ...string) {
	server, target := fakeSQS(t)
	p := startProof(t, target, target.URL, append([]string{"-messages", "2500", "-kills", "4", "-seed", "4"}, args...)...)
	for _, fault := range []struct {
		name string
		sqstest.Fault
	}{
		{"throttling", sqstest.Fault{Code: "RequestThrottled"}},
		{"unavailable", sqstest.Fault{Status: 503}},
		{"answers cut", sqstest.Fault{Cut: true, AfterEffect: true}},
		{"requests cut", sqstest.Fault{Cut: true}},
		{"deletions cut", sqstest.Fault{Operation: "DeleteMessageBatch", Cut: true, AfterEffect: true}},
		{"deletions refused", sqstest.Fault{Operation: "DeleteMessageBatch", Status: 500}},
		{"errors after effect", sqstest.Fault{Code: "InternalFailure", AfterEffect: true}},
		{"timeouts fail", sqstest.Fault{Operation: "ChangeMessageVisibilityBatch", Entries: []int{0, 2, 3}}},
		{"sends fail in part", sqstest.Fault{Operation: "SendMessageBatch", Entries: []int{0, 1, 5}}},
		{"slow", sqstest.Fault{Latency: 700 * time.Millisecond}},
		{"slow after effect", sqstest.Fault{Latency: 700 * time.Millisecond, AfterEffect: true}},
		{"expired credentials", sqstest.Fault{Code: "ExpiredToken", Status: 403}},
	} {
		p.pause(600 * time.Millisecond)
		p.during(fault.name, func() {
			remove := server.Inject(fault.Fault)
			p.pause(1200 * time.Millisecond)
			remove()
		})
	}
	p.finish()
}

// What a worker process is told by its environment.
const (
	sqsWorkerURL     = "REDRIVE_FAULTS_SQS"
	sqsWorkerQueue   = "REDRIVE_FAULTS_SQS_QUEUE"
	sqsWorkerJournal = "REDRIVE_FAULTS_SQS_JOURNAL"
	sqsWorkerCopies  = "REDRIVE_FAULTS_SQS_COPIES"
)

const (
	workerLease = 2 * time.Second
	workerWait  = time.Second
)

func sqsOptions(address string) sqs.Options {
	return sqs.Options{
		Config: aws.Config{Region: "us-east-1", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "faults", SecretAccessKey: "faults"}, nil
		})},
		Endpoint: address,
		Create:   true,
		PollWait: workerWait,
	}
}

// sqsWorker writes down each message that it begins and ends to handle. Those
// whose ID begins with "kill" end the process, those with "slow" take a second.
func sqsWorker(ctx context.Context, address string) error {
	file, err := os.OpenFile(os.Getenv(sqsWorkerJournal), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	options := sqsOptions(address)
	options.Copies = os.Getenv(sqsWorkerCopies) != ""
	broker, err := sqs.New(options)
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead",
		Lease:      workerLease,
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	c.Handle(os.Getenv(sqsWorkerQueue), func(ctx context.Context, m *brokers.Message) error {
		fmt.Fprintln(file, os.Getpid(), "begins", m.ID)
		switch {
		case strings.HasPrefix(m.ID, "kill"):
			time.Sleep(300 * time.Millisecond) // what works beside it gets through
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return err
		case strings.HasPrefix(m.ID, "slow"):
			time.Sleep(time.Second) // whatever its context says
		}
		fmt.Fprintln(file, os.Getpid(), "ends", m.ID)
		return nil
	})
	return c.Run(ctx)
}

// sqsWorkers are worker processes on a fake.
type sqsWorkers struct {
	*testing.T
	server  *sqstest.Server
	queue   string
	journal string
	copies  bool
}

func newSQSWorkers(t *testing.T, copies bool) *sqsWorkers {
	server, _ := fakeSQS(t)
	return &sqsWorkers{T: t, server: server, queue: "jobs", journal: filepath.Join(t.TempDir(), "journal"), copies: copies}
}

func (w *sqsWorkers) start() *exec.Cmd {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), sqsWorkerURL+"="+w.server.URL, sqsWorkerQueue+"="+w.queue, sqsWorkerJournal+"="+w.journal)
	if w.copies {
		cmd.Env = append(cmd.Env, sqsWorkerCopies+"=true")
	}
	cmd.Stderr = &bytes.Buffer{}
	must(w, cmd.Start())
	return cmd
}

// stop ends a worker in good order.
func (w *sqsWorkers) stop(cmd *exec.Cmd) {
	w.Helper()
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		w.Errorf("the worker ends with %v: %s", err, cmd.Stderr)
	}
}

func (w *sqsWorkers) lines() []string {
	data, err := os.ReadFile(w.journal)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Error(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// count is how often any worker has written that.
func (w *sqsWorkers) count(what string) (n int) {
	for _, line := range w.lines() {
		if _, did, _ := strings.Cut(line, " "); did == what {
			n++
		}
	}
	return n
}

func (w *sqsWorkers) publish(ids ...string) {
	w.Helper()
	b, err := sqs.New(sqsOptions(w.server.URL))
	must(w, err)
	defer b.Close(context.WithoutCancel(w.Context()))
	var msgs []brokers.Message
	for _, id := range ids {
		msgs = append(msgs, brokers.Message{ID: id, Body: []byte(id)})
	}
	must(w, b.Publish(w.Context(), w.queue, msgs...))
}

// letters are the reasons of dead letters by message.
func (w *sqsWorkers) letters() map[string]string {
	w.Helper()
	b, err := sqs.New(sqsOptions(w.server.URL))
	must(w, err)
	defer b.Close(context.WithoutCancel(w.Context()))
	source, err := b.Open(w.Context(), brokers.Subscription{Topics: []string{w.queue + "-dead"}, InFlight: 100})
	must(w, err)
	reasons := map[string]string{}
	for q := w.server.Queue(w.queue + "-dead"); len(reasons) < q.Visible; {
		ds, err := source.Receive(w.Context(), 100)
		must(w, err)
		for _, d := range ds {
			entry, err := dlq.Decode(d.Message)
			if err != nil {
				w.Errorf("message %s: %v", d.Message.ID, err)
			}
			reasons[d.Message.ID] = entry.Reason
		}
	}
	return reasons
}

// A worker that stands still in a handler for longer than its lease settles
// nothing when it goes on: somebody else has the message by then.
func testSQSStaleWorker(t *testing.T) {
	w := newSQSWorkers(t, false)
	first := w.start()
	until(t, func() bool { return w.server.Queue(w.queue).Polls > 0 })
	w.publish("slow")
	until(t, func() bool { return w.count("begins slow") == 1 })
	first.Process.Signal(syscall.SIGSTOP)
	second := w.start()
	until(t, func() bool { return w.count("begins slow") == 2 })
	first.Process.Signal(syscall.SIGCONT)
	until(t, func() bool { return w.count("ends slow") == 2 && w.server.Queue(w.queue).Deleted > 0 })
	w.stop(first)
	w.stop(second)
	q := w.server.Queue(w.queue)
	if q.Stale > 0 || q.Deleted != 1 || q.Visible+q.InFlight+q.Delayed > 0 || q.Sent != 1 {
		t.Errorf("the queue has %+v, want one message deleted, by the worker that holds it", q)
	}
	if runs := w.count("begins slow"); runs != 2 {
		t.Errorf("the message ran %d times, want twice", runs)
	}
}

// A message that kills each of its workers ends as a dead letter after as many
// runs as the documentation says, and takes no other message with it. The clock
// of the server goes on after each death, for nobody waits for a lease then.
func testSQSCrashLoop(t *testing.T, copies bool, runs int) {
	const hidden = workerLease + workerWait + time.Second // at most
	w := newSQSWorkers(t, copies)
	first := w.start()
	until(t, func() bool { return w.server.Queue(w.queue).Polls > 0 })
	w.publish("a", "b", "kill", "c", "d")
	first.Wait()
	for deaths := 1; ; deaths++ {
		if deaths > runs {
			t.Fatalf("the message has killed %d workers, want %d", deaths, runs)
		}
		w.server.Advance(workerWait) // nobody reads what the polls of the dead receive
		w.server.Advance(hidden)
		next := w.start()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			next.Wait()
		}()
		buried := func() bool {
			q := w.server.Queue(w.queue)
			return w.server.Queue(w.queue+"-dead").Visible > 0 && q.Deleted == q.Sent
		}
		until(t, func() bool {
			select {
			case <-ended:
				return true
			default:
				return buried()
			}
		})
		if buried() {
			next.Process.Signal(os.Interrupt)
			<-ended
			break
		}
	}
	if got := w.count("begins kill"); got != runs {
		t.Errorf("the message ran %d times, want %d", got, runs)
	}
	if got := w.letters(); len(got) != 1 || got["kill"] != "crash-loop" {
		t.Errorf("dead letters %v, want the message that kills, for its crash loop", got)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if w.count("ends "+id) == 0 {
			t.Errorf("message %s is lost", id)
		}
	}
}

// While a dead-letter queue is missing or denied, a flood of poison stays where
// it is, and the queue is asked once a second at most. Then all of it arrives.
func testSQSLettersNotTaken(t *testing.T) {
	for name, code := range map[string]string{
		"missing": "AWS.SimpleQueueService.NonExistentQueue",
		"denied":  "AccessDenied",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testSQSPoison(t, code)
		})
	}
}

func testSQSPoison(t *testing.T, code string) {
	const poisonous, outage = 200, 10 * time.Second
	server, _ := fakeSQS(t)
	broker, err := sqs.New(sqsOptions(server.URL))
	must(t, err)
	defer broker.Close(context.WithoutCancel(t.Context()))
	var refusals refusals
	c, err := consumer.New(broker, consumer.Config{
		Concurrency: 5,
		Observers:   []consumer.Observer{&refusals},
		Guard:       unguarded, // a guard would put most of the flood aside
		DeadLetter:  "*-dead",
		Lease:       workerLease,
		Logger:      slog.New(slog.DiscardHandler),
		Retry:       retry.Policy{MaxAttempts: 3},
	})
	must(t, err)
	c.Handle("jobs", func(context.Context, *brokers.Message) error { return classify.Permanent(errors.New("no such order")) })
	heal := server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Queue: "jobs-dead", Code: code})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	until(t, func() bool { return server.Queue("jobs").Polls > 0 })
	ids := make([]brokers.Message, poisonous)
	for i := range ids {
		ids[i] = brokers.Message{ID: fmt.Sprint("m", i), Body: []byte("body")}
	}
	must(t, broker.Publish(t.Context(), "jobs", ids...))
	until(t, func() bool { return len(sendsTo(server, "jobs-dead")) > 0 })
	begun := time.Now()
	until(t, func() bool { return time.Since(begun) > outage })
	calls := sendsTo(server, "jobs-dead")
	t.Logf("%d calls in %v", len(calls), time.Since(begun))
	if len(calls) < 2 {
		t.Errorf("%d calls to a queue that takes nothing, want it tried again", len(calls))
	}
	for _, call := range calls[1:] { // from when the worker knew, as a call may take its time
		if pause := refusals.since(call.Time); pause < time.Second {
			t.Errorf("the queue takes nothing, and is tried again after %v, want a second at least", pause)
		}
	}
	if q := server.Queue("jobs"); q.Deleted > 0 || q.Visible+q.InFlight+q.Delayed != poisonous {
		t.Errorf("the queue has %+v, want all %d messages in it", q, poisonous)
	}
	heal()
	until(t, func() bool { return server.Queue("jobs").Deleted == poisonous })
	stop()
	running.Wait()
	var letters []string
	for _, m := range server.Messages("jobs-dead") {
		letters = append(letters, m.Body)
	}
	if q := server.Queue("jobs"); len(letters) < poisonous || q.Visible+q.InFlight+q.Delayed > 0 {
		t.Errorf("%d dead letters and %+v, want each of %d dead and nothing left", len(letters), q, poisonous)
	}
}

// refusals notes when a worker was told that dead letters are not taken.
type refusals struct {
	mu    sync.Mutex
	times []time.Time
}

// Observe implements consumer.Observer.
func (r *refusals) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventError && e.Operation == "dead-letter" {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.times = append(r.times, e.Time)
	}
}

// since returns the time from the last one before t to t.
func (r *refusals) since(t time.Time) (pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.times {
		if at.Before(t) {
			pause = t.Sub(at)
		}
	}
	return pause
}

// sendsTo are the calls that would have stored something in a queue.
func sendsTo(server *sqstest.Server, queue string) []sqstest.Call {
	return slices.DeleteFunc(server.Calls(), func(c sqstest.Call) bool {
		return c.Operation != "SendMessageBatch" || c.Queue != queue
	})
}
