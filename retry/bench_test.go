package retry

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/redrive-go/redrive/classify"
)

var sink Decision

func BenchmarkDecide(b *testing.B) {
	for _, class := range []string{classify.ClassTransient, classify.ClassThrottled, classify.ClassEnvironment} {
		b.Run(class, func(b *testing.B) {
			f := failure(class, 4)
			b.ReportAllocs()
			for b.Loop() {
				sink = Policy{}.Decide(f, 0.3)
			}
		})
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for name, err := range map[string]error{
		"refused dial":  fmt.Errorf("charge order 17: %w", refused),
		"unknown error": fmt.Errorf("charge order 17: %w", fmt.Errorf("read reply: %w", io.ErrNoProgress)),
	} {
		b.Run("with classification of a wrapped "+name, func(b *testing.B) {
			f := failure("", 4)
			b.ReportAllocs()
			for b.Loop() {
				f.Verdict = classify.Of(err)
				sink = Policy{}.Decide(f, 0.3)
			}
		})
	}
}

func BenchmarkDoSuccess(b *testing.B) {
	ctx := context.Background()
	fn := func(context.Context) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := (Policy{}).Do(ctx, fn); err != nil {
			b.Fatal(err)
		}
	}
}
