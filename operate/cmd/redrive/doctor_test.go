package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/internal/goldentest"
	"github.com/redrive-go/redrive/operate/config"
)

// clinic is a configuration with what its brokers find.
type clinic struct {
	*testing.T
	config  string
	inspect map[string]func(context.Context, brokers.Subscription) ([]brokers.Finding, error)
}

// patient is a broker that can be looked at, and that fails the test if anything
// else is asked of it.
type patient struct {
	brokers.Broker
	inspect func(context.Context, brokers.Subscription) ([]brokers.Finding, error)
}

func (p patient) Inspect(ctx context.Context, sub brokers.Subscription) ([]brokers.Finding, error) {
	return p.inspect(ctx, sub)
}

func (patient) Topology(subs ...brokers.Subscription) (string, error) {
	return "what " + strings.Join(subs[0].Topics, " and ") + " need\n", nil
}

func (patient) Close(context.Context) error { return nil }

func (c *clinic) open(_ context.Context, _ *config.Config, name string) (brokers.Broker, error) {
	if inspect := c.inspect[name]; inspect != nil {
		return patient{inspect: inspect}, nil
	}
	return memory.New(memory.Options{}), nil
}

func (c *clinic) call(args ...string) result {
	c.Helper()
	file := filepath.Join(c.TempDir(), "redrive.yaml")
	if err := os.WriteFile(file, []byte(c.config), 0o600); err != nil {
		c.Fatal(err)
	}
	var stdout, stderr strings.Builder
	streams := plain
	streams.Out, streams.Err = &stdout, &stderr
	code := execute(c.Context(), newRootOn(streams, c.open, c.open), append([]string{"doctor", "--config", file}, args...), streams)
	return result{code, stdout.String(), stderr.String()}
}

const clinicConfig = `
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
  events: {kind: kafka, addresses: ["localhost:9092"]}
  cloud: {kind: sqs}
topics:
  - {name: orders, broker: shop, dead: [orders-dead]}
  - {name: payments, broker: events, dead: [payments-dead], groups: [billing, ledger]}
  - {name: visits, broker: cloud, dead: [visits-dead]}
store: {url: letters.db}
`

func nothing(context.Context, brokers.Subscription) ([]brokers.Finding, error) { return nil, nil }

const (
	downBudget = "budgets: {tokens: {redis: \"127.0.0.1:1\"}}\n"
	oneBroker  = `
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
topics:
  - {name: orders, broker: shop, dead: [orders-dead]}
store: {url: letters.db}
`
)

func isDown(context.Context, brokers.Subscription) ([]brokers.Finding, error) {
	return nil, errors.New("connection refused")
}

// newClinic has three brokers in good health.
func newClinic(t *testing.T) *clinic {
	c := &clinic{T: t, config: clinicConfig}
	c.inspect = map[string]func(context.Context, brokers.Subscription) ([]brokers.Finding, error){"shop": nothing, "events": nothing, "cloud": nothing}
	return c
}

// finds has a broker find something whatever is asked for.
func (c *clinic) finds(broker string, found ...brokers.Finding) {
	c.inspect[broker] = func(context.Context, brokers.Subscription) ([]brokers.Finding, error) { return found, nil }
}

var (
	expires = brokers.Finding{Severity: brokers.SeverityBlocking, Topic: "orders", Setting: "x-message-ttl", Value: "60000", Want: "not set",
		Why: "what nobody has taken by then is lost", Fix: "take it out of the policy", See: "https://example.com/existing"}
	unread = brokers.Finding{Severity: brokers.SeverityUnverified, Topic: "orders-dead", Setting: "policy", Value: "not visible to AMQP",
		Why: "a policy could have messages expire", Fix: "give the address of the management API (Options.ManagementURL)"}
	missing = brokers.Finding{Severity: brokers.SeverityBlocking, Topic: "payments-dead", Missing: true, Why: "there is no such topic",
		Fix: "kafka-topics.sh --create --if-not-exists --topic payments-dead --partitions 12 --replication-factor 3 --config cleanup.policy=delete --config retention.ms=-1"}
	toCome = brokers.Finding{Severity: brokers.SeverityNoted, Topic: "orders", Missing: true, Why: "there is no such queue: the first worker that starts declares it"}
	noNet  = brokers.Finding{Severity: brokers.SeverityNoted, Topic: "visits", Setting: "RedrivePolicy", Why: "a message with which all workers die is lost"}
)

