// Package rabbitmqtest gives tests a RabbitMQ of their own, with settings that
// the shared RabbitMQs do not have.
package rabbitmqtest

import (
	"errors"
	"os"
	"testing"

	"github.com/redrive-go/redrive/integration/harness"
)

// New starts a RabbitMQ of the release of like until the end of the test. It
// reads conf.d/NAME.conf and enabled_plugins of files, and sees each file as
// /mnt/NAME. Only root on Linux can start one: the test of another user is
// skipped. If the start fails for root, the test is skipped too, or fails with
// CI=true.
func New(tb testing.TB, like harness.Broker, files map[string]string) harness.Broker {
	tb.Helper()
	b, kill, err := harness.Private(tb.Context(), like, tb.TempDir(), files)
	switch {
	case err == nil:
		tb.Cleanup(kill)
	case os.Getenv("CI") == "true" && !errors.Is(err, harness.ErrNoPrivate):
		tb.Fatal(err)
	default:
		tb.Skip(err)
	}
	return b
}
