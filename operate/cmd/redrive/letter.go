package main

import (
	"strconv"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/store"
)

// instant is a time that may be unknown: null in JSON.
type instant struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (i instant) MarshalJSON() ([]byte, error) {
	if i.IsZero() {
		return []byte("null"), nil
	}
	return []byte(i.UTC().Format(`"2006-01-02T15:04:05.999Z07:00"`)), nil
}

// origin is where letters come from, and why they are dead.
type origin struct {
	// Broker is the name of the broker in the configuration.
	Broker string `json:"broker"`

	// Source is the topic or queue with the dead letters.
	Source string `json:"source"`

	// Topic is where the message died, as the letter says.
	Topic string `json:"topic"`

	// Group is the consumer group that gave the message up.
	Group string `json:"group"`

	// Reason is why the message is dead, in one word.
	Reason string `json:"reason"`
}

// fault is what letters of one error group have in common.
type fault struct {
	origin

	// Format is whose dead letter it is, such as `redrive` or `spring-kafka`.
	Format string `json:"format"`

	// Class is that of the last error.
	Class string `json:"class"`

	// ErrorType is the Go type of the last error, or what another system says.
	ErrorType string `json:"error_type"`

	// ErrorText is the text of the last error; of a group, that of one letter.
	ErrorText string `json:"error_text"`

	// Fingerprint is equal for equal faults.
	Fingerprint string `json:"fingerprint"`
}

// deadMessage is a message that was given up.
type deadMessage struct {
	fault

	// MessageID is the ID of the message.
	MessageID string `json:"message_id"`

	// Key is the key of the message.
	Key string `json:"key"`

	// Attempts is how often it was run.
	Attempts int `json:"attempts"`

	// Dead is when it died.
	Dead instant `json:"dead"`
}

// content is what a message holds.
type content struct {
	// Headers are those of the message, without what the dead letter adds.
	Headers []headerRow `json:"headers"`

	// Body is that of the message.
	Body string `json:"body"`

	// Encoding is `base64` where the body is not UTF-8, and empty elsewhere.
	Encoding string `json:"encoding"`
}

// letterRow is a letter in the store.
type letterRow struct {
	// ID is its number. It rises in the order of collecting.
	ID int64 `json:"id"`

	// State is `collected`, `queued`, `sending`, `sent`, `confirmed`, `unknown`,
	// `returned`, `skipped` or `discarded`.
	State string `json:"state"`

	deadMessage

	// Position is its partition and offset, such as `3/4711`; empty where there is
	// no log.
	Position string `json:"position"`

	// Rule is the classification rule that hit.
	Rule string `json:"rule"`

	// ErrorCode is the short code of the last error.
	ErrorCode string `json:"error_code"`

	// Error is the number of its error group, for `--error`.
	Error int64 `json:"error"`

	// Redrives is how often it was sent back before it was collected.
	Redrives int `json:"redrives"`

	// Abandoned is how many deliveries ended without a settlement.
	Abandoned int `json:"abandoned"`

	// FirstFailed is when it first failed.
	FirstFailed instant `json:"first_failed"`

	// Published is when the message was published.
	Published instant `json:"published"`

	// DeadBy is the worker that gave it up.
	DeadBy string `json:"dead_by"`

	// Stub says that it only stands for a message that is elsewhere.
	Stub bool `json:"stub"`

	// Size is that of the message as it was collected: body and headers, in bytes.
	Size int64 `json:"size"`

	// Previous is the number of the letter that came back as this one; 0 for none.
	Previous int64 `json:"previous"`

	// Next is the number of the letter that this one came back as; 0 for none.
	Next int64 `json:"next"`

	// Sends is how often it was sent back from here.
	Sends int `json:"sends"`

	// Job is the number of the last job that took it; 0 for none.
	Job int64 `json:"job"`

	// Note is what the last change says about it.
	Note string `json:"note"`

	// Collected is when it was collected.
	Collected instant `json:"collected"`

	// Changed is when its state changed last.
	Changed instant `json:"changed"`
}

func rowOf(l store.Letter) letterRow {
	return letterRow{
		ID: l.ID, State: string(l.State), Position: l.Position, Rule: l.Rule, ErrorCode: l.ErrorCode, Error: l.Cluster,
		deadMessage: deadMessage{
			fault: fault{
				origin: origin{l.Broker, l.Source, l.Topic, l.Group, l.Reason},
				Format: l.Format, Class: l.Class, ErrorType: l.ErrorType, ErrorText: l.ErrorText, Fingerprint: l.Fingerprint,
			},
			MessageID: l.MessageID, Key: l.Key, Attempts: l.Attempts, Dead: instant{l.DeadAt},
		},
		Redrives: l.RedriveCount, Abandoned: l.Abandoned, FirstFailed: instant{l.FirstFailedAt}, Published: instant{l.PublishedAt}, DeadBy: l.DeadBy,
		Stub: l.Stub, Size: l.Size, Previous: l.Previous, Next: l.Next, Sends: l.Sends, Job: l.Job, Note: l.Note,
		Collected: instant{l.CollectedAt}, Changed: instant{l.ChangedAt},
	}
}

// died is when the letter died as far as anybody knows.
func (r letterRow) died() instant {
	if r.Dead.IsZero() {
		return r.Collected
	}
	return r.Dead
}

var letterTable = table[letterRow]{"id died state topic reason error", func(r letterRow) []any {
	return []any{r.ID, r.died(), stateCell(r.State), r.Topic, r.Reason, r.ErrorText}
}}

func stateCell(state string) term.Cell {
	style := map[store.State]term.Style{
		store.StateConfirmed: term.Green, store.StateReturned: term.Red, store.StateUnknown: term.Red,
		store.StateSkipped: term.Yellow, store.StateDiscarded: term.Dim,
	}
	return term.Cell{Text: state, Style: style[store.State(state)], Whole: true}
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// bytesText is a size to be read.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	size, unit := float64(n), 0
	for size >= 1000 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	if unit == 0 || size >= 100 {
		return strconv.FormatFloat(size, 'f', 0, 64) + " " + units[unit]
	}
	return strconv.FormatFloat(size, 'f', 1, 64) + " " + units[unit]
}

// count is a number of things: "1 letter", "312 letters".
func count(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return number(n) + " " + thing
}
