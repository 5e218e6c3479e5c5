package health

import (
	_ "embed"
	"strings"
	"text/template"
	"time"
)

// Status describes a worker at one moment. Unknown times are zero.
type Status struct {
	At     time.Time  `json:"at"`
	State  State      `json:"state"`
	Since  time.Time  `json:"since,omitzero"`  // when State began
	Opened time.Time  `json:"opened,omitzero"` // when the topology was verified
	Error  string     `json:"error,omitempty"` // why the worker could not open, or stopped
	Broker Connection `json:"broker,omitzero"`
	Topics []Topic    `json:"topics,omitempty"` // in the order in which they were registered
	Loops  []Loop     `json:"loops,omitempty"`  // those that are late
	ByHand []ByHand   `json:"byHand,omitempty"` // what people have paused, oldest first
}

// State is where a worker is in its life.
type State string

const (
	New      State = "new"      // Run was not called yet
	Opening  State = "opening"  // it verifies the topology and connects
	Running  State = "running"  // it receives messages
	Draining State = "draining" // it finishes what it has
	Stopped  State = "stopped"  // Run has returned
)

// Topic describes the work on one topic. It counts the messages in this process.
type Topic struct {
	Name           string    `json:"name"`
	Slots          int       `json:"slots"`                // handlers that may run at once
	Running        int       `json:"running"`              // slots in use
	Stuck          int       `json:"stuck"`                // of those: by handlers that ignore that their context has ended
	StuckSince     time.Time `json:"stuckSince,omitzero"`  // since when no other slot is left
	InFlight       int       `json:"inFlight"`             // messages that are not settled
	Waiting        int       `json:"waiting"`              // of those: for their time, their key or the limit
	Dying          int       `json:"dying"`                // of those: until their dead letter is durable
	Oldest         time.Time `json:"oldest,omitzero"`      // when the oldest of them came in, to the second
	LastSuccess    time.Time `json:"lastSuccess,omitzero"` // of a handler
	Attempts10m    uint64    `json:"attempts10m"`          // runs that ended in the last ten minutes
	DeadLetters10m uint64    `json:"deadLetters10m"`       // that became durable in the last ten minutes
	Dependency     string    `json:"dependency"`           // that the handlers call; its own name unless topics share one
	Limit          float64   `json:"limit"`                // runs that the dependency is given at once; below 1 single runs try it out
	Pause          *Pause    `json:"pause,omitempty"`      // of the topic or its dependency
	Budget         *Budget   `json:"budget,omitempty"`     // nil if retries need no token
	Policy         Policy    `json:"policy"`               // of retries
}

// Pause says why nothing, or next to nothing, of a topic runs.
type Pause struct {
	Cause  string    `json:"cause"`
	Since  time.Time `json:"since,omitzero"`
	Next   time.Time `json:"next,omitzero"`    // when the next single run may start; zero if that is not known
	ByHand bool      `json:"byHand,omitempty"` // a person asked for it; Next is its end, if that is known
}

// Budget is that for the retries of a dependency.
type Budget struct {
	Tokens   float64 `json:"tokens"`   // retries that may start at once
	Capacity float64 `json:"capacity"` // tokens that are saved at most
	Waiting  int     `json:"waiting"`  // retries that wait for a token
}

// Policy says how often and for how long a message is tried.
type Policy struct {
	MaxAttempts int      `json:"maxAttempts"`
	MaxDelay    Duration `json:"maxDelay"`
	MaxAge      Duration `json:"maxAge"`
	Timeout     Duration `json:"timeout"` // of one run
}

// Connection describes the connection of a worker to its broker.
type Connection struct {
	State      State       `json:"state,omitempty"`  // Running, or Opening while there is no connection; empty if the broker says nothing
	Since      time.Time   `json:"since,omitzero"`   // when State began
	Error      string      `json:"error,omitempty"`  // the last one
	ErrorAt    time.Time   `json:"errorAt,omitzero"` // when it came
	Partitions []Partition `json:"partitions,omitempty"`
}

// Partition is one that a worker owns.
type Partition struct {
	Topic      string    `json:"topic"`
	Partition  int       `json:"partition"`
	Position   int64     `json:"position"`            // the next offset to be read
	Lag        int64     `json:"lag"`                 // records from there to the end, as of the last fetch
	LastRecord time.Time `json:"lastRecord,omitzero"` // when one was last read

	// StalledSince is since when there is more to be read and the position does not
	// move. It is zero while it moves, at the end, and while the topic is paused.
	StalledSince time.Time `json:"stalledSince,omitzero"`
}

// Connected is implemented by a brokers.Source that says more about its connection.
// A worker asks it for its Status. It must neither wait nor take a lock that is held
// while something waits for the broker.
type Connected interface {
	Connection() Connection
}

// Loop is a loop of a worker that should have ticked.
type Loop struct {
	Name string   `json:"name"`
	Late Duration `json:"late"` // for how long
}

// Duration is a time.Duration that JSON has as text, such as "1m30s".
type Duration time.Duration

// String returns the text of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// String is s for people.
func (s Status) String() string { return s.text("page") }

// text is a part of the page.
func (s Status) text(part string) string {
	var b strings.Builder
	t := template.Must(template.New("").Funcs(template.FuncMap{
		"for": func(t time.Time) string { return brief(s.At.Sub(t)) },
		"in":  func(t time.Time) string { return brief(max(0, t.Sub(s.At))) },
		"ago": func(t time.Time) string {
			if t.IsZero() {
				return "never"
			}
			return brief(s.At.Sub(t)) + " ago"
		},
	}).Parse(parts))
	if err := t.ExecuteTemplate(&b, part, s); err != nil {
		b.WriteString(err.Error())
	}
	return b.String()
}

//go:embed status.tmpl
var parts string

// brief rounds d for people.
func brief(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
