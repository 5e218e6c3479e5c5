//go:build unix

package kafka

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/consumer"
)

// BenchmarkConsume is for profiles of one contender at a time, on the broker at
// REDRIVE_KAFKA_URL or, without one, on a fake in this process. Ratios come
// from make figures, which lets them alternate.
func BenchmarkConsume(b *testing.B) {
	address := os.Getenv("REDRIVE_KAFKA_URL")
	if address == "" {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(cluster.Close)
		address = strings.Join(cluster.ListenAddrs(), ",")
	}
	w := NewWorld(address)
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	topic, err := w.Declare(b.Context(), "consume")
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Second) // the library forgets by then that the topic was not there
	filled := 0
	for _, contender := range []struct {
		name    string
		consume Contender
	}{
		{"raw-reader", RawReader(1000)},
		{"raw-group-1", RawGroup(1<<20, 1000)},
		{"raw-group-10", RawGroup(10<<20, 1000)},
		{"redrive", Redrive(consumer.Config{Prefetch: 5000})},
		{"redrive-default", Redrive(consumer.Config{})},
		{"watermill", Watermill()},
	} {
		b.Run(contender.name, func(b *testing.B) {
			if err := w.Fill(b.Context(), topic, b.N-filled); err != nil {
				b.Fatal(err)
			}
			filled = max(filled, b.N)
			group := w.Group()
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			took, err := contender.consume(b.Context(), w, group, topic, b.N)
			b.StopTimer()
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			if err != nil {
				b.Fatal(err)
			}
			if n, err := w.Committed(b.Context(), group, topic); err != nil || n < int64(b.N)*9/10 {
				b.Errorf("%d messages are committed: %v", n, err)
			}
			b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
		})
	}
}

// processorTime is what this process has used so far. It tells contenders apart
// on a machine that does other work besides.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
