package metrics_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// The duration of a run leads to its trace, where its context has one.
func TestExemplar(t *testing.T) {
	type key struct{}
	s := newScript(t)
	s.m.Exemplar = func(ctx context.Context) map[string]string {
		if id, ok := ctx.Value(key{}).(string); ok {
			return map[string]string{"trace_id": id}
		}
		return nil
	}
	see := func(id string, e consumer.Event) {
		ctx := t.Context()
		if id != "" {
			ctx = context.WithValue(ctx, key{}, id)
		}
		e.Topic, e.Message, e.Time = "orders", s.message, noon
		s.m.Observe(ctx, e)
	}
	for _, id := range []string{"aa", ""} {
		see(id, consumer.Event{Kind: consumer.EventSucceeded, Duration: 20 * time.Millisecond})
		e := failed(classify.ClassTransient, retries)
		e.Duration = 20 * time.Millisecond
		see(id, e)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s.m)
	found := 0
	for _, family := range must(registry.Gather()) {
		for _, metric := range family.GetMetric() {
			for _, bucket := range metric.GetHistogram().GetBucket() {
				if exemplar := bucket.GetExemplar(); exemplar != nil {
					found++
					if label := exemplar.GetLabel()[0]; family.GetName() != "redrive_handler_duration_seconds" || label.GetName() != "trace_id" || label.GetValue() != "aa" ||
						metric.GetHistogram().GetSampleCount() != 2 || bucket.GetUpperBound() != 0.025 {
						t.Errorf("%s has the exemplar %v in bucket %v of %v", family.GetName(), exemplar, bucket, metric)
					}
				}
			}
		}
	}
	if found != 2 {
		t.Errorf("%d exemplars, want one for each result", found)
	}
}
