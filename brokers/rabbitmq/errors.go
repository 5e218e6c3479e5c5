package rabbitmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// existing is the page about what exists already.
const existing = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/use-existing-queues.md"

// stopped is the section of that page about retries that do not come back.
const stopped = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/use-existing-queues.md#when-retries-stop-coming-back"

// What tells errors apart that have one code is the broker's English, and what it says
// of a difference is all that AMQP shows of a queue that exists.
const (
	saysNoLeader = "is down or inaccessible"
	saysUnequal  = "inequivalent arg"
	saysInvalid  = "invalid arg '"
	saysTLS      = "remote error: tls: " // our own library's, of what the broker has against our certificate
)

// saysDifferent has the name of an argument, and what it is: none, 'VALUE' if it has
// the type of what was sent, or the value 'VALUE' of type 'TYPE'.
var saysDifferent = regexp.MustCompile(saysUnequal + ` '(.+?)' for queue '.* but current is (none|(?:the value )?'(.*?)'(?: of type '(.*)')?)$`)

// fixes say what an operator can do about errors of a code, whose reason has these
// words in it. Without a fix the error is temporary.
var fixes = []struct {
	code       int
	words, fix string
}{
	{amqp.AccessRefused, amqp.ErrSASL.Reason, "the broker offers none of these ways to log in: change auth_mechanism in Options.URLs, or enable one there"},
	{amqp.AccessRefused, "Login was refused", "check user and password, and that the user may connect from here"},
	{amqp.AccessRefused, "", "grant the user the rights to configure, write and read that this needs"},
	{amqp.NotAllowed, "limit", ""}, // of connections or channels
	{amqp.NotAllowed, "is down", ""},
	{amqp.NotAllowed, "", "create the vhost, or grant the user access to it"},
	{amqp.NotFound, "", "create what is missing, or let Run declare it (Options.Verify is false)"},
	{amqp.PreconditionFailed, saysUnequal, "it exists with other properties, which cannot be changed: delete it when it is empty and let Run declare it anew, or use another name (" + existing + ")"},
	{amqp.PreconditionFailed, "of queue type rabbit_stream_queue", "it is a stream, of which nothing can be taken: read it with a consumer of streams"},
	{amqp.ResourceLocked, "", "it belongs to one connection alone (exclusive): use another name"},
	{amqp.ChannelError, amqp.ErrChannelMax.Reason, "the connection has too few channels, of which each queue needs one: raise channel_max on the broker or in Options.URLs, or have several workers share the topics"},
	{amqp.NotImplemented, "", "the broker lacks a feature that this needs: use RabbitMQ 3.10 or newer"},
}

// explain turns an error of the broker into one that says what to do. What an
// operator must cure is brokers.ErrMisconfigured, what is missing brokers.ErrNotFound.
func explain(err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok:
		return err
	case e == amqp.ErrCredentials, e == amqp.ErrVhost:
		// A guess of the library: the broker has refused nothing.
		return errors.New("the connection was lost during the login")
	case lacksLeader(e):
		return fmt.Errorf("the queue has no leader, which is elected or comes back with its node: %w", err)
	case e.Code == amqp.InternalError:
		return fmt.Errorf("the broker failed: look into its log; where that says that rabbit_fifo_dlx_sup is gone (noproc), "+
			"dead-lettering at least once has ended on that node, and restarting the node cures it: %w", err)
	}
	for _, f := range fixes {
		switch {
		case f.code != e.Code || !strings.Contains(e.Reason, f.words):
			continue
		case f.fix == "":
			return err
		case f.code == amqp.NotFound:
			return fmt.Errorf("%w: %s: %w", brokers.ErrNotFound, f.fix, err)
		}
		return fmt.Errorf("%w: %s: %w", brokers.ErrMisconfigured, f.fix, err)
	}
	return err
}

// lacksLeader reports whether err is how the broker refuses what is asked of a
// queue that exists, and nobody leads.
func lacksLeader(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.NotFound && strings.Contains(e.Reason, saysNoLeader)
}

// speaksTLS is the screen's error text for a broker that answers with a TLS record. The
// library keeps the text alone.
const speaksTLS = "this port speaks TLS"

// isTLS reports whether err, of an attempt to connect, is what one side has
// against the certificates or the TLS of the other. What the broker has against
// ours may come when the library reads its first frame, which keeps the text
// alone.
func isTLS(err error) bool {
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	_, none := errors.AsType[tls.RecordHeaderError](err)
	return ours || none || strings.Contains(err.Error(), saysTLS)
}
