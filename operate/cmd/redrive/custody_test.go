package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/operate/store"
)

var errInterrupted = errors.New("interrupted by a test")

// TestPutBack puts letters back as they were.
func TestPutBack(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		want := map[string]brokers.Message{}
		s.withStore(func(st *store.Store) {
			for _, id := range []int64{1, 2, 3, 4, 5, 7} {
				m, _, err := st.Content(s.Context(), id)
				must(s, err)
				want[m.ID] = m
			}
		})
		s.call("dlq", "putback", "--topic", "orders", "--because", "a test", "--yes")
		for _, m := range s.brokers["shop"].Messages("orders-dead") {
			m.PublishedAt = m.PublishedAt.UTC()
			if !reflect.DeepEqual(m, withTopic(want[m.ID], "orders-dead")) {
				s.Errorf("put back\n%+v\nwant\n%+v", m, want[m.ID])
			}
			delete(want, m.ID)
		}
		if len(want) > 0 {
			s.Errorf("not put back: %v", want)
		}
	})
}

// withTopic is a message as the broker has it in a topic from now on.
func withTopic(m brokers.Message, topic string) brokers.Message {
	m.Topic, m.PublishedAt = topic, time.Now().UTC()
	return m
}

// TestPutBackOnlyWhereNamed sends nothing to a topic that the configuration does
// not name.
func TestPutBackOnlyWhereNamed(t *testing.T) {
	inShop(t, func(s *shop) {
		e := died(0, "orders", "poison", "poison", "declined")
		s.withStore(func(st *store.Store) {
			for n, broker := range []string{"shop", "gone"} {
				_, err := st.Collect(s.Context(), time.Now(), []store.Collected{{Broker: broker, Source: fmt.Sprint("elsewhere-", n), Format: "redrive", Raw: e.Encode(0), Entry: e}})
				must(s, err)
			}
		})
		s.refuses(exitFailure, "elsewhere-0 on shop, which redrive.yaml does not name", "dlq", "putback", "1")
		s.refuses(exitFailure, "elsewhere-1 on gone, which redrive.yaml does not name", "dlq", "putback", "2")
	})
}

// TestExportIsWhole reads a letter that was exported, and finds all bytes of it.
func TestExportIsWhole(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.refuses(exitFailure, "nothing was written", "dlq", "export", "--to", "redrive.yaml") // the system says why
		if got := s.call("dlq", "show", "8", "--body", "raw"); got.code != exitOK || got.stdout != "\x00\x01\x02\xff binary" {
			s.Errorf("%+v", got)
		}
		if got := s.call("dlq", "export", "8", "--to", "letters.jsonl"); got.code != exitOK || got.stderr != "wrote 1 letter to letters.jsonl\n" {
			s.Fatalf("%+v", got)
		}
		line, err := os.ReadFile("letters.jsonl")
		must(s, err)
		var doc letterDoc
		must(s, json.Unmarshal(line, &doc))
		body, err := base64.StdEncoding.DecodeString(doc.Body)
		if err != nil || doc.Encoding != "base64" || string(body) != "\x00\x01\x02\xff binary" || doc.Topic != "orders"+hostile {
			s.Errorf("exported as %s", line)
		}
		if info, err := os.Stat("letters.jsonl"); err != nil || info.Mode().Perm() != 0o600 {
			s.Errorf("mode %v, error %v", info.Mode(), err)
		}
		s.streams.Terminal = true
		s.refuses(exitUsage, "into a file or a pipe", "dlq", "show", "8", "--body", "raw")
	})
}

// TestCollectFromSQS collects all dead letters of standard and FIFO queues with
// the real command. The command waits for its open polls, and ends without an
// error.
func TestCollectFromSQS(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	server := sqstest.NewServer(sqstest.Options{})
	defer server.Close()
	worker, err := sqs.New(sqs.Options{Config: server.Config(), Create: true})
	must(t, err)
	for topic, dead := range map[string]string{"orders": "orders-dead", "payments.fifo": "payments-dead.fifo"} {
		source, err := worker.Open(t.Context(), brokers.Subscription{Topics: []string{topic}, DeadLetters: map[string]string{topic: dead}, InFlight: 1})
		if err == nil {
			err = source.Close(t.Context())
		}
		for n := range 12 {
			if err == nil {
				err = worker.Publish(t.Context(), dead, died(n, topic, "poison", "poison", "declined").Encode(0))
			}
		}
		must(t, err)
	}
	must(t, worker.Close(t.Context()))
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	text := `
brokers:
  aws: {kind: sqs, region: us-east-1, endpoint: "` + server.URL + `"}
topics:
  - {name: orders, broker: aws, dead: [orders-dead], collect: true}
  - {name: payments.fifo, broker: aws, dead: [payments-dead.fifo], collect: true}
store: {url: letters.db}
`
	must(t, os.WriteFile(file, []byte(text), 0o600))
	if got := call(t, "dlq", "peek", "orders", "-o", "json", "--config", file); got.code != exitOK || strings.Count(got.stdout, "\"source\"") != 10 {
		t.Errorf("peek: %+v", got)
	}
	if got := call(t, "dlq", "collect", "--all", "-o", "json", "--config", file); got.code != exitOK || strings.Join(strings.Fields(got.stdout), "") != `[{"broker":"aws","received":24,"new":24,"known":0,"refused":0,"unacked":0}]` {
		t.Errorf("collect: %+v", got)
	}
	for _, queue := range []string{"orders-dead", "payments-dead.fifo"} {
		if q := server.Queue(queue); q.Visible+q.InFlight+q.Delayed != 0 {
			t.Errorf("%s has %+v, want nothing", queue, q)
		}
	}
}
