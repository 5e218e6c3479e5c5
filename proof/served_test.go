package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/integration/livetest"
)

// plantedBug is the variable of the environment that names the bug which the
// worker processes of a test shall have.
const plantedBug = "REDRIVE_PROOF_BUG"

// TestMain lets the test binary be a worker process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workerCommand {
		os.Exit(serve(os.Args[2:], os.Stdin, os.Stdout, os.Stderr, servedBugs()[os.Getenv(plantedBug)].rig))
	}
	os.Exit(m.Run())
}

type servedBug struct {
	rig    rig
	want   promise
	broker string // unless empty, those on which it does harm
}

// servedBugs are what the proof must find when worker processes are killed.
func servedBugs() map[string]servedBug {
	below := func(wrap func(*scenario, brokers.Source) brokers.Source) rig {
		return rig{below: func(s *scenario, b brokers.Broker) brokers.Broker {
			return openWrapper{b, func(source brokers.Source) brokers.Source { return wrap(s, source) }}
		}}
	}
	early := rig{above: func(_ *scenario, b brokers.Broker) brokers.Broker {
		return openWrapper{b, func(s brokers.Source) brokers.Source { return impatient{s} }}
	}}
	return map[string]servedBug{
		"forgets due times":      {early, promiseEarly, "rabbitmq"}, // whose delays are not exact
		"halves delays":          {below(func(_ *scenario, s brokers.Source) brokers.Source { return hurried{s} }), promiseCount, "kafka, sqs"},
		"counts twice":           {below(func(_ *scenario, s brokers.Source) brokers.Source { return doubling{s} }), promiseCount, "sqs"},
		"acks what it receives":  {below(func(_ *scenario, s brokers.Source) brokers.Source { return hasty{s} }), promiseLost, ""},
		"retries without a copy": {below(func(_ *scenario, s brokers.Source) brokers.Source { return forgetful{s} }), promiseLost, ""},
	}
}

type openWrapper struct {
	brokers.Broker
	wrap func(brokers.Source) brokers.Source
}

func (b openWrapper) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.Broker.Open(ctx, sub)
	if err != nil {
		return nil, err
	}
	return b.wrap(s), nil
}

// hasty acks on receipt, as automatic acks do.
type hasty struct{ brokers.Source }

func (s hasty) Receive(ctx context.Context, limit int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	acks := make([]brokers.Settlement, len(ds))
	for i, d := range ds {
		acks[i].Delivery = d
	}
	if len(acks) > 0 {
		s.Source.Settle(ctx, acks)
	}
	return ds, err
}

func (s hasty) Settle(context.Context, []brokers.Settlement) []error { return nil }

// impatient loses the due time of what it receives.
type impatient struct{ brokers.Source }

func (s impatient) Receive(ctx context.Context, limit int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	for _, d := range ds {
		d.Meta.DueAt = time.Time{}
	}
	return ds, err
}

// hurried has retries come back after half of their time.
type hurried struct{ brokers.Source }

func (s hurried) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	batch = slices.Clone(batch)
	for i := range batch {
		if st := &batch[i]; st.Action == brokers.Retry && !st.Meta.DueAt.IsZero() {
			st.Delay /= 2
			st.Meta.DueAt = st.Meta.DueAt.Add(-st.Delay)
		}
	}
	return s.Source.Settle(ctx, batch)
}

// doubling counts an attempt twice.
type doubling struct{ brokers.Source }

func (s doubling) Receive(ctx context.Context, limit int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	for _, d := range ds {
		if d.Meta.Attempt == 1 {
			d.Meta.Attempt++
		}
	}
	return ds, err
}

// forgetful acks what is to be retried.
type forgetful struct{ brokers.Source }

func (s forgetful) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	batch = append([]brokers.Settlement{}, batch...)
	for i := range batch {
		if batch[i].Action == brokers.Retry {
			batch[i].Action = brokers.Ack
		}
	}
	return s.Source.Settle(ctx, batch)
}

