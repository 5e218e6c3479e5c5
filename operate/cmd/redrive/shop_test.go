package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

// shop is a configuration, its store on a file, and brokers in memory in the place
// of those that it names.
type shop struct {
	*testing.T
	golden  string // where the files are
	brokers map[string]*memory.Broker
	down    map[string]error             // brokers that cannot be made
	fault   func(memory.Op) memory.Fault // of the broker of orders
	streams term.Streams
	inspect map[string]inspection
	worker  *worker  // the one that a session has started
	stops   []func() // what stops that, and redrive serve
}

const shopConfig = `
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
  events: {kind: kafka, addresses: ["localhost:9092"]}
  demo: {kind: memory}
topics:
  - {name: orders, broker: shop, dead: [orders-dead], receipts: receipts, collect: true}
  - {name: refunds, broker: shop, dead: [refunds-dead]}
  - {name: payments, broker: events, dead: [payments-dead], groups: [billing, ledger], collect: true}
  - {name: visits, broker: demo, dead: [visits-dead], collect: true}
store: {url: letters.db}
`

// inShop runs a test in virtual time, in a folder of its own.
func inShop(t *testing.T, test func(s *shop)) {
	t.Helper()
	files, err := filepath.Abs(filepath.Join("testdata", "sessions"))
	must(t, err)
	t.Chdir(t.TempDir())
	t.Setenv(config.Variable, "")
	must(t, os.WriteFile(config.DefaultFile, []byte(shopConfig), 0o600))
	synctest.Test(t, func(t *testing.T) {
		s := &shop{T: t, golden: files, streams: plain, down: map[string]error{}}
		s.brokers = map[string]*memory.Broker{
			"shop": memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault {
				if s.fault == nil {
					return memory.Fault{}
				}
				return s.fault(op)
			}}),
			"events": memory.New(memory.Options{}), "demo": memory.New(memory.Options{}), "cloud": memory.New(memory.Options{}),
		}
		test(s)
	})
}

// open is an opener. Closing the broker of a command closes nothing of the shop's.
func (s *shop) open(_ context.Context, c *config.Config, name string) (brokers.Broker, error) {
	if err := s.down[name]; err != nil {
		return nil, err
	}
	if look := s.inspect[name]; look != nil {
		return patient{inspect: look}, nil
	}
	return lent{s.brokers[name]}, nil
}

type lent struct{ *memory.Broker }

func (lent) Close(context.Context) error { return nil }

// call runs the command in the shop.
func (s *shop) call(args ...string) result {
	s.Helper()
	return s.callWith(s.Context(), args...)
}

func (s *shop) callWith(ctx context.Context, args ...string) result {
	s.Helper()
	var stdout, stderr strings.Builder
	streams := s.streams
	streams.Out, streams.Err = &stdout, &stderr
	code := execute(ctx, newRootOn(streams, s.open, s.open), args, streams)
	return result{code, stdout.String(), stderr.String()}
}

// drawn is what depends on chance, and on which goroutine is first: progress, and
// times of this minute.
var drawn = regexp.MustCompile(`(?m)^\d+ of \d+ letters, .*\n|(00:00):\d\d(\.\d+)?`)

// refuses calls the command, which must fail with a message and print nothing.
func (s *shop) refuses(code int, message string, args ...string) {
	s.Helper()
	got := s.call(args...)
	if got.code != code || !strings.Contains(got.stderr, message) || got.stdout != "" {
		s.Errorf("%q: exit code %d, messages %q, data %q, want %d, %q", args, got.code, got.stderr, got.stdout, code, message)
	}
}

// withStore opens the store beside the command.
func (s *shop) withStore(f func(*store.Store)) {
	s.Helper()
	st, err := store.Open(s.Context(), "letters.db")
	must(s, err)
	defer func() { must(s, st.Close()) }()
	f(st)
}

// letter returns what the store has of one.
func (s *shop) letter(id int64) (l store.Letter, history []store.Change) {
	s.Helper()
	s.withStore(func(st *store.Store) {
		var err error
		l, err = st.Letter(s.Context(), id)
		must(s, err)
		history, err = st.History(s.Context(), id)
		must(s, err)
	})
	return l, history
}

