//go:build !linux

package harness

import (
	"errors"
	"io"
	"time"
)

const buildTimeout = time.Minute

func newLocal(string, io.Writer) (engine, error) {
	return nil, errors.New("no Docker engine with compose answers, and without one the brokers run on Linux only")
}
