//go:build !linux

package harness

import "context"

// Private fails on this system.
func Private(context.Context, Broker, string, map[string]string) (b Broker, kill func(), err error) {
	return Broker{}, nil, ErrNoPrivate
}
