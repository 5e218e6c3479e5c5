package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/kafkatest"
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
	readOnly    []string // changes for workers that may create nothing
}

func newSite(t *testing.T, config string) *site {
	return &site{T: t, tag: strings.ToLower(rand.Text()[:10]), config: config}
}

func (s *site) named(text string) string { return strings.ReplaceAll(text, "TAG", s.tag) }

// file writes the configuration after changes, which are pairs of old and new.
func (s *site) file(changes ...string) string {
	s.Helper()
	file := filepath.Join(s.TempDir(), "redrive.yaml")
	text := s.named(strings.NewReplacer(changes...).Replace(s.config))
	must(s, os.WriteFile(file, []byte(text), 0o600))
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
	must(s, err)
	broker, err := connect.Broker(s.Context(), c, "b")
	must(s, err)
	return c, broker
}

// work starts workers once, so that they create missing queues and topics.
func (s *site) work(changes ...string) {
	s.Helper()
	c, broker := s.connect(changes...)
	for _, sub := range connect.Subscriptions(c, "b", 0) {
		sub.InFlight = 10
		source, err := broker.Open(s.Context(), sub)
		must(s, err)
		must(s, source.Close(s.Context()))
	}
	must(s, broker.Close(s.Context()))
}

// starts has doctor look before the first worker, with and without the right to
// create, and after it. Each of missing is a queue or topic that the worker creates.
func (s *site) starts(missing ...string) {
	s.Helper()
	var noted, refused []string
	for _, name := range missing {
		noted, refused = append(noted, "noted "+name+" missing"), append(refused, "blocking "+name+" missing")
	}
	s.finds("before the first worker", exitOK, noted)
	s.finds("where workers may create nothing", exitFailure, refused, s.readOnly...)
	s.work()
	s.finds("a good set-up", exitOK, nil)
	s.finds("the same", exitOK, nil)
}

func TestDoctorOnRabbitMQ(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		if target.ManagementURL == "" {
			t.Skip("the address of the management API is not known")
		}
		u, err := url.Parse(target.URL)
		must(t, err)
		management, err := url.Parse(target.ManagementURL)
		must(t, err)
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
		s.readOnly = []string{"prefix:", "verify: true, prefix:"}
		queues := []string{"orders-TAG", "orders-dead-TAG", "rTAG.retry.v1.orders-TAG", "rTAG.unroutable.v1", "rTAG.delay.v2.250"}
		exchanges := []string{"rTAG.dead.v1", "rTAG.return.v1", "rTAG.copy.v1", "rTAG.unroutable.v1", "rTAG.delay.v2.250"}
		conn, err := amqp.Dial(target.URL)
		must(t, err)
		ch, err := conn.Channel()
		must(t, err)
		t.Cleanup(func() {
			for _, name := range queues {
				_, err = ch.QueueDelete(s.named(name), false, false, false)
				must(s, err)
			}
			for _, name := range exchanges {
				must(s, ch.ExchangeDelete(s.named(name), false, false))
			}
			must(s, conn.Close())
		})
		s.starts(slices.Concat(queues, exchanges)...)
	})
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
		s.readOnly = []string{"prefix:", "verify: true, prefix:"}
		created := []string{"orders-dead-TAG", "rTAG.delay.v1.billing.1m", "rTAG.delay.v1.billing.15m"}
		t.Cleanup(func() {
			names := []string{s.named("orders-TAG")}
			for _, name := range created {
				names = append(names, s.named(name))
			}
			admin := &kafka.Client{Addr: kafka.TCP(target.URL)}
			_, err := admin.DeleteTopics(context.WithoutCancel(t.Context()), &kafka.DeleteTopicsRequest{Topics: names})
			must(s, err)
		})
		s.createTopic(target.URL)
		s.starts(created...)
	})
}