// died is a dead letter that a worker of the shop leaves.
func died(n int, topic, reason, class, text string) dlq.Entry {
	at := time.Date(1999, 12, 31, 20, n, 0, 0, time.UTC) // before the clock of a bubble begins
	e := dlq.Entry{
		Message: brokers.Message{
			ID: fmt.Sprintf("%s-%d", topic, n), Topic: topic, Key: fmt.Sprint("customer-", n%3), PublishedAt: at.Add(-time.Minute),
			Body:    fmt.Appendf(nil, `{"id":%d,"cents":%d,"currency":"EUR"}`, n, 100*n),
			Headers: brokers.Headers{{Name: "tenant", Value: "acme"}},
		},
		Reason: reason, DeadAt: at, DeadBy: "worker-1", Rule: "a rule",
		Meta: brokers.Meta{Attempt: 3, Class: class, FirstFailedAt: at.Add(-30 * time.Second), LastFailedAt: at, History: []brokers.Failure{{At: at, Class: class, Fingerprint: "f"}}},
	}
	e.DescribeError("shop.Error", "E42", text, "", nil)
	return e
}

// brokerOf are the brokers of the topics.
var brokerOf = map[string]string{"orders": "shop", "refunds": "shop", "payments": "events", "visits": "demo"}

// publish has dead letters of a topic wait in its broker, of which number 1 is hostile.
func (s *shop) publish(topic string, from, to int) {
	s.Helper()
	broker := s.brokers[brokerOf[topic]]
	for n := from; n <= to; n++ {
		e := died(n, topic, "poison", "poison", "declined")
		if n == 1 {
			e = died(n, topic, "panic", "unknown", hostile)
			e.Message.Body = []byte("\xff")
		}
		must(s, broker.Publish(s.Context(), topic+"-dead", e.Encode(0)))
	}
}

// fill collects letters of several kinds: 1 to 3 were declined, 4 and 5 could not
// connect, 6 died on Kafka, and 7 and 8 are hostile.
func (s *shop) fill() {
	s.Helper()
	var letters []store.Collected
	add := func(broker, source, position string, e dlq.Entry) {
		letters = append(letters, store.Collected{Broker: broker, Source: source, Position: position, Format: "redrive", Raw: e.Encode(0), Entry: e})
	}
	for n := range 3 {
		add("shop", "orders-dead", "", died(n, "orders", "poison", "poison", fmt.Sprintf("POST http://pay.example/charges: http status 402: the bank of customer %d declined", n)))
	}
	for n := 3; n < 5; n++ {
		add("shop", "orders-dead", "", died(n, "orders", "exhausted", "transient", "dial tcp 10.0.0.7:443: connect: connection refused"))
	}
	kafka := died(5, "payments", "unclassified", "unknown", "no rule knows this")
	kafka.Group = "billing"
	add("events", "payments-dead", "0/41", kafka)
	bad := died(6, "orders", "poison", "poison", "the broker said "+hostile)
	bad.Message.Headers = brokers.Headers{{Name: "x-" + hostile, Value: hostile}, {Name: "binary", Value: "\xff\xfe"}, {Name: "empty"}}
	bad.Message.ID, bad.Message.Key, bad.Message.Body = "id-"+hostile, hostile, []byte("one line\n"+hostile+" and a tab\t.\n")
	add("shop", "orders-dead", "", bad)
	odd := died(7, "orders"+hostile, "panic", "unknown", "runtime error")
	odd.Stack, odd.Message.Body = "goroutine 1 [running]:\n\tmain.go:1\x1b[2J", []byte("\x00\x01\x02\xff binary")
	add("shop", "orders-dead", "", odd)
	s.withStore(func(st *store.Store) {
		for _, l := range letters { // one by one, so that the numbers are known
			_, err := st.Collect(s.Context(), time.Now(), []store.Collected{l})
			must(s, err)
		}
	})
}

// acts are the rows of the audit, as text.
func (s *shop) acts() (lines []string) {
	s.Helper()
	s.withStore(func(st *store.Store) {
		list, err := st.Audit(s.Context(), store.Page{})
		must(s, err)
		for _, a := range list.Acts {
			lines = append(lines, fmt.Sprintf("%s %s %d: %s: %s", a.Actor.Who, a.What, a.Letters, a.Actor.Command, a.Actor.Reason))
		}
	})
	return lines
}
