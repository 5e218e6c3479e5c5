package rabbitmq

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// SetGrace sets for how long the consumers of a paused topic stay. Call it before
// Open.
func (b *Broker) SetGrace(d time.Duration) { b.grace = d }

// HoldAcks makes acks wait for those of earlier deliveries for d, so that no
// machine is too slow for them to travel together. Call it before Open.
func (b *Broker) HoldAcks(d time.Duration) { b.paces = paces{d, d, d} }

// DeliveryCount is how often the broker has counted the delivery of this copy.
func DeliveryCount(d *brokers.Delivery) int { return d.Token.(*token).count }
