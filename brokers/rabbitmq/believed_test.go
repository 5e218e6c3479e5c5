package rabbitmq

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// The count of deliveries is the broker's on what was delivered before, and anybody's
// otherwise.
func TestCount(t *testing.T) {
	for _, tt := range []struct {
		redelivered bool
		header      any
		want        int
	}{
		{false, int64(1000), 0}, {true, int64(3), 3}, {true, int32(3), 3}, {true, int64(1000), deliveryLimit},
		{true, int64(-1), 0}, {true, "3", 0}, {true, nil, 0},
	} {
		d := &amqp.Delivery{Redelivered: tt.redelivered, Headers: amqp.Table{"x-delivery-count": tt.header}}
		if got := count(d); got != tt.want {
			t.Errorf("redelivered %v, x-delivery-count %v: count %d, want %d", tt.redelivered, tt.header, got, tt.want)
		}
	}
}

// What screen left of a message is never taken for all of it: no copy is made of one
// whose headers stayed with the broker.
func TestHeadersThatStayedBehind(t *testing.T) {
	s, _, _ := holding(t)
	for _, tt := range []struct {
		field  any
		copied bool
	}{{[]byte("a table"), true}, {int64(200_000), false}} {
		d := &amqp.Delivery{MessageId: "m", Headers: amqp.Table{unreadable: tt.field}}
		if unreadableError(d) == nil {
			t.Errorf("%T: nothing says that the message cannot be read", tt.field)
		}
		_, err := s.broker.publishing(brokers.Message{ID: "m"}, headersOf(d))
		if errors.Is(err, brokers.ErrRefused) == tt.copied || tt.copied && err != nil {
			t.Errorf("%T: a copy says %v, want it to be made: %v", tt.field, err, tt.copied)
		}
	}
	if err := unreadableError(&amqp.Delivery{Headers: amqp.Table{"a": "b"}}); err != nil {
		t.Errorf("a message like others cannot be read: %v", err)
	}
}
