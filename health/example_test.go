package health_test

import (
	"context"
	"log"
	"net/http"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
)

// A worker with its probes on a port of their own.
func Example() {
	worker, err := consumer.New(memory.New(memory.Options{}), consumer.Config{DeadLetter: "*-dead"})
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle("orders", func(context.Context, *brokers.Message) error { return nil })

	mux := http.NewServeMux()
	mux.Handle("/", health.Handler(worker))
	go func() { log.Print(http.ListenAndServe(":8081", mux)) }()

	if err := worker.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
