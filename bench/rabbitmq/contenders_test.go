package rabbitmq

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/redrive-go/redrive/consumer"
)

// BenchmarkConsume is for profiles of one contender at a time. Ratios come
// from make figures, which lets them alternate.
func BenchmarkConsume(b *testing.B) {
	address, management := os.Getenv("REDRIVE_RABBITMQ4_URL"), os.Getenv("REDRIVE_RABBITMQ4_MANAGEMENT_URL")
	if address == "" || management == "" {
		b.Skip("REDRIVE_RABBITMQ4_URL and REDRIVE_RABBITMQ4_MANAGEMENT_URL are not set: make up prints them")
	}
	contenders := []struct {
		name    string
		consume Contender
	}{
		{"raw", Raw(500, 125)},
		{"raw-single-acks", Raw(500, 1)},
		{"raw-retries-1", RawRetries(1, 2000, 125)},
		{"raw-retries-10", RawRetries(10, 2000, 125)},
		{"redrive", Redrive(consumer.Config{Prefetch: 200})},
		{"redrive-by-key", Redrive(consumer.Config{Prefetch: 200, OrderByKey: true})},
		{"watermill", Watermill(200)},
		{"watermill-default", Watermill(0)},
	}
	for _, contender := range contenders {
		b.Run(contender.name, func(b *testing.B) {
			ctx := b.Context()
			w, err := NewWorld(ctx, address, management)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := w.Close(context.WithoutCancel(ctx)); err != nil {
					b.Error(err)
				}
			})
			queue := fmt.Sprint("bench-", contender.name)
			if err := w.Declare(ctx, queue); err != nil {
				b.Fatal(err)
			}
			if err := w.Fill(ctx, b.N, queue); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			took, err := contender.consume(ctx, w, queue, b.N)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			if left, err := w.Left(queue); err != nil || left > 2000 {
				b.Errorf("%d messages are left: %v", left, err)
			}
			b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
		})
	}
}
