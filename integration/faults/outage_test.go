package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/internal/outage"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
)

// A dependency is down for 5 s in real time, for 20 workers with connections of
// their own. Delays are a tenth of the default and less, so that the outage
// stands for one of about a minute.
func TestOutageOnRabbitMQ(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	url := livetest.Address(t, "REDRIVE_RABBITMQ4_URL")
	for _, v := range outage.Protections() {
		if v.Name != "all" && v.Name != "none" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			s := outage.Normal(5 * time.Second)
			s.Warm, s.Patience = 2*time.Second, 22*time.Second
			if v.Name == "none" {
				s.Patience = 0
			}
			s.Breaker = breaker.Config{MinRuns: 5, Window: 10, MinOpen: 500 * time.Millisecond, MaxOpen: 2 * time.Second}
			s.Config.Retry = retry.Policy{Backoff: retry.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second}, MaxRetryAfter: 2 * time.Second}
			v.Change(&s)
			r := throughOutage(t, url, s)
			if v.Name == "all" {
				spared(t, s, r)
			} else if r.Amplification < 2*s.Bound() {
				t.Errorf("%.2f calls for each message of the outage without any protection, want a storm", r.Amplification)
			}
		})
	}
}

func throughOutage(t *testing.T, url string, s outage.Scenario) outage.Report {
	t.Helper()
	o := newOwn(t, url, 4*time.Second)
	s.Topic = o.topic
	r, err := outage.Run(t.Context(), s, func() (brokers.Broker, error) {
		broker, err := rabbitmq.New(rabbitmq.Options{URLs: []string{url}, Prefix: o.prefix})
		if err == nil {
			t.Cleanup(func() { broker.Close(context.Background()) })
		}
		return broker, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offered by the second: %v", r.Load.Offered)
	t.Logf("served by the second:  %v", r.Load.Served)
	shown := r
	shown.Load = outage.Load{}
	t.Logf("%+v", shown)
	return r
}

// spared demands what an outage must keep to where there are protections.
func spared(t *testing.T, s outage.Scenario, r outage.Report) {
	t.Helper()
	if r.Amplification > s.Bound() {
		t.Errorf("%.3f calls for each message of the outage, want at most %.3f", r.Amplification, s.Bound())
	}
	// What Receive returns in the very moment in which the breaker trips counts
	// as received behind it.
	if r.ReceivedOpen > s.Workers || r.ProbeBatch > 1 {
		t.Errorf("%d messages received while the breaker was open, up to %d at once while it was half-open; want none, and single probes", r.ReceivedOpen, r.ProbeBatch)
	}
	if r.BurntOpen != 0 || r.DeadLetters != 0 || r.Wasted != 0 {
		t.Errorf("%d attempts used up behind an open breaker, %d dead letters, %d late answers; want none", r.BurntOpen, r.DeadLetters, r.Wasted)
	}
	// The answers of a second may come a little early or late.
	if most := s.Capacity * 21 / 20; r.PeakServed > most {
		t.Errorf("%d calls served in a second after the outage, want at most %d", r.PeakServed, most)
	}
	if r.Settled == 0 {
		t.Errorf("a message of before is left %v after the outage", s.Patience)
	}
}
