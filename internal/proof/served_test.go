package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
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
	rig  rig
	want promise
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
		"forgets due times":      {early, promiseEarly},
		"acks what it receives":  {below(func(_ *scenario, s brokers.Source) brokers.Source { return hasty{s} }), promiseLost},
		"retries without a copy": {below(func(_ *scenario, s brokers.Source) brokers.Source { return forgetful{s} }), promiseLost},
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

func servedURL(t *testing.T) string {
	url := cmp.Or(os.Getenv("REDRIVE_RABBITMQ4_URL"), os.Getenv("REDRIVE_RABBITMQ_URL"))
	const missing = "neither REDRIVE_RABBITMQ4_URL nor REDRIVE_RABBITMQ_URL is set, so there is no broker to run on: make test starts one, or make up prints the address"
	switch {
	case url != "":
		return url
	case os.Getenv("CI") == "true":
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

func TestProofOnRabbitMQ(t *testing.T) {
	t.Parallel()
	url := servedURL(t)
	var out, problems bytes.Buffer
	args := []string{"-broker", "rabbitmq", "-url", url, "-messages", "600", "-kills", "7", "-seed", "3"}
	if status := command(t.Context(), args, &out, &problems); status != 0 {
		t.Errorf("status %d:\n%s%s", status, problems.String(), out.String())
	}
	for _, want := range []string{"sent\t600\t", "kills\t7\tkills\t7\tok\n", "residue\t0\t"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// The proof is worth nothing if it does not find what is wrong.
func TestProofOnRabbitMQFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	url := servedURL(t)
	for name, bug := range servedBugs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options{seed: 3, messages: 400, kills: 5, url: url, environment: []string{plantedBug + "=" + name}}
			records, err := proveRabbitMQ(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			found := map[promise]int{}
			for _, v := range check(records[0]).violations {
				found[v.promise]++
			}
			if found[bug.want] == 0 {
				t.Errorf("found %v, want %q", found, bug.want)
			}
		})
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
	stream := append([]byte("AMQP\x00\x00\x09\x01"), frame(methodFrame, 0, 60, 0, 40, 0, 0, 1, 'x', 1, 'k')...)
	stream = append(stream, frame(2, 1, 2, 3)...)
	stream = append(stream, frame(methodFrame, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 7, 1)...)
	for size := 1; size <= len(stream); size++ {
		s := scanner{skip: 8}
		var methods []int
		for at := 0; at < len(stream); at += size {
			s.scan(stream[at:min(at+size, len(stream))], func(method int, args []byte) {
				methods = append(methods, method)
				if method == basicPublish {
					exchange, rest := shortString(args[2:])
					if key, _ := shortString(rest); exchange != "x" || key != "k" {
						t.Errorf("in pieces of %d: published to %q with key %q", size, exchange, key)
					}
				}
			})
		}
		if len(methods) != 2 || methods[0] != basicPublish || methods[1] != basicAck {
			t.Errorf("in pieces of %d: methods %x, want a publish and an ack", size, methods)
		}
	}
}
