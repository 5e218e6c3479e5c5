package rabbitmq

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestDeath tells from x-death where a message died last, and where it comes from.
func TestDeath(t *testing.T) {
	at := time.Unix(1790000000, 0)
	death := func(queue, reason string, count int64, after time.Duration) amqp.Table {
		return amqp.Table{
			"queue": queue, "reason": reason, "count": count, "time": at.Add(after), "exchange": "to-" + queue,
			"routing-keys": []any{queue + ".key", "cc"},
		}
	}
	tests := []struct {
		name   string
		deaths any
		want   string
	}{
		{"rejected", []any{death("orders", "rejected", 1, 0)},
			"death-reason=rejected death-queue=orders death-count=1 death-time=1790000000 first-death-reason=rejected first-death-count=1 " +
				"first-death-time=1790000000 first-death-exchange=to-orders first-death-queue=orders first-death-routing-key=orders.key"},
		{"three rounds by way of a queue that waits", []any{death("orders.wait", "expired", 3, time.Second), death("orders", "rejected", 3, 0)},
			"death-reason=expired death-queue=orders.wait death-count=3 death-time=1790000001 first-death-reason=rejected first-death-count=3 " +
				"first-death-time=1790000000 first-death-exchange=to-orders first-death-queue=orders first-death-routing-key=orders.key"},
		{"a retry of redrive that was never settled", []any{
			death("redrive.retry.v1.orders", "delivery_limit", 1, time.Minute), death("redrive.delay.v2.2000", "expired", 1, 0)},
			"death-reason=delivery_limit death-queue=redrive.retry.v1.orders death-count=1 death-time=1790000060 first-death-reason=delivery_limit " +
				"first-death-count=1 first-death-time=1790000060 first-death-exchange=to-redrive.retry.v1.orders first-death-queue=orders " +
				"first-death-routing-key=redrive.retry.v1.orders.key"},
		{"nothing but expiries", []any{death("dead", "expired", 1, time.Minute), death("orders", "expired", 1, 0)},
			"death-reason=expired death-queue=dead death-count=1 death-time=1790000060 first-death-reason=expired first-death-count=1 " +
				"first-death-time=1790000000 first-death-exchange=to-orders first-death-queue=orders first-death-routing-key=orders.key"},
		{"no array", "text", ""},
		{"empty", []any{}, ""},
		{"no tables", []any{"text", nil}, ""},
		{"empty tables", []any{amqp.Table{}, amqp.Table{}}, ""},
		{"too long, or of another type", []any{amqp.Table{"queue": int64(7), "reason": strings.Repeat("x", 256), "routing-keys": "k"}}, "death-queue=7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, h := range (names{"redrive"}).origin(&amqp.Delivery{Headers: amqp.Table{"x-death": tt.deaths}}, "orders", false)[1:] {
				got = append(got, fmt.Sprintf("%s=%s", h.Name, h.Value))
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("death = %s\nwant    %s", got, tt.want)
			}
		})
	}
}
