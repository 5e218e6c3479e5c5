package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/tracing"
)

// A worker has spans with one line, and the IDs of traces in its log with another.
// The provider is yours: here it keeps the spans, to print them.
func Example() {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))

	broker := memory.New(memory.Options{})
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead",
		Tracer:     tracing.New(provider),
		Logger:     slog.New(tracing.LogHandler(slog.DiscardHandler)),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	runs := 0
	c.Handle("orders", func(context.Context, *brokers.Message) error {
		if runs++; runs == 1 {
			return errors.New("the bank is busy")
		}
		stop()
		return nil
	})
	if err := broker.Publish(ctx, "orders", brokers.Message{Body: []byte("tea")}); err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, span := range spans.GetSpans() {
		fmt.Print(span.Name)
		for _, a := range span.Attributes {
			if a.Key == "redrive.outcome" {
				fmt.Print(": ", a.Value.String())
			}
		}
		fmt.Println()
	}
	// Output:
	// process orders: retry
	// process orders: success
}
