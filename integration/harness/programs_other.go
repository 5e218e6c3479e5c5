//go:build !linux

package harness

import (
	"context"
	"errors"
	"io"
)

// KafkaPrograms fails on this system.
func KafkaPrograms(context.Context, Broker, io.Writer) (folder string, err error) {
	return "", errors.New("the tests start a Kafka of their own on Linux only")
}
