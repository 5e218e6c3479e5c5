package consumer

import (
	"maps"
	"testing"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// A broker that estimates attempts must know the limit of each topic, so that
// no estimate ends a message.
func TestSubscriptionTellsTheAttemptsOfTopics(t *testing.T) {
	cfg := Config{DeadLetter: dlq.Suffix(".dead"), Retry: retry.Policy{MaxAttempts: 7}}.withDefaults()
	var routes []*route
	for topic, settings := range map[string]Topic{"plain": {}, "few": {MaxAttempts: 2}, "most": {MaxAttempts: 7}} {
		r, err := newRoute(cfg, topic, settings)
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, r)
	}
	sub := cfg.subscription(routes)
	if want := map[string]int{"few": 2}; sub.MaxAttempts != 7 || !maps.Equal(sub.Attempts, want) {
		t.Errorf("at most %d attempts, and %v for topics, want 7 and %v", sub.MaxAttempts, sub.Attempts, want)
	}
}
