package rabbitmq

import "time"

// SetGrace sets for how long the consumers of a paused topic stay. Call it before
// Open.
func (b *Broker) SetGrace(d time.Duration) { b.grace = d }
