// Command figures measures redrive on real brokers, beside others that do the
// same work. It prints one tab-separated line a figure: name, value, unit,
// goal, ok or short. It exits 0 whatever the figures, 1 if some could not be
// measured, and 2 on bad usage.
package main

import (
	"fmt"
	"os"

	"github.com/redrive-go/redrive/bench/internal/figure"
)

func main() {
	if job := os.Getenv(victimEnv); job != "" {
		runVictim(job)
		return
	}
	figure.Main("rabbitmq", map[string]figure.Area{"kafka": kafkaArea, "rabbitmq": rabbitMQ, "sqs": sqsArea})
}

// note tells of what a figure is made of, apart from the figures.
func note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "# "+format+"\n", args...)
}
