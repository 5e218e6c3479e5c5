package sqs

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

const (
	// maxAttributes leaves one of the ten that SQS takes to the framework.
	maxAttributes = 9

	// movedRoom is what a tenth may take of the packed one, in bytes.
	movedRoom = 3 << 10

	maxNameLength = 256 // of attributes, and of their types
	maxDigits     = 38  // of a number
)

// The types of headers that are not text are those of SQS: Number, Binary, and
// with a label, such as String.json. typeSystem says that the header is an
// attribute of the message system, of which a sender can set one.
const (
	typeString = "String"
	typeNumber = "Number"
	typeBinary = "Binary"
	typeSystem = "system"

	traceHeader = string(types.MessageSystemAttributeNameAWSTraceHeader)
)

// headersOf returns the attributes of a message but for the packed one, and those
// that were moved into that. Names come sorted, as they have no order.
func headersOf(m *types.Message, moved brokers.Headers) brokers.Headers {
	var h brokers.Headers
	if n := len(m.MessageAttributes); n > 1 || n == 1 && m.MessageAttributes[wire.Packed].DataType == nil {
		h = make(brokers.Headers, 0, n)
		for _, name := range slices.Sorted(maps.Keys(m.MessageAttributes)) {
			if name != wire.Packed {
				h = append(h, headerOf(name, m.MessageAttributes[name]))
			}
		}
	}
	if len(moved) > 0 {
		h = append(h, moved...)
		slices.SortStableFunc(h, func(a, b brokers.Header) int { return strings.Compare(a.Name, b.Name) })
	}
	if trace, ok := m.Attributes[traceHeader]; ok {
		h = append(h, brokers.Header{Name: traceHeader, Value: trace, Type: typeSystem})
	}
	return h
}

func headerOf(name string, value types.MessageAttributeValue) brokers.Header {
	h := brokers.Header{Name: name, Type: aws.ToString(value.DataType)}
	if h.Type == typeString {
		h.Type = ""
	}
	if value.StringValue != nil {
		h.Value = *value.StringValue
	} else {
		h.Value = string(value.BinaryValue)
	}
	return h
}

// attributesOf turns headers into attributes, and reports whether SQS takes all of
// them and gives them back as they are. Beside the packed attribute there is room for
// nine: of the ten that anybody may send, the smallest is moved into it, where few read
// it.
func attributesOf(h brokers.Headers) (attributes map[string]types.MessageAttributeValue, moved brokers.Headers, ok bool) {
	if len(h) > maxAttributes+1 {
		return nil, nil, false
	}
	attributes = make(map[string]types.MessageAttributeValue, len(h)+1)
	for _, header := range h {
		value, ok := attributeOf(header)
		if _, again := attributes[header.Name]; !ok || again || !takesName(header.Name) {
			return nil, nil, false
		}
		attributes[header.Name] = value
	}
	if len(h) > maxAttributes {
		smallest := slices.MinFunc(h, func(a, b brokers.Header) int { return cmp.Compare(len(a.Name)+len(a.Value), len(b.Name)+len(b.Value)) })
		moved = brokers.Headers{smallest}
		delete(attributes, smallest.Name)
	}
	return attributes, moved, len(moved) == 0 || len(quote(listed(moved))) <= movedRoom
}

func attributeOf(h brokers.Header) (value types.MessageAttributeValue, ok bool) {
	kind := cmp.Or(h.Type, typeString)
	base, label, labeled := strings.Cut(kind, ".")
	if labeled && (!word.MatchString(label) || len(kind) > maxNameLength) {
		return value, false
	}
	value.DataType = &kind
	switch base {
	case typeBinary:
		value.BinaryValue = []byte(h.Value)
		return value, h.Value != ""
	case typeString:
		ok = takes(h.Value)
	case typeNumber:
		ok = isNumber(h.Value)
	}
	value.StringValue = &h.Value
	return value, ok
}

// takesName reports whether SQS takes name for an attribute.
func takesName(name string) bool {
	lower := strings.ToLower(name[:min(len(name), len("amazon."))])
	return len(name) <= maxNameLength && word.MatchString(name) && name != wire.Packed &&
		!strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
}

// isNumber reports whether SQS takes s as a number and leaves it as it is: it
// trims zeros.
func isNumber(s string) bool {
	digits := len(s) - strings.Count(s, "-") - strings.Count(s, ".")
	return digits <= maxDigits && s != "-0" && trimmed.MatchString(s)
}

var (
	trimmed = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?$`)
	word    = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`) // no dot at either end, nor two in a row
)

// isTrace reports whether h is a trace header that can be sent as one.
func isTrace(h brokers.Header) bool {
	if h.Type != typeSystem || h.Name != traceHeader || len(h.Value) > maxNameLength || !strings.Contains(h.Value, "Root=") {
		return false
	}
	return strings.IndexFunc(h.Value, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

func sizeOf(attributes map[string]types.MessageAttributeValue) int {
	n := 0
	for name, value := range attributes {
		n += len(name) + len(aws.ToString(value.DataType)) + len(aws.ToString(value.StringValue)) + len(value.BinaryValue)
	}
	return n
}
