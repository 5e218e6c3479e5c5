package dlq

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

var errNotReceipt = errors.New("dlq: the message is not a receipt of redrive")

// Receipt is what a worker says of a message that came back with a
// [brokers.Meta.Send]: at its first failure, if there is one, and at its end. It
// may come twice, or not at all; and anybody may write one, so believe it only
// if its Send is one that you have issued, for that message.
type Receipt struct {
	Send string `json:"send"` // that of the message; a word

	// Outcome says what became of the message, in one word:
	//
	//	failed    its first run has failed
	//	handled   it was handled, and is gone
	//	dead      it is dead again, or discarded
	Outcome string `json:"outcome"`

	MessageID string `json:"id,omitempty"` // of the message
	Topic     string `json:"topic,omitempty"`
	Group     string `json:"group,omitempty"` // of the worker

	// Class and Fingerprint are those of the failure, or of the last one of a
	// dead message, as in [brokers.Failure]; Reason says why it is dead, as in
	// [Entry].
	Class       string `json:"class,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Reason      string `json:"reason,omitempty"`

	By      string    `json:"by,omitempty"`      // the worker
	Attempt int       `json:"attempt,omitempty"` // the last run since it came back, counted from 1; 0 if there was none
	At      time.Time `json:"-"`                 // when the worker found that
}

// receipt is the body of a message that is one.
type receipt struct {
	Version int64 `json:"v"`
	Receipt
	At int64 `json:"at,omitempty"` // milliseconds since 1970
}

// maxReceipt is more bytes than any receipt needs.
const maxReceipt = 16 << 10

// fields are the texts that may be cut.
func (r *Receipt) fields() []field {
	return []field{
		{text: &r.MessageID, max: text.MaxName},
		{text: &r.Topic, max: text.MaxName},
		{text: &r.Group, max: text.MaxShort},
		{text: &r.Class, max: text.MaxWord},
		{text: &r.Fingerprint, max: text.MaxWord},
		{text: &r.Reason, max: text.MaxWord},
		{text: &r.By, max: text.MaxShort},
	}
}

// Message returns the receipt to publish. Texts are escaped and cut to what
// [DecodeReceipt] takes, and the time is rounded down to the millisecond.
func (r Receipt) Message() brokers.Message {
	for _, f := range r.fields() {
		*f.text, _ = f.safe()
	}
	r.Attempt = max(r.Attempt, 0)
	body, err := json.Marshal(receipt{Version: 1, Receipt: r, At: max(r.At.UnixMilli(), 0)})
	if err != nil {
		panic(fmt.Sprintf("dlq: texts and numbers cannot be encoded: %v", err))
	}
	return brokers.Message{Body: body}
}

// DecodeReceipt reads a receipt as it was received. The only error is that m is
// none, or cannot be read. Texts that are too long, or have
// control characters, are left empty; so those that it returns are safe to store
// and to show.
func DecodeReceipt(m brokers.Message) (Receipt, error) {
	if len(m.Body) > maxReceipt {
		return Receipt{}, fmt.Errorf("%w: %d bytes are too many", errNotReceipt, len(m.Body))
	}
	var body receipt
	if err := json.Unmarshal(m.Body, &body); err != nil {
		cause, _ := text.Line(err.Error(), text.MaxShort)
		return Receipt{}, fmt.Errorf("%w: %s", errNotReceipt, cause)
	}
	r := body.Receipt
	known := r.Outcome == "failed" || r.Outcome == "handled" || r.Outcome == "dead"
	if body.Version < 1 || !text.IsWord(r.Send) || !known {
		return Receipt{}, fmt.Errorf("%w: it lacks a version, a send or an outcome", errNotReceipt)
	}
	for _, f := range r.fields() {
		f.read(*f.text)
	}
	r.Attempt = min(max(r.Attempt, 0), text.MaxCount)
	if body.At > 0 {
		r.At = text.Time(strconv.FormatInt(body.At, 10))
	}
	return r, nil
}
