// Command figures measures redrive on real brokers, beside others that do the
// same work. It prints one tab-separated line a figure: name, value, unit,
// goal, ok or short. It exits 0 whatever the figures, 1 if some could not be
// measured, and 2 on bad usage.
package main

import "github.com/redrive-go/redrive/internal/figure"

func main() {
	figure.Main("rabbitmq", map[string]figure.Area{"rabbitmq": rabbitMQ})
}