// TestDoctorGolden holds what is printed: its JSON is a promise.
func TestDoctorGolden(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		c := newClinic(t)
		c.finds("shop", unread, expires)
		other := missing
		other.Topic = "payments-delay"
		c.finds("events", missing, other) // of both groups
		c.finds("cloud", noNet)
		got := c.call("-o", format)
		if want := "redrive doctor: workers do not start"; got.code != exitFailure || !strings.Contains(got.stderr, "3 topics on 3 brokers: 3 blocking, 1 unverified, 1 noted, 0 errors\n"+want) {
			t.Errorf("%s: exit code %d, messages %q", format, got.code, got.stderr)
		}
		goldentest.File(t, filepath.Join("testdata", "doctor", "found."+format), got.stdout)
	}
}

func TestDoctorCodes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		plant func(c *clinic)
		args  []string
		code  int
		out   string
		err   string
	}{
		{"all is well", func(*clinic) {}, nil, exitOK, "severity  broker  topic  what\n", "0 blocking, 0 unverified, 0 noted, 0 errors\n"},
		{"noted", func(c *clinic) { c.finds("cloud", noNet) }, nil, exitOK, "RedrivePolicy: not set", "1 noted"},
		{"unverified", func(c *clinic) { c.finds("shop", unread) }, nil, exitOK, "the management API (management)", "1 unverified"},
		{"blocking", func(c *clinic) { c.finds("shop", expires) }, nil, exitFailure, "blocking", "mend what is blocking"},
		{"elsewhere", func(c *clinic) { c.finds("shop", expires) }, []string{"cloud", "events"}, exitOK, "", "2 topics on 2 brokers"},
		{"cannot be looked at", func(c *clinic) { delete(c.inspect, "cloud") }, nil, exitOK, "brokers of the kind sqs cannot be looked at", "1 unverified"},
		{"groups are not known", func(c *clinic) { c.config = strings.Replace(c.config, ", groups: [billing, ledger]", "", 1) }, nil, exitOK, "names no groups", "1 unverified"},
		{"no such broker", func(*clinic) {}, []string{"shpo"}, exitUsage, "", `there is no broker and no budget "shpo": name cloud, events or shop`},
		{"is created by a worker", func(c *clinic) { c.finds("shop", toCome) }, nil, exitOK, "is missing", "0 blocking, 0 unverified, 1 noted"},
		{"a broker that is down", func(c *clinic) { c.inspect["cloud"] = isDown; c.finds("shop", noNet) }, nil, exitFailure, "RedrivePolicy", "0 blocking, 0 unverified, 1 noted, 1 errors\nredrive doctor: not everything was looked at"},
		{"a budget that is down", func(c *clinic) { c.config += downBudget; c.finds("shop", noNet) }, nil, exitFailure, "ask Redis at 127.0.0.1:1", "3 topics on 3 brokers, 1 budget: 0 blocking, 0 unverified, 1 noted, 1 errors"},
		{"but not this budget", func(c *clinic) { c.config += downBudget }, []string{"shop"}, exitOK, "", "1 topic on 1 broker: 0 blocking"},
		{"topology beside a budget", func(c *clinic) { c.config = oneBroker + downBudget }, []string{"--topology"}, exitOK, "what orders need\n", ""},
		{"topology of a budget", func(c *clinic) { c.config += downBudget }, []string{"tokens", "--topology"}, exitUsage, "", "workers need nothing of the Redis"},
		{"a fault of the configuration", func(c *clinic) { c.config += "x: y\n" }, nil, exitFailure, "", "there is no such key"},
		{"topology", func(*clinic) {}, []string{"shop", "--topology"}, exitOK, "what orders need\n", ""},
		{"topology of several", func(*clinic) {}, []string{"--topology"}, exitUsage, "", "--topology is of one broker: name cloud, events or shop"},
		{"topology as JSON", func(*clinic) {}, []string{"shop", "--topology", "-o", "json"}, exitUsage, "", "leave out --output"},
		{"no topology", func(c *clinic) { delete(c.inspect, "cloud") }, []string{"cloud", "--topology"}, exitFailure, "", "kind sqs cannot say"},
	} {
		c := newClinic(t)
		tt.plant(c)
		got := c.call(tt.args...)
		if got.code != tt.code || !strings.Contains(got.stdout, tt.out) || !strings.Contains(got.stderr, tt.err) {
			t.Errorf("%s: exit code %d, data\n%s\nmessages\n%s", tt.name, got.code, got.stdout, got.stderr)
		}
	}
}

// A broker that hangs, and one that is down, hold up no other.
// squeezed is JSON without line feeds and indents.
func squeezed(text string) string {
	var b bytes.Buffer
	_ = json.Compact(&b, []byte(text))
	return b.String()
}

func TestDoctorGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(t)
		c.inspect["events"] = func(ctx context.Context, _ brokers.Subscription) ([]brokers.Finding, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		c.inspect["cloud"] = isDown
		c.finds("shop", noNet)
		began := time.Now()
		got := c.call("-o", "json")
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("it took %v, want 15s", took)
		}
		for _, part := range []string{
			`{"severity":"error","broker":"cloud","topic":"visits",`, `"why":"connection refused"`,
			`{"severity":"error","broker":"events","topic":"payments",`, `"why":"it took longer than 15s"`, `{"severity":"noted","broker":"shop"`,
		} {
			if !strings.Contains(squeezed(got.stdout), part) {
				t.Errorf("%s is not in\n%s", part, got.stdout)
			}
		}
		if lines := strings.Count(got.stdout, `"severity"`); lines != 3 || got.code != exitFailure || !strings.Contains(got.stderr, "not everything was looked at") {
			t.Errorf("%d rows, exit code %d, messages %q", lines, got.code, got.stderr)
		}
	})
}

// TestDoctorReadsDeadLetters tests that doctor finds faults that keep redrive
// from collecting. An error about one topic must not hide findings about
// another topic.
func TestDoctorReadsDeadLetters(t *testing.T) {
	c := newClinic(t)
	c.config = `
brokers:
  cloud: {kind: sqs, region: us-east-1}
topics:
  - {name: orders, broker: cloud, dead: [orders-dead], collect: true, receipts: receipts}
  - {name: refunds, broker: cloud, dead: [refunds-dead]}
  - {name: stock.fifo, broker: cloud, dead: [stock-dead.fifo], collect: true}
store: {url: letters.db}
`
	denied := brokers.Finding{Severity: brokers.SeverityBlocking, Setting: "the identity's rights", Value: "not sqs:ReceiveMessage", Why: "it must not be read", Fix: "grant it"}
	c.inspect["cloud"] = func(_ context.Context, sub brokers.Subscription) ([]brokers.Finding, error) {
		topic := sub.Topics[0]
		switch {
		case topic == "orders":
			return nil, errors.New("throttled")
		case !sub.ReadOnly() || len(sub.Topics) > 1:
			return nil, nil
		case topic == "orders-dead":
			denied.Topic = topic
			noted, missing := noNet, missing
			return []brokers.Finding{denied, noted, missing}, nil
		case topic == "receipts": // the subscriptions of workers report that it is missing
			return nil, brokers.ErrNotFound
		case topic == "stock-dead.fifo":
			return nil, errors.New("the key of the queue is disabled")
		}
		return nil, nil
	}
	got := c.call("-o", "json")
	for _, part := range []string{
		`{"severity":"error","broker":"cloud","topic":"orders",`, `"why":"throttled"`,
		`{"severity":"error","broker":"cloud","topic":"stock-dead.fifo",`,
		`{"severity":"blocking","broker":"cloud","topic":"orders-dead","missing":false,"setting":"the identity's rights"`,
	} {
		if !strings.Contains(squeezed(got.stdout), part) {
			t.Errorf("%s is not in\n%s", part, got.stdout)
		}
	}
	if lines := strings.Count(got.stdout, `"severity"`); lines != 3 || got.code != exitFailure {
		t.Errorf("%d rows, exit code %d, messages %q", lines, got.code, got.stderr)
	}
}

func TestAimed(t *testing.T) {
	kafka := &config.Broker{Addresses: []string{"kafka-1:9092", "kafka-2:9092"}}
	sqs := &config.Broker{Region: "eu-central-1", Endpoint: "http://localhost:9324"}
	for _, tt := range []struct {
		broker    *config.Broker
		fix, want string
	}{
		{kafka, "kafka-topics.sh --create --topic a", "kafka-topics.sh --bootstrap-server kafka-1:9092,kafka-2:9092 --create --topic a"},
		{kafka, "stop them, or choose another group", "stop them, or choose another group"},
		{sqs, "aws sqs create-queue --queue-name a", "aws --region eu-central-1 --endpoint-url http://localhost:9324 sqs create-queue --queue-name a"},
		{&config.Broker{Profile: "the shop"}, "aws sqs create-queue", "aws --profile 'the shop' sqs create-queue"},
		{&config.Broker{URLs: []string{"amqp://localhost"}}, "rabbitmqctl delete_queue a", "rabbitmqctl delete_queue a"},
		{nil, "redis-cli -h a", "redis-cli -h a"},
	} {
		if got := aimed(tt.broker, tt.fix); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
