package letters

import (
	"path/filepath"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

// TestRates takes what is there, counts all of it, and says so if there is less.
func TestRates(t *testing.T) {
	const n = 1200
	broker := memory.New(memory.Options{})
	defer broker.Close(t.Context())
	open := func(topic string) brokers.Source {
		for i := range n {
			if err := broker.Publish(t.Context(), topic, Letter(i)); err != nil {
				t.Fatal(err)
			}
		}
		source, err := broker.Open(t.Context(), collect.Subscription("", topic))
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	if rate, err := Consume(t.Context(), open("consumed"), n); err != nil || rate <= 0 || broker.Len("consumed") != 0 {
		t.Errorf("Consume = %g, %v, and %d letters are left", rate, err, broker.Len("consumed"))
	}
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rate, err := Collect(t.Context(), open("collected"), s, n); err != nil || rate <= 0 || broker.Len("collected") != 0 {
		t.Errorf("Collect = %g, %v, and %d letters are left", rate, err, broker.Len("collected"))
	}
	clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
	if err != nil || len(clusters.Clusters) != 20 {
		t.Errorf("%d clusters, %v, want 20", len(clusters.Clusters), err)
	}
}
