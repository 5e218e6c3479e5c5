package collect_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

// One dead letter goes into a file.
func ExampleCollector_Run() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "letters")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := store.Open(ctx, filepath.Join(dir, "letters.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	broker := memory.New(memory.Options{})
	defer broker.Close(ctx)
	letter := dlq.Entry{Message: brokers.Message{ID: "4711", Topic: "orders"}, Reason: "exhausted", DeadAt: time.Now()}
	if err := broker.Publish(ctx, "orders.dead", letter.Encode(0)); err != nil {
		log.Fatal(err)
	}

	source, err := broker.Open(ctx, collect.Subscription(collect.Group, "orders.dead"))
	if err != nil {
		log.Fatal(err)
	}
	defer source.Close(ctx)
	c, err := collect.New(collect.Config{
		Store: s, Source: source, Broker: "main",
		Limits: collect.Limits{FreeDisk: 0.001},
		Idle:   10 * time.Millisecond, // nothing is on its way in memory
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	list, err := s.Letters(ctx, store.Filter{Topic: "orders"}, store.Page{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Added, "letter:", list.Letters[0].MessageID, list.Letters[0].Reason)
	fmt.Println("left in the broker:", broker.Len("orders.dead"))
	// Output:
	// 1 letter: 4711 exhausted
	// left in the broker: 0
}
