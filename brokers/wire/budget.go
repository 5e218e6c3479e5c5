package wire

import (
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// minCut is the least of a text that is worth keeping when it is cut.
const minCut = 64

// Step names headers that [Fit] may shed: one, or all with a prefix that ends
// in "-". A text whose step has Cut is cut to the room that is left, if that
// is worth it, instead of being dropped.
type Step struct {
	Name string
	Cut  bool
}

// Size is what h counts against a limit: the bytes of its names and values.
func Size(h brokers.Headers) int {
	n := 0
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}

// Field is the short form of a framework header's name that notes about
// truncation use: redrive-error-stack is "error-stack", and all details of the
// origin are "origin".
func Field(name string) string {
	short, ok := strings.CutPrefix(name, DeadPrefix)
	if !ok {
		short = strings.TrimPrefix(name, Prefix)
	}
	if strings.HasPrefix(short, "origin-") {
		return "origin"
	}
	return short
}

// Fit sheds headers of h, in the order of steps, until the rest takes at most
// limit bytes. The fields that were shed or cut, after those in shed that were
// before, are named in one more header called note, which counts too. Headers
// without a step stay, even if they alone are over the limit. Fit may write to
// h.
func Fit(h brokers.Headers, limit int, note string, shed []string, steps ...Step) brokers.Headers {
	shed = names(shed)
	for _, step := range steps {
		if Size(h)+noteSize(note, shed) <= limit {
			break
		}
		if !slices.ContainsFunc(h, step.hits) {
			continue
		}
		if field := Field(step.Name); !slices.Contains(shed, field) {
			shed = append(shed, field)
		}
		over := Size(h) + noteSize(note, shed) - limit
		kept := h[:0]
		for _, header := range h {
			if !step.hits(header) || step.cut(&header, over) {
				kept = append(kept, header)
			}
		}
		h = kept
	}
	if len(shed) > 0 {
		h = append(h, brokers.Header{Name: note, Value: strings.Join(shed, ",")})
	}
	return h
}

// Names reads the value of a note that [Fit] wrote.
func Names(note string) []string { return names(strings.Split(note, ",")) }

func (s Step) hits(h brokers.Header) bool {
	return h.Name == s.Name || strings.HasSuffix(s.Name, "-") && strings.HasPrefix(h.Name, s.Name)
}

// cut makes the value of h shorter by at least over bytes and reports whether
// enough of it is left.
func (s Step) cut(h *brokers.Header, over int) bool {
	room := len(h.Value) - over
	if !s.Cut || room < minCut {
		return false
	}
	h.Value, _ = Lines(h.Value, room)
	return true
}

func noteSize(note string, shed []string) int {
	if len(shed) == 0 {
		return 0
	}
	n := len(note) + len(shed) - 1
	for _, name := range shed {
		n += len(name)
	}
	return n
}

// names returns those of list that are words, once each and at most 16.
func names(list []string) []string {
	var out []string
	for _, name := range list {
		if len(out) < 16 && word(name, MaxWord) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
