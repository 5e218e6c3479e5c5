//go:build unix

package sqs

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/consumer"
)

// BenchmarkConsume is for profiles of one contender at a time. Ratios come
// from make figures, which lets them alternate.
func BenchmarkConsume(b *testing.B) {
	endpoint := os.Getenv("REDRIVE_SQS_URL")
	if endpoint == "" {
		b.Skip("REDRIVE_SQS_URL is not set: make up prints it")
	}
	w := NewWorld(endpoint)
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for _, contender := range []struct {
		name    string
		consume Contender
	}{
		{"raw-2", Raw(2)},
		{"raw-4", Raw(4)},
		{"raw-8", Raw(8)},
		{"raw-16", Raw(16)},
		{"raw-32", Raw(32)},
		{"redrive", Redrive(consumer.Config{Prefetch: 200})},
		{"redrive-default", Redrive(consumer.Config{})},
		{"watermill", Watermill(10, 8)},
		{"watermill-default", Watermill(0, 0)},
	} {
		b.Run(contender.name, func(b *testing.B) {
			ctx := b.Context()
			// A poll that was cancelled may still take messages of a queue of that name.
			queue, err := w.Declare(ctx, fmt.Sprint(contender.name, "-", b.N))
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := w.Delete(context.WithoutCancel(ctx), queue); err != nil {
					b.Error(err)
				}
			}()
			if err := w.Fill(ctx, queue, b.N); err != nil {
				b.Fatal(err)
			}
			w.Calls.Take()
			b.ResetTimer()
			before := processorTime(b)
			took, err := contender.consume(ctx, w, queue, b.N)
			b.StopTimer()
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			if err != nil {
				b.Fatal(err)
			}
			if left, err := w.Left(ctx, queue); err != nil || left > b.N/10+100 {
				b.Errorf("%d messages are left: %v", left, err)
			}
			_, calls := w.Calls.Take()
			b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
			b.ReportMetric(float64(calls)/float64(b.N), "calls/op")
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
