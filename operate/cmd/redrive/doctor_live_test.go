package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/config"
)

// site is a real broker, "b" in a configuration, that doctor looks at. TAG in a
// configuration and in what is wanted is the test's own.
type site struct {
	*testing.T
	tag, config string
}

func newSite(t *testing.T, config string) *site {
	return &site{t, strings.ToLower(rand.Text()[:10]), config}
}

func (s *site) named(text string) string { return strings.ReplaceAll(text, "TAG", s.tag) }

// file writes the configuration after changes, which are pairs of old and new.
func (s *site) file(changes ...string) string {
	s.Helper()
	file := filepath.Join(s.TempDir(), "redrive.yaml")
	text := s.named(strings.NewReplacer(changes...).Replace(s.config))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	return file
}

// finds has doctor look, and compares what it finds: of each finding severity, topic
// and what it says in a few words.
func (s *site) finds(what string, code int, want []string, changes ...string) {
	s.Helper()
	got := call(s.T, "doctor", "--config", s.file(changes...), "-o", "json")
	var rows []findingRow
	if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil {
		s.Fatalf("%s: %v\n%s%s", what, err, got.stdout, got.stderr)
	}
	left := map[string]int{}
	for _, w := range want {
		left[s.named(w)]++
	}
	for _, r := range rows {
		short := r.Severity + " " + r.Topic + " " + r.Setting
		if r.Missing {
			short += "missing"
		}
		short = strings.TrimSpace(short)
		if left[short]--; left[short] < 0 {
			s.Errorf("%s: found %s, which is not wanted: %+v", what, short, r)
		}
		if r.Why == "" || r.Fix == "" || r.See == "" {
			s.Errorf("%s: a finding without reason, remedy or page: %+v", what, r)
		}
	}
	for short, n := range left {
		if n > 0 {
			s.Errorf("%s: %s was not found", what, short)
		}
	}
	if got.code != code {
		s.Errorf("%s: exit code %d, want %d\n%s", what, got.code, code, got.stderr)
	}
}

// connect returns the configuration of the site and a connection to its broker.
func (s *site) connect(changes ...string) (*config.Config, brokers.Broker) {
	s.Helper()
	c, err := config.Load(s.file(changes...))
	if err != nil {
		s.Fatal(err)
	}
	broker, err := connect.Broker(s.Context(), c, "b")
	if err != nil {
		s.Fatal(err)
	}
	return c, broker
}

// work starts workers once, so that they create missing queues and topics.
func (s *site) work(changes ...string) {
	s.Helper()
	c, broker := s.connect(changes...)
	for _, sub := range connect.Subscriptions(c, "b", 0) {
		sub.InFlight = 10
		source, err := broker.Open(s.Context(), sub)
		if err != nil {
			s.Fatal(err)
		}
		if err := source.Close(s.Context()); err != nil {
			s.Error(err)
		}
	}
	if err := broker.Close(s.Context()); err != nil {
		s.Error(err)
	}
}

