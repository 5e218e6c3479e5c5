package wire

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

const (
	maxHistory = 10 // failures in a Meta, of which the last are kept
	maxOrigin  = 16 // details of the origin
)

// writer collects framework headers. Empty and zero values write nothing.
type writer struct {
	headers brokers.Headers
	packed  []byte // unless it is nil they go here instead, as [Pack] has them
	room    []byte // for numbers
}

// copy writes what a copy of m carries.
func (w *writer) copy(m brokers.Message, meta brokers.Meta) {
	w.identity(m)
	w.exact(nameTopic, m.Topic)
	w.meta(meta)
}

func (w *writer) identity(m brokers.Message) {
	w.exact(nameID, m.ID)
	w.exact(nameKey, m.Key)
	w.time(namePublishedAt, m.PublishedAt)
}

// meta writes m. The due time and delays are rounded up. Of the origin, it
// writes at most maxOrigin details whose names are words.
func (w *writer) meta(m brokers.Meta) {
	w.exact(nameIdempotencyKey, m.IdempotencyKey)
	w.count(nameRedriveCount, m.RedriveCount)
	w.word(nameSend, m.Send)
	w.count(nameAttempt, m.Attempt)
	w.count(nameThrottles, m.Throttles)
	w.time(nameFirstFailedAt, m.FirstFailedAt)
	w.time(nameLastFailedAt, m.LastFailedAt)
	w.end(nameExcused, appendDuration(w.begin(nameExcused), m.Excused))
	w.count(nameCrashes, m.Crashes)
	w.time(nameDueAt, roundUp(m.DueAt))
	w.end(nameDelay, appendDuration(w.begin(nameDelay), m.Delay))
	w.put(nameClass, knownClass(m.Class), "")
	w.end(nameHistory, appendHistory(w.begin(nameHistory), m.History))
	if isTrace(m.Trace) {
		w.put(nameTrace, m.Trace, "")
	}
	w.death(m.Death)
	for _, detail := range m.Origin[:min(len(m.Origin), maxOrigin)] {
		if !text.IsWord(detail.Name) {
			continue
		}
		if !text.IsWord(detail.Type) {
			detail.Type = ""
		}
		name, _ := named(nameOrigin + detail.Name)
		value, _ := text.Line(detail.Value, text.MaxShort)
		w.put(name, value, detail.Type)
	}
}

// exact writes value as it is or, where cutting would make it another value
// or reading would refuse it, not at all.
func (w *writer) exact(name, value string) {
	if text.IsLine(value, text.MaxName) {
		w.put(name, value, "")
	}
}

// word writes value, if it is one.
func (w *writer) word(name, value string) {
	if text.IsWord(value) {
		w.put(name, value, "")
	}
}

// isTrace reports whether s is a word, or one and a comma and another one. The first
// of two may be empty.
func isTrace(s string) bool {
	run, sent, two := strings.Cut(s, ",")
	return (text.IsWord(run) || run == "" && two) && (text.IsWord(sent) || !two)
}

func (w *writer) count(name string, n int) { w.end(name, text.AppendCount(w.begin(name), n)) }

func (w *writer) time(name string, t time.Time) { w.end(name, text.AppendTime(w.begin(name), t)) }

func (w *writer) put(name, value, typ string) {
	switch {
	case value == "":
	case w.packed != nil:
		w.packed = appendValue(appendName(w.packed, name), value, typ)
	default:
		w.headers = append(w.headers, brokers.Header{Name: name, Value: value, Type: typ})
	}
}

// begin returns what to append a value to, for end, that JSON has as it is.
func (w *writer) begin(name string) []byte {
	if w.packed == nil {
		return w.room[:0]
	}
	return append(appendName(w.packed, name), '"')
}

// end writes the value that was appended to what begin returned, if any was.
func (w *writer) end(name string, b []byte) {
	switch {
	case w.packed == nil:
		w.room = b
		w.put(name, string(b), "")
	case b[len(b)-1] != '"':
		w.packed = append(b, '"')
	}
}

// reader looks up framework headers; of a repeated one it knows the last. Its
// methods return the zero value for what is absent or cannot be read.
type reader brokers.Headers

func (r reader) value(name string) string {
	for i := len(r) - 1; i >= 0; i-- {
		if r[i].Name == name {
			return r[i].Value
		}
	}
	return ""
}

