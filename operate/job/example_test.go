package job_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// A dry run says what would go where; the job then sends that and nothing else.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "letters")
	check(err)
	defer os.RemoveAll(dir)
	letters, err := store.Open(ctx, filepath.Join(dir, "letters.db"))
	check(err)
	defer letters.Close()
	broker := memory.New(memory.Options{})
	for i, topic := range []string{"orders", "orders", "payments"} {
		e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprint(i), Topic: topic}, Reason: "poison", DeadAt: time.Now()}
		_, err := letters.Collect(ctx, time.Now(), []store.Collected{{Broker: "rabbit", Source: "orders.dead", Format: "redrive", Raw: e.Encode(0), Entry: e}})
		check(err)
	}

	targets := job.Targets{{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead"}}}
	plan, err := job.NewPlan(ctx, letters, time.Now(), targets, job.Spec{Wait: time.Second}, store.Filter{})
	check(err)
	fmt.Println(plan.Letters, "to", plan.To[0].Topic, "skipped", plan.Skipped)

	j, err := plan.Create(ctx, letters, time.Now(), store.Actor{Who: "anna", Command: "example", Reason: "the product is back"})
	check(err)
	runner := job.Runner{
		Store: letters, Targets: targets, Owner: "anna@host", Logger: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string) (brokers.Broker, error) { return broker, nil },
	}
	j, err = runner.Run(ctx, j.ID)
	check(err)
	fmt.Println(j.State, j.Note, broker.Len("orders"))
	// Output:
	// 2 to orders skipped map[unknown-topic:1]
	// done 2 sent and not heard of, 1 skipped 2
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
