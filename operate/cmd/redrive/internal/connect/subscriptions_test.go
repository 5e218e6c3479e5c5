package connect

import (
	"fmt"
	"testing"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/retry"
)

func TestSubscriptions(t *testing.T) {
	c, err := config.Parse("redrive.yaml", []byte(`
brokers:
  rabbit: {kind: rabbitmq, urls: [amqp://localhost]}
  kafka: {kind: kafka, addresses: ["localhost:9092"]}
  sqs: {kind: sqs}
topics:
  - {name: a, broker: rabbit, dead: [a-dead, a-old], receipts: r, retry: {attempts: 3, max_delay: 1s, max_age: 1h}}
  - {name: b, broker: rabbit, dead: [b-dead], receipts: r, retry: {attempts: 2, max_delay: 2s, max_age: 30m}}
  - {name: c, broker: rabbit, dead: [c-dead], retry: {max_delay: 3s}}
  - {name: d, broker: kafka, dead: [d-dead], groups: [x, y], retry: {max_delay: 1s}}
  - {name: e, broker: kafka, dead: [e-dead], groups: [y], retry: {max_delay: 2s}}
  - {name: f, broker: kafka, dead: [f-dead]}
  - {name: g.fifo, broker: sqs, dead: [g-dead.fifo], retry: {max_delay: 1s}}
  - {name: h, broker: sqs, dead: [h-dead], retry: {max_delay: 2s}}
store: {url: letters.db}
`))
	must(t, err)
	for _, tt := range []struct {
		broker string
		nth    int
		want   string
	}{
		{"rabbit", 0, `"" [a b] map[a:a-dead b:b-dead] "r" 3 3s 1h0m0s; "" [c] map[c:c-dead] "" 10 3s 24h0m0s; `},
		{"rabbit", 1, `"" [a b] map[a:a-old b:b-dead] "r" 3 3s 1h0m0s; "" [c] map[c:c-dead] "" 10 3s 24h0m0s; `},
		{"rabbit", 2, ""},
		{"kafka", 0, `"x" [d] map[d:d-dead] "" 10 1s 24h0m0s; "y" [d e] map[d:d-dead e:e-dead] "" 10 2s 24h0m0s; `},
		{"sqs", 0, `"" [g.fifo] map[g.fifo:g-dead.fifo] "" 10 1s 24h0m0s; "" [h] map[h:h-dead] "" 10 2s 24h0m0s; `},
	} {
		got := ""
		for _, s := range Subscriptions(c, tt.broker, tt.nth) {
			got += fmt.Sprintf("%q %v %v %q %d %v %v; ", s.Group, s.Topics, s.DeadLetters, s.Receipts, s.MaxAttempts, s.MaxDelay, s.MaxAge)
		}
		if got != tt.want {
			t.Errorf("%s, %d:\n%s\nwant\n%s", tt.broker, tt.nth, got, tt.want)
		}
	}
	attempts, delay, age := retry.Policy{}.Limits()
	if r := c.Topics[5].Retry; r != (config.Retry{Attempts: attempts, MaxDelay: config.Wait(delay), MaxAge: config.Wait(age)}) {
		t.Errorf("Retry is %+v by default, and workers ask for %d, %v, %v", r, attempts, delay, age)
	}
}
