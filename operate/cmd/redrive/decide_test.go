package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/store"
)

func TestDiscardAndRestore(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.wants("discard_dry.text", "dlq", "discard", "--topic", "orders", "--dry-run")
		s.wants("discard_dry.json", "dlq", "discard", "--topic", "orders", "--dry-run", "-o", "json")
		if acts := s.acts(); len(acts) > 0 {
			s.Errorf("a dry run did %q", acts)
		}
		s.wants("discard.text", "dlq", "discard", "--error", "1", "--because", "a load test", "--yes", "--who", "anna@desk")
		s.wants("discard_one.json", "dlq", "discard", "4", "--who", "anna@desk", "-o", "json")
		s.wants("restore_dry.text", "dlq", "restore", "--all", "--dry-run")
		s.wants("restore_some.text", "dlq", "restore", "2", "4", "--because", "it was not", "--who", "ben@desk")
		for id, want := range map[int64]store.State{1: store.StateDiscarded, 2: store.StateCollected, 3: store.StateDiscarded, 4: store.StateCollected} {
			if l, _ := s.letter(id); l.State != want {
				s.Errorf("letter %d is %s, want %s", id, l.State, want)
			}
		}
		want := []string{
			"ben@desk restore 2: redrive dlq restore 2 4: it was not",
			"anna@desk discard 1: redrive dlq discard 4 --output=json: ",
			"anna@desk discard 3: redrive dlq discard --error=1: a load test",
		}
		if acts := s.acts(); !slices.Equal(acts, want) {
			s.Errorf("the audit has %q, want %q", acts, want)
		}
		if _, history := s.letter(2); len(history) != 3 || history[2].Actor.Who != "ben@desk" {
			s.Errorf("history %+v", history)
		}
		s.wants("show_history.text", "dlq", "show", "2", "--body", "none")
	})
}

func TestDecisionsRefuse(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.session("decisions_refuse")
		s.streams.Asks, s.streams.In = true, strings.NewReader("7\n")
		s.refuses(exitFailure, "the number was not typed", "dlq", "discard", "--all", "--because", "a test")
		if acts := s.acts(); len(acts) > 0 {
			s.Errorf("what was refused did %q", acts)
		}
		s.streams.In = strings.NewReader("8\n")
		if got := s.call("dlq", "discard", "--all", "--because", "a test"); got.code != exitOK || !strings.Contains(got.stderr, "About to discard 8 letters\nType 8 to go on: ") {
			s.Errorf("%+v", got)
		}
	})
}

func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"--error=3": "--error=3", "a b": "'a b'", "": "''", "it's": `'it'\''s'`, "$(rm)": "'$(rm)'", hostile: "'" + hostile + "'",
	} {
		if got := quoted(word); got != want {
			t.Errorf("quoted(%q) = %q, want %q", word, got, want)
		}
	}
	if got := term.Safe(quoted(hostile)); strings.ContainsAny(got, "\x1b\n") {
		t.Errorf("%q is not safe", got)
	}
}
