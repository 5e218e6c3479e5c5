// Demo is redrive on the day after: 4,000 letters to send back, with the command
// redrive in another terminal, and a worker to be watched: its status, metrics, log and
// traces. It stays until Ctrl-C.
//
//	go run ./operate/cmd/redrive/demo [-dir FOLDER] [-rabbitmq URL] [-watch ADDRESS]
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/demo"
)

func main() {
	o := demo.Options{Out: os.Stdout}
	flag.StringVar(&o.Dir, "dir", "redrive-demo", "`FOLDER` for configuration and store")
	flag.StringVar(&o.Bank, "bank", "127.0.0.1:7421", "`ADDRESS` of the payment server")
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:7420", "`ADDRESS` of redrive serve")
	flag.StringVar(&o.Watch, "watch", "127.0.0.1:7422", "`ADDRESS` of the status and the metrics of the worker")
	flag.StringVar(&o.RabbitMQ, "rabbitmq", os.Getenv("REDRIVE_RABBITMQ4_URL"), "`URL` of a RabbitMQ to do it on, such as amqp://guest:guest@localhost/")
	flag.Parse()
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
	o.Traces = traces
	err := demo.Run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	fmt.Println("\nThe demonstration is over, and its files are removed.")
}
