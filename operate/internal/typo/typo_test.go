package typo

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	words := []string{"ca", "collect", "confirmed", "kind", "topic", "topics"}
	for word, want := range map[string]string{
		"collect": "collect", "Collect": "collect", "colelct": "collect", "colect": "collect", "collects": "collect",
		"topic": "topic", "topicss": "topics", "knd": "kind", "confirm": "confirmed",
		"co": "ca", "xy": "", "": "", "queue": "", "discarded": "", strings.Repeat("x", 1<<20): "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}
