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
		got, err := harness.Probe(t.Context(), harness.RabbitMQ, address.Host)
		if err != nil {
			t.Fatalf("%s does not answer at %s: %v", target.Name, address.Host, err)
		}
		if got.Product != "RabbitMQ" || !strings.HasPrefix(got.Version, target.Version) {
			t.Errorf("%s answers as %+v, want RabbitMQ %s*", address.Host, got, target.Version)
		}
	})
}

func TestSQSAnswers(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		address, err := url.Parse(target.URL)
		if err != nil {
			t.Fatalf("%s is not a URL: %v", target.Env, err)
		}
		got, err := harness.Probe(t.Context(), harness.SQS, address.Host)
		if err != nil {
			t.Fatalf("%s does not answer at %s: %v", target.Name, address.Host, err)
		}
		if got.Product != "ElasticMQ" || !strings.HasPrefix(got.Version, target.Version) {
			t.Errorf("%s answers as %+v, want ElasticMQ %s", address.Host, got, target.Version)
		}
	})
}

func TestRedisAnswers(t *testing.T) {
	livetest.Redis(t, func(t *testing.T, target livetest.Target) {
		address, err := url.Parse(target.URL)
		if err != nil {
			t.Fatalf("%s is not a URL: %v", target.Env, err)
		}
		got, err := harness.Probe(t.Context(), harness.Redis, address.Host)
		if err != nil {
			t.Fatalf("%s does not answer at %s: %v", target.Name, address.Host, err)
		}
		if got.Product != "Redis" || !strings.HasPrefix(got.Version, target.Version) {
			t.Errorf("%s answers as %+v, want Redis %s", address.Host, got, target.Version)
		}
	})
}

func TestKafkaAnswers(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		got, err := harness.Probe(t.Context(), harness.Kafka, target.URL)
		if err != nil {
			t.Fatalf("%s does not answer at %s: %v", target.Name, target.URL, err)
		}
		if got.Product != "Kafka" || !strings.HasPrefix(got.Version, target.Version) {
			t.Errorf("%s answers as %+v, want Kafka %s", target.URL, got, target.Version)
		}
	})
}
