package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

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
