package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain lets the test binary be a worker process.
func TestMain(m *testing.M) {
	rigs := map[string]rig{}
	for name, bug := range servedBugs() {
		rigs[name] = bug.rig
	}
	if len(os.Args) > 2 && os.Args[1] == workerCommand {
		os.Exit(serve(os.Args[2], os.Stdin, os.Stdout, os.Stderr, rigs))
	}
	os.Exit(livetest.Main(m, 7))
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
		m := d.Meta()
		m.DueAt = time.Time{}
		d.Carried = &m
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
		if m := d.Meta(); m.Attempt == 1 {
			m.Attempt++
			d.Carried = &m
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

// A few kills on each broker; make nightly has more, and demands one at each
// point.
func TestProofOnRabbitMQ(t *testing.T) {
	t.Parallel()
	testProof(t, job{Broker: "rabbitmq", Messages: 600, Kills: 7, URL: servedURL(t, "rabbitmq")})
}

func TestProofOnKafka(t *testing.T) {
	t.Parallel()
	testProof(t, job{Broker: "kafka", Messages: 400, Kills: 3, URL: servedURL(t, "kafka")})
}

func TestProofOnSQS(t *testing.T) {
	t.Parallel()
	testProof(t, job{Broker: "sqs", Messages: 400, Kills: 5, URL: servedURL(t, "sqs")})
}

// On a fake that is as strict as AWS documents.
func TestProofOnFIFOQueues(t *testing.T) {
	t.Parallel()
	testProof(t, job{Broker: "sqs", Messages: 400, Kills: 5, URL: fakeSQS(t), FIFO: true})
}

func TestProofWithManyKills(t *testing.T) {
	livetest.Nightly(t)
	// One after the other: each keeps two cores busy, and what is late for want of
	// them is no fault.
	for name, j := range map[string]job{
		"RabbitMQ":              {Broker: "rabbitmq", Messages: 2000, Kills: 21, URL: servedURL(t, "rabbitmq")},
		"SQS":                   {Broker: "sqs", Messages: 1500, Kills: 14, URL: servedURL(t, "sqs")},
		"fake SQS with copies":  {Broker: "sqs", Messages: 2000, Kills: 14, URL: fakeSQS(t), Copies: true},
		"fake SQS, FIFO queues": {Broker: "sqs", Messages: 2000, Kills: 14, URL: fakeSQS(t), FIFO: true},
	} {
		t.Run(name, func(t *testing.T) { testProof(t, j) })
	}
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		testProof(t, job{Broker: "kafka", Messages: 1500, Kills: 11, URL: target.URL})
	})
}

func fakeSQS(t *testing.T) (url string) {
	server := sqstest.NewServer(sqstest.Options{})
	t.Cleanup(server.Close)
	return server.URL
}

func testProof(t *testing.T, j job) {
	t.Helper()
	var out, problems bytes.Buffer
	args := []string{"-broker", j.Broker, "-url", j.URL, "-messages", strconv.Itoa(j.Messages), "-kills", strconv.Itoa(j.Kills), "-seed", "3",
		"-copies=" + strconv.FormatBool(j.Copies), "-fifo=" + strconv.FormatBool(j.FIFO)}
	if status := command(t.Context(), args, &out, &problems); status != 0 {
		t.Errorf("status %d:\n%s%s", status, problems.String(), out.String())
	}
	for _, want := range []string{fmt.Sprintf("sent\t%d\t", j.Messages), fmt.Sprintf("kills\t%d\tkills\t%[1]d\tok\n", j.Kills), "residue\t0\t"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, p := range points {
		if j.Kills > len(points) && strings.Contains(out.String(), "kills_"+string(p)+"\t0\t") {
			t.Errorf("no worker was killed at the point %s:\n%s", p, out.String())
		}
	}
}

// The proof is worth nothing if it does not find what is wrong. make test plants
// one on each broker.
func TestProofFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	quick := map[string]string{"rabbitmq": "retries without a copy", "kafka": "acks what it receives", "sqs": "retries without a copy"}
	for _, j := range []job{
		{Broker: "rabbitmq", Seed: 3, Messages: 400, Kills: 5},
		{Broker: "kafka", Seed: 3, Messages: 400, Kills: 2},
		{Broker: "sqs", Seed: 3, Messages: 400, Kills: 2},
	} {
		for name, bug := range bugsOf(j.Broker) {
			t.Run(j.Broker+"/"+name, func(t *testing.T) {
				if quick[j.Broker] != name {
					livetest.Nightly(t)
				}
				j.URL = servedURL(t, j.Broker)
				t.Parallel()
				testPlantedBug(t, j, name, bug)
			})
		}
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
	j.Bug = name
	rec, err := proveServed(t.Context(), options{job: j})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	found, got := map[promise]int{}, check(rec)
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

func TestWiretapStopsAtItsPoints(t *testing.T) {
	frame := func(kind byte, payload ...byte) []byte {
		return append(append([]byte{kind, 0, 1, 0, 0, 0, byte(len(payload))}, payload...), 0xCE)
	}
	ack := frame(1, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 7, 1)
	declare := frame(1, 0, 50, 0, 10, 0, 0, 2, 'q', '1', 0)
	other := frame(3, 1, 2, 3)
	for _, tt := range []struct {
		name    string
		in, out []byte
		want    string
	}{
		{"a confirm", slices.Concat(other, ack), nil, "before_confirm "},
		{"an ack after a confirm", ack, slices.Concat(other, ack, ack), "before_confirm before_ack "},
		{"an ack", nil, ack, ""},
		{"a declaration", nil, declare, "queue q1 "},
	} {
		for size := 1; size < 40; size++ {
			reached := ""
			tap := &wiretap{declared: func(what, name string) { reached += what + " " + name + " " }}
			for _, p := range []point{beforeConfirm, beforeAck} {
				tap.trap = &trap{armed: p, tell: func(p point) {
					reached += string(p) + " "
					runtime.Goexit() // where a process would wait for its death
				}}
				c := &tapped{Conn: pieces{}, tap: tap, out: scanner{skip: 8}}
				var working sync.WaitGroup
				working.Go(func() {
					for piece := range slices.Chunk(tt.in, size) {
						c.in.scan(piece, c.receive)
					}
					for piece := range slices.Chunk(append(make([]byte, 8), tt.out...), size) {
						c.Write(piece)
					}
				})
				working.Wait()
			}
			if p := strings.ReplaceAll(reached, "queue q1 queue q1 ", "queue q1 "); p != tt.want {
				t.Errorf("%s, in pieces of %d: %q, want %q", tt.name, size, p, tt.want)
			}
		}
	}
}

// pieces takes whatever is written.
type pieces struct{ net.Conn }

func (pieces) Write(b []byte) (int, error) { return len(b), nil }
