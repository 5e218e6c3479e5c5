package wire

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// HistoryLimit bounds the failures in a Meta, of which the last are kept.
const HistoryLimit = 10

const (
	maxCount  = 10_000              // attempts and other counters are clamped to it
	maxMillis = 253_402_300_799_999 // the end of year 9999
	maxOrigin = 16                  // details of the origin
)

// Writer collects framework headers. Empty and zero values write nothing.
type Writer struct {
	Headers brokers.Headers
	Cut     []string // the names of fields that had to be cut, see [Field]

	packed []byte // unless it is nil they go here instead, as [Pack] has them
	room   []byte // for numbers
}

// Text writes value as [Text] makes it.
func (w *Writer) Text(name, value string, max int) { w.text(name, value, max, false) }

// Lines writes value as [Lines] makes it.
func (w *Writer) Lines(name, value string, max int) { w.text(name, value, max, true) }

func (w *Writer) text(name, value string, max int, lines bool) {
	w.put(name, w.fit(name, value, max, lines), "")
}

// fit escapes value, and notes if it had to be cut.
func (w *Writer) fit(name, value string, max int, lines bool) string {
	value, cut := escape(value, max, lines)
	if cut {
		w.Cut = append(w.Cut, Field(name))
	}
	return value
}

// exact writes value as it is or, where cutting would make it another value
// or reading would refuse it, not at all.
func (w *Writer) exact(name, value string, max int) {
	if len(value) <= max && plain(value, false) {
		w.put(name, value, "")
	}
}

// Int writes a counter.
func (w *Writer) Int(name string, n int) {
	w.end(name, appendPositive(w.begin(name), int64(min(n, maxCount))))
}

// Time writes t, rounded down to the millisecond. Times before 1970 are not
// written.
func (w *Writer) Time(name string, t time.Time) {
	w.end(name, appendMillis(w.begin(name), t))
}

// Meta writes m with every name after prefix, which is [Prefix] or
// [DeadPrefix]. The due time and delays are rounded up. Of the origin, it
// writes at most 16 details whose names are words; of the history the last
// HistoryLimit.
func (w *Writer) Meta(prefix string, m brokers.Meta) {
	name := renamed(prefix)
	w.exact(name(IdempotencyKey), m.IdempotencyKey, MaxName)
	w.Int(name(RedriveCount), m.RedriveCount)
	w.Int(name(Attempt), m.Attempt)
	w.Int(name(Throttles), m.Throttles)
	w.Time(name(FirstFailedAt), m.FirstFailedAt)
	w.Time(name(LastFailedAt), m.LastFailedAt)
	w.Time(name(DueAt), roundUp(m.DueAt))
	w.end(name(Delay), appendDuration(w.begin(name(Delay)), m.Delay))
	w.put(name(Class), knownClass(m.Class), "")
	w.end(name(History), appendHistory(w.begin(name(History)), m.History))
	for _, detail := range m.Origin[:min(len(m.Origin), maxOrigin)] {
		if !word(detail.Name, MaxWord) {
			continue
		}
		if !word(detail.Type, MaxWord) {
			detail.Type = ""
		}
		full, _ := named(prefix + Origin[len(Prefix):] + detail.Name)
		w.put(full, w.fit(full, detail.Value, MaxShort, false), detail.Type)
	}
}

// renamed returns what puts prefix in the place of [Prefix].
func renamed(prefix string) func(carried string) string {
	return func(carried string) string {
		if prefix == Prefix {
			return carried
		}
		return prefix + carried[len(Prefix):]
	}
}

func (w *Writer) put(name, value, typ string) {
	switch {
	case value == "":
	case w.packed != nil:
		w.packed = appendValue(appendName(w.packed, name), value, typ)
	default:
		w.Headers = append(w.Headers, brokers.Header{Name: name, Value: value, Type: typ})
	}
}

// begin returns what to append a value to, for end, that JSON has as it is.
func (w *Writer) begin(name string) []byte {
	if w.packed == nil {
		return w.room[:0]
	}
	return append(appendName(w.packed, name), '"')
}

// end writes the value that was appended to what begin returned, if any was.
func (w *Writer) end(name string, b []byte) {
	switch {
	case w.packed == nil:
		w.room = b
		w.put(name, string(b), "")
	case b[len(b)-1] != '"':
		w.packed = append(b, '"')
	}
}

// Reader looks up framework headers; of a repeated one it knows the last. Its
// methods return the zero value for what is absent or cannot be read.
type Reader struct{ headers brokers.Headers }

// NewReader reads h, which came from [Partition] and must not change.
func NewReader(h brokers.Headers) Reader { return Reader{h} }

func (r Reader) value(name string) string {
	for i := len(r.headers) - 1; i >= 0; i-- {
		if r.headers[i].Name == name {
			return r.headers[i].Value
		}
	}
	return ""
}

// Text reads a text of at most max bytes that [Text] would not change.
func (r Reader) Text(name string, max int) string { return r.text(name, max, false) }

// Lines reads a text of at most max bytes that [Lines] would not change.
func (r Reader) Lines(name string, max int) string { return r.text(name, max, true) }

func (r Reader) text(name string, max int, lines bool) string {
	if value := r.value(name); len(value) <= max && plain(value, lines) {
		return value
	}
	return ""
}

// Word reads at most [MaxWord] ASCII letters, digits and "-_.".
func (r Reader) Word(name string) string {
	if value := r.value(name); word(value, MaxWord) {
		return value
	}
	return ""
}

// Int reads a counter, clamped to 10,000.
func (r Reader) Int(name string) int {
	n, _ := parseNumber(r.value(name))
	return int(min(n, maxCount))
}