// createTopic creates the topic of orders.
func (s *site) createTopic(address string) (topic string) {
	s.Helper()
	admin := &kafka.Client{Addr: kafka.TCP(address)}
	config := kafka.TopicConfig{Topic: s.named("orders-TAG"), NumPartitions: 4, ReplicationFactor: 1}
	made, err := admin.CreateTopics(s.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
	must(s, err)
	must(s, made.Errors[config.Topic])
	return config.Topic
}

func TestDoctorOnSQS(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		t.Setenv("AWS_ACCESS_KEY_ID", "test")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
		t.Setenv("AWS_CONFIG_FILE", os.DevNull)
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
		s := newSite(t, fmt.Sprintf(`
brokers:
  b: {kind: sqs, region: us-east-1, create: true, endpoint: "%s"}
topics:
  - {name: jobs-TAG, broker: b, dead: [dead-TAG]}
store: {url: letters.db}
`, target.URL))
		s.readOnly = []string{"create: true, ", ""}
		s.starts("jobs-TAG", "dead-TAG")
		client := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &target.URL, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})})
		for _, name := range []string{"jobs-TAG", "dead-TAG"} {
			queue, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(s.named(name))})
			must(s, err)
			_, err = client.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: queue.QueueUrl})
			must(s, err)
		}
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

// TestKafkaWithTLSAndLogins runs a worker and doctor with every kind of
// connection to Kafka. If the broker or the client refuses a connection, the
// error says what to mend, and contains no password.
func TestKafkaWithTLSAndLogins(t *testing.T) {
	livetest.Nightly(t)
	for _, b := range harness.Brokers() {
		if b.Product != harness.Kafka {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			server := kafkatest.New(t, b)
			t.Setenv("PASSWORD", kafkatest.Password)
			t.Setenv("WRONG", "pa55-of-another")
			trust := fmt.Sprintf("tls: {ca: %s}", server.CA)
			login := fmt.Sprintf(", user: %s, password: {env: PASSWORD}, mechanism: ", kafkatest.User)
			for name, tt := range map[string]struct{ address, settings string }{
				"TLS":                       {server.TLS, trust},
				"TLS with a certificate":    {server.Mutual, fmt.Sprintf("tls: {ca: %s, cert: %s, key: %s}", server.CA, server.Cert, server.Key)},
				"TLS and PLAIN":             {server.Login, trust + login + "plain"},
				"TLS and SCRAM-SHA-256":     {server.Login, trust + login + "scram-sha-256"},
				"TLS and SCRAM-SHA-512":     {server.Login, trust + login + "scram-sha-512"},
				"SCRAM-SHA-512 without TLS": {server.Scram, strings.TrimPrefix(login, ", ") + "scram-sha-512"},
			} {
				t.Run(name, func(t *testing.T) { secureSite(t, tt.address, tt.settings).works(server.Plain) })
			}
			for name, tt := range map[string]struct{ address, settings, want string }{
				"an authority that is not trusted": {server.TLS, fmt.Sprintf("tls: {ca: %s}", server.OtherCA), "check tls"},
				"a certificate of another host":    {server.TLS, fmt.Sprintf("tls: {ca: %s, server_name: other.example.com}", server.CA), "check tls"},
				"no certificate of the client":     {server.Mutual, trust, "check tls"},
				"plain, but TLS is needed":         {server.TLS, "prefix: p", "if it wants TLS, set tls"},
				"TLS to a plain listener":          {server.Plain, trust, "if it speaks no TLS, leave tls out"},
				"a login, but no TLS":              {server.Login, strings.TrimPrefix(login, ", ") + "scram-sha-512", "if it wants TLS, set tls"},
				"no login, but one is needed":      {server.Login, trust, "if it wants a login, set user"},
				"a wrong password":                 {server.Login, trust + strings.ReplaceAll(login, "PASSWORD", "WRONG") + "scram-sha-512", "check user and password"},
				"a wrong password, PLAIN":          {server.Login, trust + strings.ReplaceAll(login, "PASSWORD", "WRONG") + "plain", "check user and password"},
				"an unknown user":                  {server.Login, trust + strings.ReplaceAll(login, kafkatest.User, "nobody") + "scram-sha-256", "check user and password"},
				"a mechanism that is not offered":  {server.Scram, strings.TrimPrefix(login, ", ") + "plain", "the broker offers no such mechanism"},
			} {
				t.Run(name, func(t *testing.T) { secureSite(t, tt.address, tt.settings).refuses(tt.want) })
			}
		})
	}
}

