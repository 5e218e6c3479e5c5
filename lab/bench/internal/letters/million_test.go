package letters

import (
	"path/filepath"
	"testing"

	"github.com/redrive-go/redrive/operate/store"
)

// TestFill has letters that the filters find.
func TestFill(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := Fill(t.Context(), s, 5000); err != nil {
		t.Fatal(err)
	}
	if last, err := s.Last(t.Context()); err != nil || last != 5000 {
		t.Errorf("the last letter is %d, %v, want 5000", last, err)
	}
	for _, name := range []string{"all", "topic", "source", "group", "reason", "class", "fingerprint", "error group", "state", "group and reason", "topic and state"} {
		f, ok := Filters()[name]
		if found, err := s.Letters(t.Context(), f, store.Page{}); err != nil || !ok || len(found.Letters) == 0 {
			t.Errorf("by %s %d letters are found, %v", name, len(found.Letters), err)
		}
	}
}
