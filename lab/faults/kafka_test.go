package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	randv2 "math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/retry"
)

var storm = flag.Duration("storm", 30*time.Second, "how long workers join and leave in TestRebalanceStorm")

// Workers leave and join every 1.3 s, so that the group is hardly ever at rest.
// Besides the usual promises the work goes on.
func TestRebalanceStorm(t *testing.T) {
	const each = 1300 * time.Millisecond
	onKafka(t, func(t *testing.T, target livetest.Target) {
		stops := strconv.Itoa(int(*storm / each))
		p := startProof(t, target, target.URL, "-messages", "3000", "-kills", "0", "-stops", stops, "-seed", "12")
		p.finish()
		if n := p.figure("handled_per_end"); n < 1 {
			t.Errorf("%d messages are handled for each worker that leaves, want 1 or more", n)
		}
	})
}

// A worker stays a member of its group while its broker restarts: what it holds it can
// settle, and it goes on without a rebalance.
func TestMembershipOutlivesTheBroker(t *testing.T) {
	onKafka(t, func(t *testing.T, target livetest.Target) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		h := newHarness(t)
		name := "restart-" + strings.ToLower(rand.Text())
		b, err := kafka.New(kafka.Options{Brokers: strings.Split(target.URL, ","), Group: name, SessionTimeout: 2 * time.Minute})
		must(t, err)
		defer b.Close(context.WithoutCancel(ctx))
		admin := &kafkago.Client{Addr: kafkago.TCP(strings.Split(target.URL, ",")...)}
		if _, err := admin.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}}}); err != nil {
			t.Fatal(err)
		}
		src, err := b.Open(ctx, brokers.Subscription{Topics: []string{name}, MaxDelay: time.Minute})
		must(t, err)
		receive := func() *brokers.Delivery {
			for ctx.Err() == nil {
				ds, err := src.Receive(ctx, 1)
				if len(ds) > 0 {
					return ds[0]
				}
				if errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrClosed) || errors.Is(err, brokers.ErrLeaseLost) {
					t.Fatalf("Receive: %v", err)
				}
			}
			t.Fatal("nothing more is received")
			return nil
		}
		must(t, b.Publish(ctx, name, brokers.Message{Body: []byte("before")}))
		held := receive()
		must(t, errors.Join(h.Kill(ctx, target.Name), h.Start(ctx, target.Name)))
		begun := time.Now()
		for err := errors.New("not yet"); err != nil && ctx.Err() == nil; {
			err = b.Publish(ctx, name, brokers.Message{Body: []byte("after")})
		}
		receive()
		t.Logf("the next message came %v after the broker", time.Since(begun).Round(time.Millisecond))
		if held.Session.Err() != nil {
			t.Error("the session has ended")
		}
		if errs := src.Settle(ctx, []brokers.Settlement{{Delivery: held}}); errs != nil {
			t.Errorf("settle what was received before: %v", errs)
		}
	})
}

