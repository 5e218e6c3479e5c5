package rabbitmq

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// explain turns an error of the broker into one that says what to do. What an
// operator must cure is brokers.ErrMisconfigured.
func explain(err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return err
	}
	fix := ""
	switch {
	case e == amqp.ErrClosed, e.Code == amqp.ConnectionForced:
		return err
	case e == amqp.ErrCredentials, e == amqp.ErrVhost:
		// A guess of the library: the broker has refused nothing.
		return errors.New("the connection was lost during the login")
	case e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "Login was refused"):
		fix = "check user and password, and that the user may connect from here"
	case e.Code == amqp.AccessRefused:
		fix = "grant the user the rights to configure, write and read that this needs"
	case e.Code == amqp.NotAllowed:
		if strings.Contains(e.Reason, "limit") || strings.Contains(e.Reason, "is down") {
			return err
		}
		fix = "create the vhost, or grant the user access to it"
	case e.Code == amqp.NotFound:
		fix = "create what is missing, or let Open declare it (Options.Verify is false)"
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "inequivalent arg"):
		fix = "it exists with other properties, which cannot be changed: delete it when it is empty and let Open declare it, or use another name"
	case e.Code == amqp.NotImplemented:
		fix = "the broker lacks a feature that this needs: use RabbitMQ 3.10 or newer"
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w", brokers.ErrMisconfigured, fix, err)
}

// tooLarge reports whether err is how the broker refuses a body of size bytes:
// it closes the channel, and with it fails whatever else is on its way there.
func tooLarge(err error, size int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "larger than") &&
		strings.Contains(e.Reason, fmt.Sprintf("message size %d ", size))
}