func servedURL(t *testing.T, broker string) string {
	url, err := addressOf(broker, "")
	switch {
	case err == nil:
		return url
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	}
	t.Skipf("%v: make test starts one, or make up prints the address", err)
	return ""
}

func TestProofOnRabbitMQ(t *testing.T) {
	t.Parallel()
	testProof(t, "rabbitmq", servedURL(t, "rabbitmq"), 2000, 21)
}

func TestProofOnKafka(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		if out := testProof(t, "kafka", target.URL, 1500, 11); !strings.Contains(out, "offsets_checked\t") {
			t.Errorf("no committed offset was checked:\n%s", out)
		}
	})
}

func testProof(t *testing.T, broker, url string, messages, kills int, more ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	args := []string{"-broker", broker, "-url", url, "-messages", strconv.Itoa(messages), "-kills", strconv.Itoa(kills), "-seed", "3"}
	args = append(args, more...)
	if status := command(t.Context(), args, &out, &problems); status != 0 {
		t.Errorf("status %d:\n%s%s", status, problems.String(), out.String())
	}
	for _, want := range []string{fmt.Sprintf("sent\t%d\t", messages), fmt.Sprintf("kills\t%d\tkills\t%[1]d\tok\n", kills), "residue\t0\t"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, p := range points {
		if strings.Contains(out.String(), "kills_"+string(p)+"\t0\t") {
			t.Errorf("no worker was killed at the point %s:\n%s", p, out.String())
		}
	}
	return out.String()
}

// In both modes, and on a fake that is as strict as AWS documents.
func TestProofOnSQS(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		testProof(t, "sqs", target.URL, 1500, 14)
	})
	t.Run("fake with copies", func(t *testing.T) {
		t.Parallel()
		server := sqstest.NewServer(sqstest.Options{})
		defer server.Close()
		testProof(t, "sqs", server.URL, 2000, 14, "-copies")
	})
	t.Run("fake with FIFO queues", func(t *testing.T) {
		t.Parallel()
		server := sqstest.NewServer(sqstest.Options{})
		defer server.Close()
		testProof(t, "sqs", server.URL, 2000, 14, "-fifo")
	})
}

// The proof is worth nothing if it does not find what is wrong.
func TestProofOnRabbitMQFindsPlantedBugs(t *testing.T) {
	livetest.Nightly(t)
	t.Parallel()
	testProofFindsPlantedBugs(t, job{broker: "rabbitmq", seed: 3, messages: 400, kills: 5, url: servedURL(t, "rabbitmq")})
}

func TestProofOnKafkaFindsPlantedBugs(t *testing.T) {
	livetest.Nightly(t)
	t.Parallel()
	testProofFindsPlantedBugs(t, job{broker: "kafka", seed: 3, messages: 400, kills: 2, url: servedURL(t, "kafka")})
}

// All at once, since these wait for leases, and little else happens.
func TestProofOnSQSFindsPlantedBugs(t *testing.T) {
	livetest.Nightly(t)
	t.Parallel()
	j := job{broker: "sqs", seed: 3, messages: 400, kills: 2, url: servedURL(t, "sqs")}
	var searching sync.WaitGroup
	for name, bug := range bugsOf(j.broker) {
		searching.Go(func() { testPlantedBug(t, j, name, bug) })
	}
	searching.Wait()
}

func testProofFindsPlantedBugs(t *testing.T, j job) {
	for name, bug := range bugsOf(j.broker) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPlantedBug(t, j, name, bug)
		})
	}
}

// bugsOf are those that do harm on a broker.
func bugsOf(broker string) map[string]servedBug {
	bugs := servedBugs()
	maps.DeleteFunc(bugs, func(_ string, bug servedBug) bool {
		return bug.broker != "" && !strings.Contains(bug.broker, broker)
	})
	return bugs
}

