package rabbitmq_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// With what Topology says imported, a worker that may declare nothing starts, and
// nothing is found.
func TestTopologyIsEnough(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		if w.management == "" {
			w.Skip("the address of the management API is not known")
		}
		w.closeSource()
		w.clean()
		w.delete(w.topic + ".dead")
		options := w.options(w.url, true)
		options.ManagementURL = w.management
		b := open(w.T, options)
		sub := w.subscription(w.topic)
		missing, err := b.Inspect(w.Context(), sub)
		if err != nil || len(missing) == 0 || !missing[0].Missing {
			w.Fatalf("found %v before anything is there, error %v", missing, err)
		}
		if w.exists(w.topic) {
			w.Fatal("Inspect has created a queue")
		}
		definitions, err := b.Topology(sub)
		if err != nil {
			w.Fatal(err)
		}
		answer, err := http.Post(strings.TrimSuffix(w.management, "/")+"/api/definitions", "application/json", strings.NewReader(definitions))
		if err != nil || answer.StatusCode >= 300 {
			w.Fatalf("import: %v, error %v", answer, err)
		}
		answer.Body.Close()
		if found, err := b.Inspect(w.Context(), sub); err != nil || len(found) > 0 {
			w.Errorf("found %v, error %v", found, err)
		}
		w.source = w.opens(options)
		w.publish("a")
		w.ack(w.receive(1)...)
	})
}
