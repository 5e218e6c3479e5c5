package harness

import (
	"context"
	"io"
)

// KafkaPrograms returns the folder with the Java programs of a Kafka among
// Brokers, for tests that start a Kafka of their own. It fetches missing
// programs first.
func KafkaPrograms(ctx context.Context, b Broker, log io.Writer) (folder string, err error) {
	h, err := newHarness(log)
	if err != nil {
		return "", err
	}
	err = h.locked(func() error {
		folder, err = java{&local{cache: h.cache, log: log}}.install(ctx, b)
		return err
	})
	return folder, err
}