func testPlantedBug(t *testing.T, j job, name string, bug servedBug) {
	o := options{job: j, environment: []string{plantedBug + "=" + name}}
	records, err := proveServed(t.Context(), o)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	found, got := map[promise]int{}, check(records[0])
	for _, v := range got.violations {
		found[v.promise]++
	}
	t.Logf("%s: found %v in %d runs, the latest %v late", name, found, got.runs, got.latest)
	if found[bug.want] == 0 {
		t.Errorf("want %q", bug.want)
	}
}

func TestMergeEndsWhoWasKilledAfterItsLastWord(t *testing.T) {
	events := merge([]event{
		{At: 9, Kind: crashed, Worker: 1, Until: 4},
		{At: 9, Kind: down, Worker: 1, Until: 4},
		{At: 5, Kind: started, Worker: 1},
		{At: 6, Kind: received, Worker: 2},
	})
	var got []kind
	for _, e := range events {
		got = append(got, e.Kind)
	}
	want := []kind{started, crashed, down, received}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}

func TestScannerFindsMethodsInAnyPieces(t *testing.T) {
	frame := func(kind byte, payload ...byte) []byte {
		return append(append([]byte{kind, 0, 1, 0, 0, 0, byte(len(payload))}, payload...), 0xCE)
	}
	properties := []byte{0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3,
		0x80 | 0x20 | 0x10 | 0x04, 0x80, // content type, headers, delivery mode, correlation ID, message ID
		1, 't', 0, 0, 0, 2, 9, 9, 2, 1, 'c', 3, 'm', '4', '2'}
	stream := append([]byte("AMQP\x00\x00\x09\x01"), frame(methodFrame, 0, 60, 0, 40, 0, 0, 1, 'x', 1, 'k')...)
	stream = append(stream, frame(headerFrame, properties...)...)
	stream = append(stream, frame(3, 1, 2, 3)...)
	stream = append(stream, frame(methodFrame, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 7, 1)...)
	for size := 1; size <= len(stream); size++ {
		s := scanner{skip: 8}
		var methods []int
		for at := 0; at < len(stream); at += size {
			s.scan(stream[at:min(at+size, len(stream))], func(method int, args []byte) {
				methods = append(methods, method)
				switch method {
				case basicPublish:
					exchange, rest := shortString(args[2:])
					if key, _ := shortString(rest); exchange != "x" || key != "k" {
						t.Errorf("in pieces of %d: published to %q with key %q", size, exchange, key)
					}
				case header:
					if id := messageID(args); id != "m42" {
						t.Errorf("in pieces of %d: message ID %q, want m42", size, id)
					}
				}
			})
		}
		if want := []int{basicPublish, header, basicAck}; !slices.Equal(methods, want) {
			t.Errorf("in pieces of %d: methods %x, want %x", size, methods, want)
		}
	}
}

// The point before_ack is the ack of a message whose copy is confirmed, and no
// other: not that of its neighbour, nor that of a delivery of another session.
func TestTapTellsTheAckOfACopiedMessage(t *testing.T) {
	for _, tt := range []struct {
		name     string
		copied   string
		tag      uint64
		multiple bool
		want     bool
	}{
		{"of the message", "m2", 2, false, true},
		{"of its neighbour", "m2", 1, false, false},
		{"of several", "m1", 2, true, true},
		{"of those before it", "m2", 1, true, false},
		{"without a copy", "", 2, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			reached := false
			tap := &wiretap{isDead: func(string) bool { return false }, trap: &trap{armed: beforeAck, tell: func(point) {
				reached = true
				runtime.Goexit() // where a process would wait for its death
			}}}
			consumer, publisher := tap.conn(nil), tap.conn(nil)
			consumer.(*tapped).delivered = map[uint64]carried{1: {id: "m1"}, 2: {id: "m2"}}
			if tt.copied != "" {
				publisher.(*tapped).copies = map[int]carried{5: {id: tt.copied}}
				publisher.(*tapped).confirm(7, true)
			}
			go consumer.(*tapped).ack(tt.tag, tt.multiple)
			synctest.Wait()
			if reached != tt.want {
				t.Errorf("an ack %s: stopped is %v, want %v", tt.name, reached, tt.want)
			}
		})
	}
}
