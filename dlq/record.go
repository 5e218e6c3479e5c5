package dlq

import (
	"strings"

	"github.com/redrive-go/redrive/internal/text"
)

// The headers of a dead letter. What they tell of brokers.Meta has the words of
// the carried headers after deadPrefix. Package wire has to know all of them.
const (
	prefix     = "redrive-"
	deadPrefix = prefix + "dlq-"

	headerVersion     = deadPrefix + "v"
	headerReason      = deadPrefix + "reason"
	headerTopic       = deadPrefix + "topic"
	headerGroup       = deadPrefix + "group"
	headerAt          = deadPrefix + "at"
	headerBy          = deadPrefix + "by"
	headerAbandoned   = deadPrefix + "abandoned"
	headerPublishedAt = deadPrefix + "published-at"
	headerRule        = deadPrefix + "rule"
	headerTruncated   = deadPrefix + "truncated"

	headerStub        = deadPrefix + "stub"
	headerBodyBytes   = deadPrefix + "body-bytes"
	headerHeaderBytes = deadPrefix + "header-bytes"
	headerBodyHash    = deadPrefix + "body-sha256"

	headerType        = prefix + "error-type"
	headerCode        = prefix + "error-code"
	headerMessage     = prefix + "error-message"
	headerFingerprint = prefix + "error-fingerprint"
	headerStack       = prefix + "error-stack"
)

// Bounds in bytes.
const (
	maxError = text.MaxError
	maxStack = text.MaxStack
)

// field is a text of an entry and its header.
type field struct {
	header string
	text   *string
	max    int
	lines  bool
}

func (e *Entry) fields() []field {
	return []field{
		{header: headerReason, text: &e.Reason, max: text.MaxWord},
		{header: headerTopic, text: &e.Message.Topic, max: text.MaxName},
		{header: headerGroup, text: &e.Group, max: text.MaxShort},
		{header: headerBy, text: &e.DeadBy, max: text.MaxShort},
		{header: headerType, text: &e.ErrorType, max: text.MaxShort},
		{header: headerCode, text: &e.ErrorCode, max: text.MaxShort},
		{header: headerFingerprint, text: &e.Fingerprint, max: text.MaxWord},
		{header: headerRule, text: &e.Rule, max: text.MaxShort},
		{header: headerMessage, text: &e.ErrorText, max: maxError},
		{header: headerStack, text: &e.Stack, max: maxStack, lines: true},
	}
}

// safe returns the text as it is written, and whether it had to be cut.
func (f field) safe() (value string, cut bool) {
	if f.lines {
		return text.Lines(*f.text, f.max)
	}
	return text.Line(*f.text, f.max)
}

// read sets the text to value, or to nothing if that is not as safe writes it.
func (f field) read(value string) {
	*f.text = value
	if safe, cut := f.safe(); cut || safe != value {
		*f.text = ""
	}
}

// name is what notes about truncation call f.
func (f field) name() string {
	short, ok := strings.CutPrefix(f.header, deadPrefix)
	if !ok {
		short = strings.TrimPrefix(f.header, prefix)
	}
	return short
}