func TestDoctorOnRabbitMQ(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		if target.ManagementURL == "" {
			t.Skip("the address of the management API is not known")
		}
		u, err := url.Parse(target.URL)
		if err != nil {
			t.Fatal(err)
		}
		management, err := url.Parse(target.ManagementURL)
		if err != nil {
			t.Fatal(err)
		}
		management.User = nil
		password, _ := u.User.Password()
		t.Setenv("DOCTOR_PASSWORD", password)
		s := newSite(t, fmt.Sprintf(`
brokers:
  b: {kind: rabbitmq, urls: ["amqp://%s%s"], user: %s, password: {env: DOCTOR_PASSWORD}, management: "%s", prefix: rTAG}
topics:
  - {name: orders-TAG, broker: b, dead: [orders-dead-TAG], retry: {attempts: 3, max_delay: 250ms, max_age: 1h}}
store: {url: letters.db}
`, u.Host, u.Path, u.User.Username(), management))
		admin := newRabbit(t, target.URL)
		queues := []string{"orders-TAG", "orders-dead-TAG", "rTAG.retry.v1.orders-TAG", "rTAG.unroutable.v1", "rTAG.delay.v2.250", "rTAG.delay.v2.86400000"}
		t.Cleanup(func() {
			for _, name := range queues {
				admin.do(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(s.named(name), false, false, false); return err })
			}
			for _, name := range []string{"rTAG.dead.v1", "rTAG.return.v1", "rTAG.copy.v1", "rTAG.unroutable.v1", "rTAG.delay.v2.250"} {
				admin.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(s.named(name), false, false) })
			}
		})

		var missing, refused []string
		for _, name := range append(queues[:5:5], "rTAG.dead.v1", "rTAG.return.v1", "rTAG.copy.v1", "rTAG.unroutable.v1", "rTAG.delay.v2.250") {
			missing, refused = append(missing, "noted "+name+" missing"), append(refused, "refused "+name+" missing")
		}
		s.finds("before the first worker", exitOK, missing)
		s.finds("where workers may create nothing", exitFailure, refused, "prefix:", "verify: true, prefix:")
		s.work()
		s.finds("a good set-up", exitOK, nil)

		replace := func(name string, durable bool, args amqp.Table) {
			admin.must(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(s.named(name), false, false, false); return err })
			admin.must(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(s.named(name), durable, false, false, false, args)
				return err
			})
		}
		replace("orders-TAG", true, amqp.Table{"x-message-ttl": 60_000, "x-max-length": 10})
		replace("orders-dead-TAG", true, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3})
		replace("rTAG.retry.v1.orders-TAG", true, amqp.Table{"x-queue-type": "quorum", "x-expires": 3_600_000, "x-dead-letter-exchange": "elsewhere"})
		admin.must(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(s.named("rTAG.unroutable.v1"), false, false, false)
			return err
		})
		admin.must(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(s.named("rTAG.delay.v2.86400000"), true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err
		})
		faults := []string{
			"refused orders-TAG x-message-ttl", "refused orders-TAG x-overflow", "noted orders-TAG x-queue-type",
			"refused orders-dead-TAG x-delivery-limit",
			"refused rTAG.retry.v1.orders-TAG x-expires", "refused rTAG.retry.v1.orders-TAG x-dead-letter-strategy", "refused rTAG.retry.v1.orders-TAG x-overflow",
			"noted rTAG.unroutable.v1 missing", "noted rTAG.delay.v2.86400000",
		}
		s.finds("a bad one", exitFailure, faults)
		s.finds("the same", exitFailure, faults)
	})
}

// rabbit plants faults on a RabbitMQ.
type rabbit struct {
	*testing.T
	conn *amqp.Connection
}

func newRabbit(t *testing.T, address string) *rabbit {
	conn, err := amqp.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rabbit{t, conn}
}

func (r *rabbit) do(f func(ch *amqp.Channel) error) error {
	ch, err := r.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	return f(ch)
}

func (r *rabbit) must(f func(ch *amqp.Channel) error) {
	r.Helper()
	if err := r.do(f); err != nil {
		r.Fatal(err)
	}
}

