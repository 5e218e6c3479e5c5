package gallery

import (
	"cmp"
	"slices"
	"time"
)

// Incident is something that happens to what handlers depend on.
type Incident struct {
	Name  string
	Story string

	// Warm is when the incident begins, Length how long it lasts, and Watch how
	// long one watches after that. The run ends before, once all messages are done.
	Warm, Length, Watch time.Duration

	Traffic []Stream
	Wants   []Want

	Timeout       time.Duration // HandlerTimeout, unless it is the default
	Handlers      int           // Concurrency, unless it is the default
	Batch         int           // handlers take that many messages at once
	Bulkhead      bool          // TopicConfig.DependencyOf is the message's key
	Ordered       bool          // OrderByKey
	Workers       int           // Consumers on the broker, unless it is one
	Shared        bool          // they share a budget
	Server        Server        // the dependency of streams that name none
	NoDeadLetters bool          // the dead-letter topic refuses, as long as the incident lasts
	NoExtensions  bool          // leases cannot be extended, as long as the incident lasts
	KillEvery     time.Duration // each worker is killed and started again, as long as the incident lasts
}

// end is when the incident is over.
func (i Incident) end() time.Duration { return i.Warm + i.Length }

// Stream is a steady flow of messages that meet the same fate.
type Stream struct {
	Name  string
	Topic string // Name, if empty
	Good  bool   // the incident is none of its business
	Back  bool   // they are dead letters that are sent back
	Load  Load
	Keys  int // messages have that many keys in turn, beginning with Name
	Calls Dependency
}

// Load is when messages are published.
type Load struct {
	Count int
	Every time.Duration // between two; 0 means all at once
	Begin time.Duration
}

// from is l, but begun later.
func (l Load) from(begin time.Duration) Load {
	l.Begin = begin
	return l
}

// atOnce publishes count messages at the beginning.
func atOnce(count int) Load { return Load{Count: count} }

// rate publishes n messages in each unit of time, for a while.
func rate(n float64, unit, length time.Duration) Load {
	every := time.Duration(float64(unit) / n)
	return Load{Count: int(length / every), Every: every}
}

func (s Stream) topic() string { return cmp.Or(s.Topic, s.Name) }

// topics lists those of the incident.
func (i Incident) topics() (names []string) {
	for _, s := range i.Traffic {
		if !slices.Contains(names, s.topic()) {
			names = append(names, s.topic())
		}
	}
	return names
}