func secureSite(t *testing.T, address, settings string) *site {
	return newSite(t, fmt.Sprintf(`
brokers:
  b: {kind: kafka, addresses: ["%s"], %s}
topics:
  - {name: orders-TAG, broker: b, dead: [orders-dead-TAG], groups: [billing-TAG], retry: {max_delay: 15m}}
store: {url: letters.db}
`, address, settings))
}

// works makes a worker handle three messages. One of them becomes a retry, and
// one a dead letter. Plain is the address at which the topic is created.
func (s *site) works(plain string) {
	s.Helper()
	topic := s.createTopic(plain)
	s.work()
	s.finds("a good set-up", exitOK, nil)
	_, broker := s.connect()
	ctx, cancel := context.WithTimeout(s.Context(), 5*time.Minute)
	defer cancel()
	for _, body := range []string{"good", "retry", "dead"} {
		must(s, broker.Publish(ctx, topic, brokers.Message{Body: []byte(body)}))
	}
	var mu sync.Mutex
	var ended []string // bodies of the messages that ended
	end := func(body []byte) {
		mu.Lock()
		defer mu.Unlock()
		if ended = append(ended, string(body)); len(ended) == 3 {
			cancel()
		}
	}
	worker := s.consumer(broker, consumer.Config{Group: s.named("billing-TAG"), DeadLetter: s.named("orders-dead-TAG"), HoldLimit: -1})
	worker.Handle(topic, func(ctx context.Context, m *brokers.Message) error {
		switch meta := consumer.MetaFrom(ctx); {
		case string(m.Body) == "dead":
			return classify.Permanent(errors.New("never"))
		case string(m.Body) == "retry" && meta.Attempt == 1:
			return classify.Transient(errors.New("busy"))
		}
		end(m.Body)
		return nil
	})
	reader := s.consumer(broker, consumer.Config{Group: s.named("reader-TAG"), DeadLetter: dlq.Discard})
	reader.Handle(s.named("orders-dead-TAG"), func(_ context.Context, m *brokers.Message) error {
		e, err := dlq.Decode(*m)
		if err == nil {
			end(e.Message.Body)
		}
		return err
	})
	var running sync.WaitGroup
	for _, w := range []*consumer.Consumer{worker, reader} {
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				s.Error(err)
			}
		})
	}
	running.Wait()
	if len(ended) != 3 {
		s.Errorf("after five minutes, only these messages have ended: %q", ended)
	}
	must(s, broker.Close(context.WithoutCancel(s.Context())))
}

func (s *site) consumer(broker brokers.Broker, c consumer.Config) *consumer.Consumer {
	s.Helper()
	w, err := consumer.New(broker, c)
	must(s, err)
	return w
}

// refuses fails the test unless doctor says text and Run fails at once. Neither
// may show a password.
func (s *site) refuses(text string) {
	s.Helper()
	got := call(s.T, "doctor", "--config", s.file(), "-o", "json")
	var rows []findingRow
	if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil || len(rows) != 1 || !strings.Contains(rows[0].Why, text) || got.code != exitFailure {
		s.Errorf("doctor: %v, exit code %d, %+v, want a finding that says %q", err, got.code, rows, text)
	}
	_, broker := s.connect()
	worker := s.consumer(broker, consumer.Config{Group: "billing", DeadLetter: dlq.Discard})
	worker.Handle("orders", func(context.Context, *brokers.Message) error { return nil })
	if err := worker.Run(s.Context()); err == nil || strings.Contains(fmt.Sprint(err, got), "pa55") {
		s.Errorf("Run: %v", err)
	}
	must(s, broker.Close(s.Context()))
}
