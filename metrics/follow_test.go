package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/metrics"
)

// followed is a worker with a status.
type followed struct{ status health.Status }

func (f *followed) Status() health.Status { return f.status }

// onKafka is a worker that owns a partition of each topic.
func onKafka(topics ...string) *followed {
	f := &followed{health.Status{At: noon, State: health.Running}}
	for _, topic := range topics {
		f.status.Broker.Partitions = append(f.status.Broker.Partitions, health.Partition{Topic: topic})
	}
	return f
}

// TestStalledPartitions counts those that have stood for three minutes, by topic.
func TestStalledPartitions(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "mails"}, metrics.Topic{Name: "idle"}))
	w := onKafka("orders", "orders", "orders", "mails", "refunds")
	m.Follow(w)
	for i, since := range []time.Duration{time.Hour, 3 * time.Minute, 3*time.Minute - 1, 0, time.Hour} {
		if since > 0 {
			w.status.Broker.Partitions[i].StalledSince = noon.Add(-since)
		}
	}
	got := map[string]float64{}
	for name, v := range values(t, m) {
		if strings.HasPrefix(name, "redrive_partition_stalled") {
			got[name] = v
		}
	}
	want := map[string]float64{
		"redrive_partition_stalled{topic=orders}": 2, "redrive_partition_stalled{topic=mails}": 0, "redrive_partition_stalled{topic=other}": 1,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