// TestMain lets the test binary be a worker process of delayWorker, or sqsWorker.
func TestMain(m *testing.M) {
	kafka, sqs := os.Getenv(delayAddress), os.Getenv(sqsWorkerURL)
	if kafka == "" && sqs == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if sqs != "" {
		err = sqsWorker(ctx, sqs)
	} else {
		err = delayWorker(ctx, kafka, os.Getenv(delayTopic), os.Getenv(delayJournal))
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What a worker process is told by its environment.
const (
	delayAddress = "REDRIVE_DELAYS_ADDRESS"
	delayTopic   = "REDRIVE_DELAYS_TOPIC"
	delayJournal = "REDRIVE_DELAYS_JOURNAL"
)

// Delays of 50 ms to 10 min, compressed.
const (
	kafkaCompression = 40
	shortestOnKafka  = 50 * time.Millisecond / kafkaCompression
	longestOnKafka   = 10 * time.Minute / kafkaCompression
)

func kafkaOptions(address, topic string) kafka.Options {
	return kafka.Options{Brokers: []string{address}, Group: topic, Prefix: topic, SessionTimeout: 3 * time.Second, RebalanceTimeout: 6 * time.Second}
}

// delayWorker sends each message to a retry with a delay of its own, and writes
// down when it is due and when it is handled then.
func delayWorker(ctx context.Context, address, topic, journal string) error {
	file, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	broker, err := kafka.New(kafkaOptions(address, topic))
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	c, err := consumer.New(broker, consumer.Config{
		Concurrency: 200,
		Guard:       unguarded,
		DeadLetter:  "*.dead",
		Logger:      slog.New(slog.DiscardHandler),
		Retry:       retry.Policy{MaxRetryAfter: longestOnKafka * 9 / 8, Backoff: retry.Backoff{Base: time.Millisecond, Cap: shortestOnKafka}},
	})
	if err != nil {
		return err
	}
	errThrottled := errors.New("come back later")
	c.Handle(topic, func(ctx context.Context, m *brokers.Message) error {
		due := consumer.MetaFrom(ctx).DueAt
		if due.IsZero() {
			return classify.Throttled(errThrottled, delayOf(m.ID))
		}
		_, err := fmt.Fprintf(file, "%s %d %d\n", m.ID, due.UnixNano(), time.Now().UnixNano())
		return err
	})
	return c.Run(ctx)
}

// delayOf spreads the delays evenly over the orders of magnitude.
func delayOf(id string) time.Duration {
	n, _ := strconv.ParseUint(id, 10, 64)
	f := randv2.New(randv2.NewPCG(n, 1)).Float64()
	return time.Duration(float64(shortestOnKafka) * math.Pow(float64(longestOnKafka)/float64(shortestOnKafka), f))
}

// handled is a line of a journal.
type handled struct {
	id      string
	due, at time.Time
}

func (h handled) late() time.Duration { return h.at.Sub(h.due) }

// None is lost and none is early; how late they are is in the log. Then the same with
// a kill -9 in the middle: what is handled twice was settled a moment before.
func TestMixedDelaysOnKafka(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		messages := delays(t, 100_000)
		t.Run("undisturbed", func(t *testing.T) {
			lines, _ := runDelays(t, target, messages, false)
			summarize(t, lines, messages)
			if len(lines) != messages {
				t.Errorf("%d are handled, want each of %d once", len(lines), messages)
			}
		})
		t.Run("killed", func(t *testing.T) {
			lines, killed := runDelays(t, target, messages, true)
			summarize(t, lines, messages)
			first := map[string]handled{}
			repeated, lastSecond := 0, 0
			oldest := time.Duration(0)
			for _, h := range lines {
				if h.at.Before(killed) && killed.Sub(h.at) < time.Second {
					lastSecond++
				}
				if before, ok := first[h.id]; ok {
					repeated++
					oldest = max(oldest, killed.Sub(before.at))
					continue
				}
				first[h.id] = h
			}
			t.Logf("repeated: %d of %d, the oldest was handled %v before the kill; %d were handled in its last second", repeated, len(lines), oldest, lastSecond)
			if oldest > 2*time.Second {
				t.Errorf("what was handled %v before the kill is repeated, want 2 s at most", oldest)
			}
		})
	})
}

