// Package integration_test holds the tests that run on real brokers.
package integration_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestRabbitMQAnswers tells a broker that is missing or of the wrong version
// apart from everything that the other tests may find.
func TestRabbitMQAnswers(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		address, err := url.Parse(target.URL)
		if err != nil {
			t.Fatalf("%s is not a URL: %v", target.Env, err)
		}
		got, err := harness.Probe(t.Context(), address.Host)
		if err != nil {
			t.Fatalf("%s does not answer at %s: %v", target.Name, address.Host, err)
		}
		if got.Product != "RabbitMQ" || !strings.HasPrefix(got.Version, target.Version) {
			t.Errorf("%s answers as %+v, want RabbitMQ %s*", address.Host, got, target.Version)
		}
	})
}
