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
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/config"
)

// inspection is what a broker finds when it is looked at.
type inspection func(context.Context, brokers.Subscription) ([]inspect.Finding, error)

// patient is a broker that can be looked at, and that fails the test if anything
// else is asked of it.
type patient struct {
	brokers.Broker
	inspect inspection
}

func (p patient) Inspect(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	return p.inspect(ctx, sub)
}

func (patient) Topology(subs ...brokers.Subscription) (string, error) {
	return "what " + strings.Join(subs[0].Topics, " and ") + " need\n", nil
}

func (patient) Close(context.Context) error { return nil }

func isDown(context.Context, brokers.Subscription) ([]inspect.Finding, error) {
	return nil, errors.New("connection refused")
}

// clinic gives the shop three brokers in good health.
func (s *shop) clinic() {
	must(s, os.WriteFile(config.DefaultFile, []byte(goldentest.Read(s, filepath.Join(s.golden, "..", "clinic.yaml"))), 0o600))
	s.inspect = map[string]inspection{}
	for _, name := range []string{"shop", "events", "cloud"} {
		s.finds(name)
	}
}

// finds has a broker find something whatever is asked for.
func (s *shop) finds(broker string, found ...string) {
	var list []inspect.Finding
	for _, name := range found {
		list = append(list, findings[name])
	}
	s.inspect[broker] = func(context.Context, brokers.Subscription) ([]inspect.Finding, error) { return list, nil }
}

var findings = map[string]inspect.Finding{
	"expires": {Severity: inspect.Blocking, Topic: "orders", Setting: "x-message-ttl", Value: "60000", Want: "not set",
		Why: "what nobody has taken by then is lost", Fix: "take it out of the policy", See: "https://example.com/existing"},
	"unread": {Severity: inspect.Unverified, Topic: "orders-dead", Setting: "policy", Value: "not visible to AMQP",
		Why: "a policy could have messages expire", Fix: "give the address of the management API (Options.ManagementURL)"},
	"missing": {Severity: inspect.Blocking, Topic: "payments-dead", Missing: true, Why: "there is no such topic",
		Fix: "kafka-topics.sh --create --if-not-exists --topic payments-dead --partitions 12 --replication-factor 3 --config cleanup.policy=delete --config retention.ms=-1"},
	"otherMissing": {Severity: inspect.Blocking, Topic: "payments-delay", Missing: true, Why: "there is no such topic", Fix: "kafka-topics.sh --create --topic payments-delay"},
	"toCome":       {Severity: inspect.Noted, Topic: "orders", Missing: true, Why: "there is no such queue: the first worker that starts declares it"},
	"noNet":        {Severity: inspect.Noted, Topic: "visits", Setting: "RedrivePolicy", Why: "a message with which all workers die is lost"},
}

// TestDoctorOfABudget has the Redis of a budget be down.
func TestDoctorOfABudget(t *testing.T) {
	inShop(t, func(s *shop) {
		s.clinic()
		s.finds("shop", "noNet")
		s.types("edit", `letters.db}\n`, `letters.db}\nbudgets: {tokens: {redis: "127.0.0.1:1"}}\n`)
		got := s.call("doctor")
		for _, part := range []string{"RedrivePolicy", "ask Redis at 127.0.0.1:1", "3 topics on 3 brokers, 1 budget: 0 blocking, 0 unverified, 1 noted, 1 errors"} {
			if got.code != exitFailure || !strings.Contains(got.stdout+got.stderr, part) {
				t.Errorf("%s is not in %+v", part, got)
			}
		}
	})
}

// findsThree has doctor find three things, and fail. The parts are of its JSON.
func (s *shop) findsThree(parts ...string) (messages string) {
	s.Helper()
	got := s.call("doctor", "-o", "json")
	var b bytes.Buffer
	_ = json.Compact(&b, []byte(got.stdout))
	for _, part := range parts {
		if !strings.Contains(b.String(), part) {
			s.Errorf("%s is not in\n%s", part, got.stdout)
		}
	}
	if rows := strings.Count(got.stdout, `"severity"`); rows != 3 || got.code != exitFailure {
		s.Errorf("%d rows, exit code %d, messages %q", rows, got.code, got.stderr)
	}
	return got.stderr
}

// TestDoctorGoesOn has a broker that hangs, and one that is down: they hold up no
// other.
func TestDoctorGoesOn(t *testing.T) {
	inShop(t, func(c *shop) {
		c.clinic()
		c.inspect["events"] = func(ctx context.Context, _ brokers.Subscription) ([]inspect.Finding, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		c.inspect["cloud"] = isDown
		c.finds("shop", "noNet")
		began := time.Now()
		messages := c.findsThree(
			`{"severity":"error","broker":"cloud","topic":"visits",`, `"why":"connection refused"`,
			`{"severity":"error","broker":"events","topic":"payments",`, `"why":"it took longer than 15s"`, `{"severity":"noted","broker":"shop"`)
		if took := time.Since(began); took != 15*time.Second || !strings.Contains(messages, "not everything was looked at") {
			t.Errorf("it took %v, want 15s, messages %q", took, messages)
		}
	})
}

// TestDoctorReadsDeadLetters tests that doctor finds faults that keep redrive
// from collecting. An error about one topic must not hide findings about
// another topic.
func TestDoctorReadsDeadLetters(t *testing.T) {
	inShop(t, func(c *shop) {
		c.clinic()
		must(t, os.WriteFile(config.DefaultFile, []byte(`
brokers:
  cloud: {kind: sqs, region: us-east-1}
topics:
  - {name: orders, broker: cloud, dead: [orders-dead], collect: true, receipts: receipts}
  - {name: refunds, broker: cloud, dead: [refunds-dead]}
  - {name: stock.fifo, broker: cloud, dead: [stock-dead.fifo], collect: true}
store: {url: letters.db}
`), 0o600))
		denied := inspect.Finding{Severity: inspect.Blocking, Setting: "the identity's rights", Value: "not sqs:ReceiveMessage", Why: "it must not be read", Fix: "grant it"}
		c.inspect["cloud"] = func(_ context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
			topic := sub.Topics[0]
			switch {
			case topic == "orders":
				return nil, errors.New("throttled")
			case !sub.ReadOnly() || len(sub.Topics) > 1:
				return nil, nil
			case topic == "orders-dead":
				denied.Topic = topic
				return []inspect.Finding{denied, findings["noNet"], findings["missing"]}, nil
			case topic == "receipts": // the subscriptions of workers report that it is missing
				return nil, brokers.ErrNotFound
			case topic == "stock-dead.fifo":
				return nil, errors.New("the key of the queue is disabled")
			}
			return nil, nil
		}
		c.findsThree(
			`{"severity":"error","broker":"cloud","topic":"orders",`, `"why":"throttled"`,
			`{"severity":"error","broker":"cloud","topic":"stock-dead.fifo",`,
			`{"severity":"blocking","broker":"cloud","topic":"orders-dead","missing":false,"setting":"the identity's rights"`)
	})
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
