//go:build unix

package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/bench/kafka"
)

// BenchmarkKafkaFailing is for profiles of what failures cost on the broker at
// REDRIVE_KAFKA_URL. Ratios come from make figures, which lets them alternate.
func BenchmarkKafkaFailing(b *testing.B) {
	address := os.Getenv(kafkaEnv)
	if address == "" {
		b.Skip(kafkaEnv + " is not set")
	}
	s := &kafkaSession{world: kafka.NewWorld(address)}
	b.Cleanup(func() {
		if err := s.world.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	topic, err := s.world.Declare(b.Context(), "failing")
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Second) // the library forgets by then that the topic was not there
	filled := 0
	for _, c := range []kafkaContender{
		{"fail0", kafkaFailing(0)},
		{"fail1", kafkaFailing(1)},
		{"fail10", kafkaFailing(10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			if err := s.world.Fill(b.Context(), topic, b.N-filled); err != nil {
				b.Fatal(err)
			}
			filled = max(filled, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			took, err := c.consume(b.Context(), s.world, s.world.Group(), topic, b.N)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
