package sqstest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxMessage     = 1 << 20
	maxDelay       = 900
	maxAttributes  = 10
	notForThisType = "The request include parameter that is not valid for this queue type"
	idRule         = "Can only include alphanumeric and punctuation characters. 1 to 128 in length"
)

type sendRequest struct {
	target
	outgoing
}

// outgoing is what SendMessage and an entry of SendMessageBatch have in common.
type outgoing struct {
	DelaySeconds            *int
	MessageAttributes       map[string]attribute
	MessageBody             *string
	MessageDeduplicationID  *string `json:"MessageDeduplicationId"`
	MessageGroupID          *string `json:"MessageGroupId"`
	MessageSystemAttributes map[string]attribute
}

type sendBatchRequest struct {
	target
	Entries []sendEntry
}

type sendEntry struct {
	ID string `json:"Id"`
	outgoing
}

func (e sendEntry) entryID() string { return e.ID }

type sendResult struct {
	ID                           string `json:"Id,omitempty"`
	MD5OfMessageBody             string
	MD5OfMessageAttributes       string `json:",omitempty"`
	MD5OfMessageSystemAttributes string `json:",omitempty"`
	MessageID                    string `json:"MessageId"`
	SequenceNumber               string `json:",omitempty"`
}

func (s *Server) sendMessage(c *call, in *sendRequest) (any, error) {
	m, err := in.message()
	if err != nil {
		return nil, err
	}
	var out *sendResult
	err = s.with(in.QueueURL, func(q *queue, now time.Time) error {
		out, err = q.send(&in.outgoing, m, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.fault != nil && c.fault.Corrupt {
		out.MD5OfMessageBody = sum("corrupt " + m.body)
	}
	return out, nil
}

func (s *Server) sendMessageBatch(c *call, in *sendBatchRequest) (any, error) {
	if err := checkBatch(in.Entries); err != nil {
		return nil, err
	}
	total := 0
	for _, e := range in.Entries {
		total += e.size()
	}
	if total > maxMessage {
		return nil, fail("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxMessage, total)
	}
	messages := make([]*message, len(in.Entries))
	errs := make([]error, len(in.Entries))
	for i, e := range in.Entries {
		messages[i], errs[i] = e.message()
	}
	var out *batchResult
	err := s.with(in.QueueURL, func(q *queue, now time.Time) error {
		for _, e := range in.Entries {
			if err := q.checkOrder(&e.outgoing); err != nil {
				return fail("InvalidParameterValue", "%s", err.message)
			}
		}
		out = runBatch(c, in.Entries, func(i int, e sendEntry) (any, error) {
			if errs[i] != nil {
				return nil, errs[i]
			}
			done, err := q.send(&e.outgoing, messages[i], now)
			if err != nil {
				return nil, err
			}
			done.ID = e.ID
			if c.fault.corrupts(i) {
				done.MD5OfMessageBody = sum("corrupt " + messages[i].body)
			}
			return done, nil
		})
		return nil
	})
	return out, err
}

// message checks what can be checked without the queue.
func (o *outgoing) message() (*message, error) {
	if o.MessageBody == nil || *o.MessageBody == "" {
		return nil, missing("MessageBody")
	}
	if !storable(*o.MessageBody) {
		return nil, fail("InvalidMessageContents", "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF")
	}
	if d := o.DelaySeconds; d != nil && (*d < 0 || *d > maxDelay) {
		return nil, invalid("DelaySeconds", *d, "DelaySeconds must be >= 0 and <= 900.")
	}
	if err := checkAttributes(o.MessageAttributes); err != nil {
		return nil, err
	}
	trace, err := traceHeader(o.MessageSystemAttributes)
	if err != nil {
		return nil, err
	}
	m := &message{
		id:            newID(),
		body:          *o.MessageBody,
		bodySum:       sum(*o.MessageBody),
		attributes:    o.MessageAttributes,
		attributesSum: sumAttributes(o.MessageAttributes),
		trace:         trace,
	}
	if o.MessageGroupID != nil {
		m.group = *o.MessageGroupID
		if !printable(m.group) {
			return nil, invalid("MessageGroupId", m.group, idRule)
		}
	}
	if o.MessageDeduplicationID != nil {
		m.dedup = *o.MessageDeduplicationID
		if !printable(m.dedup) {
			return nil, invalid("MessageDeduplicationId", m.dedup, idRule)
		}
	}
	return m, nil
}

// size is what counts towards the limits: the body, and of each message
// attribute name, type and value.
func (o *outgoing) size() int {
	n := 0
	if o.MessageBody != nil {
		n = len(*o.MessageBody)
	}
	for name, a := range o.MessageAttributes {
		n += len(name) + len(a.DataType) + len(a.value())
	}
	return n
}

// send puts a message into the queue, unless it was sent before.
func (q *queue) send(o *outgoing, m *message, now time.Time) (*sendResult, error) {
	if size := o.size(); size > q.settings.size {
		return nil, fail("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", q.settings.size)
	}
	if err := q.checkOrder(o); err != nil {
		return nil, err
	}
	if err := q.checkType(o); err != nil {
		return nil, err
	}
	out := &sendResult{
		MD5OfMessageBody:             m.bodySum,
		MD5OfMessageAttributes:       m.attributesSum,
		MD5OfMessageSystemAttributes: sumAttributes(o.MessageSystemAttributes),
	}
	m.sent = now
	delay := seconds(o.DelaySeconds, q.settings.delay)
	if q.fifo {
		delay = q.settings.delay
		if first, again := q.deduplicate(m, now); again {
			q.report.Deduplicated++
			out.MessageID, out.SequenceNumber = first.id, sequenceText(first.sequence)
			return out, nil
		}
	}
	out.MessageID, out.SequenceNumber = m.id, sequenceText(m.sequence)
	q.report.Sent++
	q.put(m, now, delay)
	return out, nil
}

// checkOrder checks what a FIFO queue needs. Without it a whole batch fails.
func (q *queue) checkOrder(o *outgoing) *apiError {
	switch {
	case q.fifo && o.MessageGroupID == nil:
		return missing("MessageGroupId")
	case q.fifo && o.MessageDeduplicationID == nil && !q.settings.contentDedup:
		return fail("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")
	}
	return nil
}

// checkType refuses what is for the other type of queue.
func (q *queue) checkType(o *outgoing) error {
	switch {
	case !q.fifo && o.MessageDeduplicationID != nil:
		return invalid("MessageDeduplicationId", *o.MessageDeduplicationID, notForThisType)
	case q.fifo && o.DelaySeconds != nil && *o.DelaySeconds != 0:
		return invalid("DelaySeconds", *o.DelaySeconds, notForThisType)
	}
	return nil
}

// deduplicate finds the first message with the deduplication ID of m, or makes
// m the first.
func (q *queue) deduplicate(m *message, now time.Time) (sending, bool) {
	if m.dedup == "" {
		digest := sha256.Sum256([]byte(m.body))
		m.dedup = hex.EncodeToString(digest[:])
	}
	key := m.dedup
	if q.settings.groupScope {
		key = m.group + "\n" + m.dedup
	}
	if first, again := q.window.find(key, now); again {
		return first, true
	}
	m.sequence = q.server.nextSequence()
	q.window.add(key, sending{id: m.id, sequence: m.sequence}, now)
	return sending{}, false
}

// nextSequence returns a number for a message of a FIFO queue.
func (s *Server) nextSequence() uint64 {
	s.numbers++
	return s.numbers
}

// sequenceText writes a sequence number with 20 digits, so that texts have the
// order of the numbers.
func sequenceText(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(18_000_000_000_000_000_000+n<<8, 10)
}

// storable reports whether text has only characters that SQS stores.
func storable(text string) bool {
	for _, r := range text {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
		case r >= 0x20 && r <= 0xD7FF:
		case r >= 0xE000 && r <= 0xFFFD:
		case r >= 0x10000:
		default:
			return false
		}
	}
	return true
}

// printable reports whether id is 1 to 128 characters of ASCII without space.
func printable(id string) bool {
	for _, r := range id {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return len(id) >= 1 && len(id) <= 128
}

func checkAttributes(attributes map[string]attribute) error {
	if n := len(attributes); n > maxAttributes {
		return fail("InvalidParameterValue", "Number of message attributes [%d] exceeds the allowed maximum [%d].", n, maxAttributes)
	}
	for name, a := range attributes {
		if err := checkAttributeName(name); err != nil {
			return err
		}
		if err := a.check(name); err != nil {
			return err
		}
	}
	return nil
}

func checkAttributeName(name string) error {
	rule := ""
	lower := strings.ToLower(name)
	switch {
	case name == "" || len(name) > 256:
		rule = "must have 1 to 256 characters"
	case strings.ContainsFunc(name, func(r rune) bool { return !plain(r) && r != '.' }):
		rule = "can only have alphanumeric characters, hyphens, underscores and periods"
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
		rule = "must not start or end with a period, nor have two in succession"
	case strings.HasPrefix(lower, "aws.") || strings.HasPrefix(lower, "amazon."):
		rule = "must not start with AWS. or Amazon."
	default:
		return nil
	}
	return fail("InvalidParameterValue", "The message attribute name '%s' is invalid: it %s.", name, rule)
}

// plain reports the characters of names of queues and ids of entries.
func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

func (a attribute) check(name string) error {
	kind, _, _ := strings.Cut(a.DataType, ".")
	bad := func(format string, arguments ...any) error {
		return fail("InvalidParameterValue", "The message attribute '%s' %s", name, fmt.Sprintf(format, arguments...))
	}
	switch {
	case kind != "String" && kind != "Number" && kind != "Binary":
		return bad("has an invalid message attribute type, the set of supported type prefixes is Binary, Number, and String.")
	case len(a.DataType) > 256:
		return bad("has a type of more than 256 characters.")
	case len(a.StringListValues) > 0 || len(a.BinaryListValues) > 0:
		return bad("has a list of values, which is not supported.")
	case kind == "Binary" && a.StringValue != nil, kind != "Binary" && a.BinaryValue != nil:
		return bad("with type '%s' must use the field of that type.", a.DataType)
	case len(a.value()) == 0:
		return bad("must contain a non-empty value of type '%s'.", a.DataType)
	case kind != "Binary" && (!storable(*a.StringValue) || !utf8.ValidString(*a.StringValue)):
		return bad("has invalid characters.")
	case kind == "Number" && !numeric(*a.StringValue):
		return bad("with type 'Number' must have a number as its value, was '%s'.", *a.StringValue)
	}
	return nil
}

// numeric reports whether text is a decimal number that SQS takes.
func numeric(text string) bool {
	if strings.ContainsAny(text, "xXpP_nN") {
		return false
	}
	n, err := strconv.ParseFloat(text, 64)
	return err == nil && !math.IsInf(n, 0) && math.Abs(n) <= 1e128
}

// traceHeader checks message system attributes: there is but one.
func traceHeader(attributes map[string]attribute) (string, error) {
	for name, a := range attributes {
		if name != "AWSTraceHeader" {
			return "", fail("InvalidParameterValue", "Message system attribute name '%s' is invalid.", name)
		}
		if a.DataType != "String" || a.StringValue == nil || *a.StringValue == "" {
			return "", fail("InvalidParameterValue", "The message system attribute 'AWSTraceHeader' must be a non-empty String.")
		}
		return *a.StringValue, nil
	}
	return "", nil
}