// Time reads a time between 1970 and the end of year 9999.
func (r Reader) Time(name string) time.Time { return parseTime(r.value(name)) }

// Meta reads what [Writer.Meta] wrote with the same prefix.
func (r Reader) Meta(prefix string) brokers.Meta {
	name := renamed(prefix)
	return brokers.Meta{
		Attempt:        r.Int(name(Attempt)),
		Throttles:      r.Int(name(Throttles)),
		FirstFailedAt:  r.Time(name(FirstFailedAt)),
		LastFailedAt:   r.Time(name(LastFailedAt)),
		DueAt:          r.Time(name(DueAt)),
		Delay:          parseDuration(r.value(name(Delay))),
		Class:          knownClass(r.value(name(Class))),
		History:        parseHistory(r.value(name(History))),
		IdempotencyKey: r.Text(name(IdempotencyKey), MaxName),
		RedriveCount:   r.Int(name(RedriveCount)),
		Origin:         r.details(name(Origin)),
	}
}

func (r Reader) details(prefix string) brokers.Headers {
	var out brokers.Headers
	for i, h := range r.headers {
		name, ok := strings.CutPrefix(h.Name, prefix)
		if !ok || !word(name, MaxWord) || h.Value == "" || len(h.Value) > MaxShort || !plain(h.Value, false) {
			continue
		}
		if !word(h.Type, MaxWord) {
			h.Type = ""
		}
		if out == nil {
			out = make(brokers.Headers, 0, min(len(r.headers)-i, maxOrigin))
		}
		if out = append(out, brokers.Header{Name: name, Value: h.Value, Type: h.Type}); len(out) == maxOrigin {
			break
		}
	}
	return out
}

// knownClass returns class if it is one of package classify's and "" if not.
// The list is closed because classes end up in the labels of metrics.
func knownClass(class string) string {
	switch class {
	case "poison", "transient", "throttled", "environment", "shutdown", "lost", "unknown":
		return class
	}
	return ""
}

// A history is "attempt,time,class,fingerprint,delay" per failure, with
// semicolons between them, nothing for what is zero, and ",a" at the end of
// what was ambiguous.

func appendHistory(b []byte, failures []brokers.Failure) []byte {
	failures = failures[max(0, len(failures)-HistoryLimit):]
	for i, f := range failures {
		if i > 0 {
			b = append(b, ';')
		}
		b = strconv.AppendInt(b, int64(min(max(f.Attempt, 0), maxCount)), 10)
		fingerprint := f.Fingerprint
		if !word(fingerprint, MaxWord) {
			fingerprint = ""
		}
		b = append(appendMillis(append(b, ','), f.At), ',')
		b = append(append(b, knownClass(f.Class)...), ',')
		b = append(append(b, fingerprint...), ',')
		b = appendDuration(b, f.Delay)
		if f.Ambiguous {
			b = append(b, ',', 'a')
		}
	}
	return b
}

func parseHistory(s string) []brokers.Failure {
	var out []brokers.Failure
	for rest := s; rest != "" && len(out) < HistoryLimit; {
		var entry string
		if i := strings.LastIndexByte(rest, ';'); i >= 0 {
			rest, entry = rest[:i], rest[i+1:]
		} else {
			rest, entry = "", rest
		}
		if f, ok := parseFailure(entry); ok {
			if out == nil {
				out = make([]brokers.Failure, 0, min(2+strings.Count(rest, ";"), HistoryLimit))
			}
			out = append(out, f)
		}
	}
	slices.Reverse(out)
	return out
}

func parseFailure(s string) (brokers.Failure, bool) {
	attempt, s, _ := strings.Cut(s, ",")
	at, s, _ := strings.Cut(s, ",")
	class, s, _ := strings.Cut(s, ",")
	fingerprint, s, ok := strings.Cut(s, ",")
	delay, flag, _ := strings.Cut(s, ",")
	n, isNumber := parseNumber(attempt)
	if !ok || !isNumber {
		return brokers.Failure{}, false
	}
	if !word(fingerprint, MaxWord) {
		fingerprint = ""
	}
	return brokers.Failure{
		Attempt:     int(min(n, maxCount)),
		At:          parseTime(at),
		Class:       knownClass(class),
		Fingerprint: fingerprint,
		Delay:       parseDuration(delay),
		Ambiguous:   flag == "a",
	}, true
}

func appendMillis(b []byte, t time.Time) []byte {
	ms := t.UnixMilli()
	if ms < 0 {
		return b
	}
	return strconv.AppendInt(b, min(ms, maxMillis), 10)
}

func roundUp(t time.Time) time.Time {
	if t.Nanosecond()%int(time.Millisecond) == 0 {
		return t
	}
	return t.Add(time.Millisecond)
}

// appendDuration appends milliseconds, rounded up.
func appendDuration(b []byte, d time.Duration) []byte {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return appendPositive(b, ms)
}

func appendPositive(b []byte, n int64) []byte {
	if n <= 0 {
		return b
	}
	return strconv.AppendInt(b, n, 10)
}

func parseTime(s string) time.Time {
	ms, ok := parseNumber(s)
	if !ok || ms > maxMillis {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func parseDuration(s string) time.Duration {
	ms, _ := parseNumber(s)
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// parseNumber reads decimal digits and nothing else. What is too large for
// an int64 is the largest one.
func parseNumber(s string) (n int64, ok bool) {
	if s == "" || len(s) > MaxWord {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if digit := int64(c - '0'); n > (math.MaxInt64-digit)/10 {
			n = math.MaxInt64
		} else {
			n = n*10 + digit
		}
	}
	return n, true
}
