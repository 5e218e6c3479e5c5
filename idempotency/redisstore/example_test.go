package redisstore_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/redisstore"
)

// Workers that share a Redis handle a message once among them.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	store, err := redisstore.New(client, "")
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.Once(store, idempotency.Options{Retention: 7 * 24 * time.Hour, Redrive: 14 * 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := consumer.New(memory.New(memory.Options{}), consumer.Config{
		DeadLetter: "*-dead",
		Middleware: []func(consumer.Handler) consumer.Handler{once},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = worker // Handle, then Run
}
