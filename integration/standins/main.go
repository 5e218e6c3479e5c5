// Command standins builds images of the names in docker-compose.yml from
// Debian packages and Java artifacts, to run that file for real where an engine
// can be had and the official images cannot. Its arguments are brokers or
// products; none stand for all. Remove them afterwards: an engine that has them
// does not pull the official ones.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/redrive-go/redrive/integration/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	brokers, err := harness.Select(os.Args[1:]...)
	if err == nil {
		err = harness.StandIns(ctx, os.Stderr, brokers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "standins:", err)
		stop()
		os.Exit(1)
	}
}