func TestDoctorOnKafka(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		s := newSite(t, fmt.Sprintf(`
brokers:
  b: {kind: kafka, addresses: ["%s"], prefix: rTAG}
topics:
  - {name: orders-TAG, broker: b, dead: [orders-dead-TAG], groups: [billing], retry: {max_delay: 15m}}
store: {url: letters.db}
`, target.URL))
		admin := &kafka.Client{Addr: kafka.TCP(target.URL)}
		create := func(topic string, partitions int, configs ...string) {
			t.Helper()
			made := kafka.TopicConfig{Topic: s.named(topic), NumPartitions: partitions, ReplicationFactor: 1}
			for i := 0; i < len(configs); i += 2 {
				made.ConfigEntries = append(made.ConfigEntries, kafka.ConfigEntry{ConfigName: configs[i], ConfigValue: configs[i+1]})
			}
			answer, err := admin.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{made}})
			if err == nil {
				err = answer.Errors[made.Topic]
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		alter := func(topic string, configs ...string) {
			t.Helper()
			resource := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: s.named(topic)}
			for i := 0; i < len(configs); i += 2 {
				resource.Configs = append(resource.Configs, kafka.IncrementalAlterConfigsRequestConfig{Name: configs[i], Value: configs[i+1], ConfigOperation: kafka.ConfigOperationSet})
			}
			answer, err := admin.IncrementalAlterConfigs(t.Context(), &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{resource}})
			if err == nil {
				err = answer.Resources[0].Error
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		topics := []string{"orders-TAG", "orders-dead-TAG", "rTAG.delay.v1.billing.1m", "rTAG.delay.v1.billing.15m", "rTAG.delay.v1.ledger.1m"}
		t.Cleanup(func() {
			var names []string
			for _, name := range topics {
				names = append(names, s.named(name))
			}
			admin.DeleteTopics(context.WithoutCancel(t.Context()), &kafka.DeleteTopicsRequest{Topics: names})
		})

		s.finds("before the first worker", exitFailure, []string{
			"refused orders-TAG missing", "noted orders-dead-TAG missing", "noted rTAG.delay.v1.billing.1m missing", "noted rTAG.delay.v1.billing.15m missing"})
		create("orders-TAG", 4)
		s.finds("where workers may create nothing", exitFailure, []string{
			"refused orders-dead-TAG missing", "refused rTAG.delay.v1.billing.1m missing", "refused rTAG.delay.v1.billing.15m missing"}, "prefix:", "verify: true, prefix:")
		s.work()
		s.finds("a good set-up", exitOK, nil)

		alter("rTAG.delay.v1.billing.15m", "cleanup.policy", "compact", "retention.bytes", "1000", "retention.ms", "60000")
		alter("orders-dead-TAG", "max.message.bytes", "1000", "retention.ms", "3600000")
		alter("orders-TAG", "unclean.leader.election.enable", "true", "retention.ms", "60000")
		create("rTAG.delay.v1.ledger.1m", 1, "retention.bytes", "-1", "retention.ms", "604860000", "max.message.bytes", "1114124")
		for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
			old := kafka.NewRecordReader(kafka.Record{Time: time.Now().Add(-2 * time.Hour), Value: kafka.NewBytes([]byte("a retry"))})
			answer, err := admin.Produce(t.Context(), &kafka.ProduceRequest{Topic: s.named("rTAG.delay.v1.ledger.1m"), RequiredAcks: kafka.RequireAll, Records: old})
			if err == nil {
				err = answer.Error
			}
			if err == nil {
				break
			}
			if time.Now().After(end) { // a topic made a moment ago has no leader yet
				t.Fatal(err)
			}
		}
		faults := []string{
			"refused rTAG.delay.v1.billing.15m cleanup.policy", "refused rTAG.delay.v1.billing.15m retention.bytes", "refused rTAG.delay.v1.billing.15m retention.ms",
			"refused orders-dead-TAG max.message.bytes", "noted orders-dead-TAG retention.ms", "noted orders-TAG unclean.leader.election.enable", "noted orders-TAG retention.ms",
			"noted rTAG.delay.v1.ledger.1m partitions", "noted rTAG.delay.v1.ledger.1m oldest waiting retry", "noted rTAG.delay.v1.ledger.15m missing",
		}
		s.finds("a bad one", exitFailure, faults, "[billing]", "[billing, ledger]")
		s.finds("the same", exitFailure, faults, "[billing]", "[billing, ledger]")
	})
}

