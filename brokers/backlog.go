package brokers

import "time"

// Backlog is what a broker has of one topic, as it says itself: about, and as of a
// moment ago. What it cannot tell is nil, or zero.
type Backlog struct {
	Topic       string
	DeadLetters bool // the topic has dead letters of others

	Ready   *int64 // messages that may be delivered; on a log, those that are not committed
	Taken   *int64 // that are delivered and not settled, or wait for a retry as if they were
	Delayed *int64 // that wait for their time apart from those

	// Oldest is when the oldest of all of them was published.
	Oldest time.Time
}