// summarize demands that nothing is lost and nothing is early, and logs how late all
// were.
func summarize(t *testing.T, lines []handled, messages int) {
	t.Helper()
	seen, late := map[string]bool{}, []time.Duration{}
	for _, h := range lines {
		seen[h.id] = true
		late = append(late, h.late())
	}
	slices.Sort(late)
	t.Logf("lateness of %d: p50 %v, p99 %v, most %v", len(late), late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	if len(seen) != messages {
		t.Errorf("%d of %d messages are lost", messages-len(seen), messages)
	}
	if late[0] < 0 {
		t.Errorf("a message is handled %v early", -late[0])
	}
}

// runDelays has one worker process at a time do the work.
func runDelays(t *testing.T, target livetest.Target, messages int, kill bool) (lines []handled, killed time.Time) {
	t.Helper()
	topic := makeTopic(t, target.URL)
	journal := filepath.Join(t.TempDir(), "journal")
	publishNumbered(t, target.URL, topic, messages)
	begun := time.Now()
	w := startDelayWorker(t, target.URL, topic, journal)
	half := func() bool { return countLines(t, journal) >= messages/2 }
	if kill {
		until(t, half)
		w.Process.Kill()
		killed = time.Now()
		w.Wait()
		w = startDelayWorker(t, target.URL, topic, journal)
	}
	until(t, func() bool {
		if countLines(t, journal) < messages {
			return false
		}
		lines = readHandled(t, journal)
		seen := map[string]bool{}
		for _, h := range lines {
			seen[h.id] = true
		}
		return len(seen) >= messages
	})
	t.Logf("%d messages took %v", messages, time.Since(begun).Round(time.Millisecond))
	w.Process.Signal(os.Interrupt)
	if err := w.Wait(); err != nil {
		t.Errorf("the worker ends with %v: %s", err, w.Stderr)
	}
	return readHandled(t, journal), killed
}

func startDelayWorker(t *testing.T, address, topic, journal string) *exec.Cmd {
	t.Helper()
	w := exec.CommandContext(t.Context(), os.Args[0])
	w.Env = append(os.Environ(), delayAddress+"="+address, delayTopic+"="+topic, delayJournal+"="+journal)
	w.Stderr = &bytes.Buffer{}
	must(t, w.Start())
	return w
}

// until waits for what a correct program does. Its patience is no promise: a busy
// machine may take minutes.
func until(t testing.TB, done func() bool) {
	t.Helper()
	const patience = 10 * time.Minute
	for begun := time.Now(); !done(); {
		if time.Since(begun) > patience {
			t.Fatalf("not within %v", patience)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

func countLines(t *testing.T, journal string) int {
	t.Helper()
	data, err := os.ReadFile(journal)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

func readHandled(t *testing.T, journal string) (lines []handled) {
	t.Helper()
	file, err := os.Open(journal)
	must(t, err)
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		var h handled
		var due, at int64
		if _, err := fmt.Sscan(scanner.Text(), &h.id, &due, &at); err != nil {
			t.Fatalf("the journal says %q: %v", scanner.Text(), err)
		}
		h.due, h.at = time.Unix(0, due), time.Unix(0, at)
		lines = append(lines, h)
	}
	return lines
}

// makeTopic makes a topic with a new name, and removes in the end all whose
// names begin with it.
func makeTopic(t *testing.T, address string) string {
	t.Helper()
	topic := "faults-" + strings.ToLower(rand.Text()[:8])
	calls := &kafkago.Client{Addr: kafkago.TCP(address), Transport: &kafkago.Transport{}}
	until(t, func() bool {
		made, err := calls.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 4, ReplicationFactor: 1}}})
		if errors.Is(err, kafkago.BrokerNotAvailable) { // it is busy, and does not know that it is there
			return false
		}
		if err == nil {
			err = made.Errors[topic]
		}
		must(t, err)
		return true
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		all, err := calls.Metadata(ctx, &kafkago.MetadataRequest{})
		if err != nil {
			t.Error(err)
			return
		}
		var names []string
		for _, found := range all.Topics {
			if strings.HasPrefix(found.Name, topic) {
				names = append(names, found.Name)
			}
		}
		if _, err := calls.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: names}); err != nil {
			t.Error(err)
		}
	})
	return topic
}

func publishNumbered(t *testing.T, address, topic string, n int) {
	t.Helper()
	const together = 5000
	broker, err := kafka.New(kafkaOptions(address, topic))
	must(t, err)
	defer broker.Close(t.Context())
	var publishing sync.WaitGroup
	for from := 0; from < n; from += together {
		publishing.Go(func() {
			var msgs []brokers.Message
			for i := from; i < min(n, from+together); i++ {
				msgs = append(msgs, brokers.Message{ID: strconv.Itoa(i), Body: []byte("body")})
			}
			if err := broker.Publish(t.Context(), topic, msgs...); err != nil {
				t.Error(err)
			}
		})
	}
	publishing.Wait()
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