func TestDoctorOnSQS(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		t.Setenv("AWS_ACCESS_KEY_ID", "test")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
		t.Setenv("AWS_CONFIG_FILE", os.DevNull)
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
		s := newSite(t, fmt.Sprintf(`
brokers:
  b: {kind: sqs, region: us-east-1, endpoint: "%s"}
topics:
  - {name: jobs-TAG, broker: b, dead: [dead-TAG]}
store: {url: letters.db}
`, target.URL))
		const creates = "create: true, endpoint:"
		client := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &target.URL, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})})
		addresses := map[string]*string{}
		at := func(name string) *string {
			t.Helper()
			if addresses[name] == nil {
				got, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(s.named(name))})
				if err != nil {
					t.Fatal(err)
				}
				addresses[name] = got.QueueUrl
				t.Cleanup(func() {
					client.DeleteQueue(context.WithoutCancel(t.Context()), &sqs.DeleteQueueInput{QueueUrl: got.QueueUrl})
				})
			}
			return addresses[name]
		}
		create := func(name string, attributes map[string]string) {
			t.Helper()
			if _, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(s.named(name)), Attributes: attributes}); err != nil {
				t.Fatal(err)
			}
			at(name)
		}

		s.finds("before the first worker", exitOK, []string{"noted jobs-TAG missing", "noted dead-TAG missing"}, "endpoint:", creates)
		s.finds("where workers may create nothing", exitFailure, []string{"refused jobs-TAG missing", "refused dead-TAG missing"})
		s.work("endpoint:", creates)
		if _, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: at("jobs-TAG"), MessageBody: aws.String("a")}); err != nil {
			t.Fatal(err)
		}
		at("dead-TAG")
		s.finds("a good set-up", exitOK, nil)
		s.finds("the same", exitOK, nil)
		got, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: at("jobs-TAG"), WaitTimeSeconds: 5, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
		if err != nil || len(got.Messages) != 1 || got.Messages[0].Attributes["ApproximateReceiveCount"] != "1" {
			t.Errorf("received %+v, error %v, want the message that nobody has received before", got, err)
		}

		create("plain-TAG", nil)
		create("few-TAG", map[string]string{"RedrivePolicy": s.named(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead-TAG","maxReceiveCount":"3"}`)})
		create("odd-TAG.fifo", map[string]string{"FifoQueue": "true"})
		bad := `
  - {name: plain-TAG, broker: b, dead: [dead-TAG]}
  - {name: few-TAG, broker: b, dead: [dead-TAG]}
  - {name: odd-TAG.fifo, broker: b, dead: [dead-TAG]}
  - {name: gone-TAG, broker: b, dead: [dead-TAG]}
store:`
		s.finds("a bad one", exitFailure, []string{
			"noted plain-TAG RedrivePolicy", "noted few-TAG maxReceiveCount", "refused dead-TAG FifoQueue", "noted odd-TAG.fifo RedrivePolicy", "refused gone-TAG missing"}, "\nstore:", bad)
	})
}

// TestDoctorOnRedis has servers of its own: what is wrong with one is wrong for
// everybody.
func TestDoctorOnRedis(t *testing.T) {
	for name, tt := range map[string]struct {
		args, right string
		want        []string
	}{
		"a good set-up":     {args: "--appendonly yes --maxmemory 100mb --maxmemory-policy noeviction"},
		"snapshots":         {args: "--save 60 1"},
		"a bad one":         {args: "--maxmemory 100mb --maxmemory-policy allkeys-lru --replicaof 127.0.0.1 1", want: []string{"noted ADDRESS maxmemory-policy", "noted ADDRESS appendonly", "noted ADDRESS role"}},
		"without CONFIG":    {args: "--maxmemory 100mb --maxmemory-policy volatile-ttl", right: "+info", want: []string{"noted ADDRESS maxmemory-policy", "unverified ADDRESS appendonly"}},
		"without any right": {right: "-info", want: []string{"unverified ADDRESS"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			if tt.right != "" {
				args = append(args, "--user", "doctor", "on", ">doctor", "+ping", tt.right)
			}
			address := redistest.New(t, args...).Addr
			t.Setenv("DOCTOR_PASSWORD", "doctor")
			config := "budgets: {tokens: {redis: \"" + address + "\"}}"
			if tt.right != "" {
				config = strings.Replace(config, "\"}}", "\", user: doctor, password: {env: DOCTOR_PASSWORD}}}", 1)
			}
			s := newSite(t, "brokers: {b: {kind: rabbitmq, urls: [amqp://localhost]}}\nstore: {url: letters.db}\n"+config+"\n")
			var want []string
			for _, w := range tt.want {
				want = append(want, strings.ReplaceAll(w, "ADDRESS", address))
			}
			s.finds(name, exitOK, want)
		})
	}
}