// line reads a text of one line.
func (r reader) line(name string) string {
	if value := r.value(name); text.IsLine(value, text.MaxName) {
		return value
	}
	return ""
}

// word reads a word.
func (r reader) word(name string) string {
	if value := r.value(name); text.IsWord(value) {
		return value
	}
	return ""
}

// trace reads a Trace.
func (r reader) trace() string {
	if value := r.value(nameTrace); isTrace(value) {
		return value
	}
	return ""
}

func (r reader) count(name string) int { return text.Count(r.value(name)) }

func (r reader) time(name string) time.Time { return text.Time(r.value(name)) }

func (r reader) meta() brokers.Meta {
	return brokers.Meta{
		Attempt:        r.count(nameAttempt),
		Throttles:      r.count(nameThrottles),
		FirstFailedAt:  r.time(nameFirstFailedAt),
		LastFailedAt:   r.time(nameLastFailedAt),
		Excused:        parseDuration(r.value(nameExcused)),
		Crashes:        r.count(nameCrashes),
		DueAt:          r.time(nameDueAt),
		Delay:          parseDuration(r.value(nameDelay)),
		Class:          knownClass(r.value(nameClass)),
		History:        parseHistory(r.value(nameHistory)),
		IdempotencyKey: r.line(nameIdempotencyKey),
		RedriveCount:   r.count(nameRedriveCount),
		Send:           r.word(nameSend),
		Origin:         r.origin(),
		Trace:          r.trace(),
		Death:          r.death(),
	}
}

func (r reader) origin() brokers.Headers {
	var out brokers.Headers
	for i, h := range r {
		name, ok := strings.CutPrefix(h.Name, nameOrigin)
		if !ok || !text.IsWord(name) || h.Value == "" || !text.IsLine(h.Value, text.MaxShort) {
			continue
		}
		if !text.IsWord(h.Type) {
			h.Type = ""
		}
		if out == nil {
			out = make(brokers.Headers, 0, min(len(r)-i, maxOrigin))
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
// semicolons between them, nothing for what is zero, and a flag at the end: ",a"
// for what was ambiguous, ",t" for what timed out, ",at" for both.

func appendHistory(b []byte, failures []brokers.Failure) []byte {
	failures = failures[max(0, len(failures)-maxHistory):]
	for i, f := range failures {
		if i > 0 {
			b = append(b, ';')
		}
		b = strconv.AppendInt(b, int64(min(max(f.Attempt, 0), text.MaxCount)), 10)
		fingerprint := f.Fingerprint
		if !text.IsWord(fingerprint) {
			fingerprint = ""
		}
		b = append(text.AppendTime(append(b, ','), f.At), ',')
		b = append(append(b, knownClass(f.Class)...), ',')
		b = append(append(b, fingerprint...), ',')
		b = appendDuration(b, f.Delay)
		if f.Ambiguous || f.TimedOut {
			b = append(b, ',')
		}
		if f.Ambiguous {
			b = append(b, 'a')
		}
		if f.TimedOut {
			b = append(b, 't')
		}
	}
	return b
}

func parseHistory(s string) []brokers.Failure {
	var out []brokers.Failure
	for rest := s; rest != "" && len(out) < maxHistory; {
		var entry string
		if i := strings.LastIndexByte(rest, ';'); i >= 0 {
			rest, entry = rest[:i], rest[i+1:]
		} else {
			rest, entry = "", rest
		}
		if f, ok := parseFailure(entry); ok {
			if out == nil {
				out = make([]brokers.Failure, 0, min(2+strings.Count(rest, ";"), maxHistory))
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
	delay, flags, _ := strings.Cut(s, ",")
	n, isNumber := text.Number(attempt)
	if !ok || !isNumber {
		return brokers.Failure{}, false
	}
	if !text.IsWord(fingerprint) {
		fingerprint = ""
	}
	return brokers.Failure{
		Attempt:     int(min(n, text.MaxCount)),
		At:          text.Time(at),
		Class:       knownClass(class),
		Fingerprint: fingerprint,
		Delay:       parseDuration(delay),
		Ambiguous:   strings.Contains(flags, "a"),
		TimedOut:    strings.Contains(flags, "t"),
	}, true
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
	if ms <= 0 {
		return b
	}
	return strconv.AppendInt(b, ms, 10)
}

func parseDuration(s string) time.Duration {
	ms, _ := text.Number(s)
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
