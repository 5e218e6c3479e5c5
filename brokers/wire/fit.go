package wire

import (
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// minCut is the least of a text that is worth keeping when it is cut.
const minCut = 64

// step names headers that [Fit] may shed: one, or all with a prefix that ends in
// "-". A text whose step has cut is cut to the room that is left, if that is
// worth it, instead of being dropped. A text that is kept is never dropped: at
// least minCut bytes of it stay.
type step struct {
	name, field string
	cut, kept   bool
}

var steps = [...]step{
	{name: deadPrefix + "traceparent", field: "traceparent"},
	{name: nameTrace, field: "traceparent"},
	{name: prefix + "error-stack", field: "error-stack", cut: true},
	{name: deadPrefix + "history", field: "history"},
	{name: prefix + "error-message", field: "error-message", cut: true},
	{name: deadPrefix + "origin-", field: "origin"},
	{name: deadPrefix + "rule", field: "rule"},
	{name: nameDeathStack, field: "error-stack", cut: true},
	{name: nameHistory, field: "history"},
	{name: nameDeathMessage, field: "error-message", cut: true, kept: true},
	{name: nameOrigin, field: "origin"},
	{name: nameDeathRule, field: "rule"},
}

// Fit returns the framework headers h, as [Partition] has them, without what has
// no room in limit bytes of names and values. These go, in this order: the trace;
// the stack, the history, the error text, the details of the origin and the rule
// of a dead letter; then the history and the details that a copy carries. A copy that
// waits for its dead letter sheds, in this order: its stack, its history, its
// error text except for 64 bytes, the details, and its rule. Stack and text are
// cut to the room that is left where that is worth it. What a message needs to be
// handled stays, even if it alone is over the limit.
//
// A header lists the parts that went, after those that it listed before:
// redrive-dlq-truncated in a dead letter, redrive-death-truncated in a copy that
// waits for its dead letter. This header counts for the limit, too.
func Fit(h brokers.Headers, limit int) brokers.Headers {
	var shed []string
	note := noteOf(h)
	if note != "" {
		shed = text.Words(strings.Split(h.Get(note), ","))
	}
	h = h.Without(note)
	for _, s := range steps {
		if size(h)+noteSize(note, shed) <= limit {
			break
		}
		if !slices.ContainsFunc(h, s.hits) {
			continue
		}
		shed = text.Words(append(shed, s.field))
		over := size(h) + noteSize(note, shed) - limit
		kept := h[:0]
		for _, header := range h {
			if !s.hits(header) || s.shorten(&header, over) {
				kept = append(kept, header)
			}
		}
		h = kept
	}
	if note != "" && len(shed) > 0 {
		h = append(h, brokers.Header{Name: note, Value: strings.Join(shed, ",")})
	}
	return h
}

// noteOf returns the name of the header that lists the parts shed from h: "" if
// h is neither a dead letter nor a copy that waits for one. A dead letter may be
// retried, die again and wait: h then has the headers of both deaths, and the
// list is that of the later one.
func noteOf(h brokers.Headers) string {
	switch {
	case h.Get(nameDeathReason) != "":
		return nameDeathTruncated
	case h.Get(deadVersion) != "":
		return deadTruncated
	}
	return ""
}

func (s step) hits(h brokers.Header) bool {
	return h.Name == s.name || strings.HasSuffix(s.name, "-") && strings.HasPrefix(h.Name, s.name)
}

// shorten makes the value of h shorter by at least over bytes and reports whether
// enough of it is left.
func (s step) shorten(h *brokers.Header, over int) bool {
	room := len(h.Value) - over
	if s.kept {
		room = max(room, minCut)
	}
	if !s.cut || room < minCut {
		return false
	}
	h.Value, _ = text.Lines(h.Value, room)
	return true
}

func size(h brokers.Headers) int {
	n := 0
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}

// noteSize returns the bytes that the list of shed parts takes.
func noteSize(note string, shed []string) int {
	if note == "" || len(shed) == 0 {
		return 0
	}
	return len(note) + len(strings.Join(shed, ","))
}
