package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/kafkatest"
	"github.com/redrive-go/redrive/integration/livetest"
)

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
		if err := broker.Publish(ctx, topic, brokers.Message{Body: []byte(body)}); err != nil {
			s.Fatal(err)
		}
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
	worker := s.consumer(broker, consumer.Config{Group: s.named("billing-TAG"), DeadLetter: dlq.Topic(s.named("orders-dead-TAG")), HoldLimit: -1})
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
	if err := broker.Close(context.WithoutCancel(s.Context())); err != nil {
		s.Error(err)
	}
}

func (s *site) consumer(broker brokers.Broker, c consumer.Config) *consumer.Consumer {
	s.Helper()
	w, err := consumer.New(broker, c)
	if err != nil {
		s.Fatal(err)
	}
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
	if err := broker.Close(s.Context()); err != nil {
		s.Error(err)
	}
}
