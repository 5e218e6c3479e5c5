package brokers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers/inspect"
)

var (
	// ErrLeaseLost reports that the delivery belongs to someone else by now:
	// its lease ran out or its session ended. The settlement removed nothing
	// (after a Retry there may be a copy), and the message is, or will be,
	// delivered again.
	ErrLeaseLost = errors.New("the lease of the delivery is lost: the broker delivers the message again")

	// ErrSettled reports a second settlement of one delivery. The first one
	// stands.
	ErrSettled = errors.New("the delivery is settled already")

	// ErrClosed reports a call on a source or broker after Close.
	ErrClosed = errors.New("the source or broker is closed")

	// ErrUnknownOutcome reports that the request may or may not have taken
	// effect, for example because its confirmation got lost. Treat it as not
	// done: doing it again costs at most a duplicate.
	ErrUnknownOutcome = errors.New("the outcome is unknown: the broker did not confirm")

	// ErrMisconfigured reports what repeating cannot cure and an operator
	// must: a queue that is gone, rights that are missing. What was asked for
	// is not done.
	ErrMisconfigured = errors.New("the configuration does not allow this")

	// ErrNotFound reports a queue, topic or exchange that does not exist, or
	// looks so to a user without rights. It is ErrMisconfigured, too. Whether
	// messages were in it, it does not say.
	ErrNotFound = fmt.Errorf("%w: it does not exist", ErrMisconfigured)

	// ErrRefused reports a message that the broker will never take as it is:
	// too large, too many headers, characters that it does not allow. It was
	// not stored; its original stays.
	ErrRefused = errors.New("the broker refuses the message as it is: it was not stored")
)

// TopicError reports that a source receives nothing from one of its topics for
// now: the topic was deleted, for example, or created again with settings that
// lose messages. Other topics go on. The source looks for the topic a few times
// a minute, may report it each time, and receives from it again when it can.
type TopicError struct {
	Topic string

	// Err names the queue and says what happens to its messages, and what to do.
	// It is not unwrapped: ErrMisconfigured would end the work on all topics.
	Err error
}

// Error names the topic and says why.
func (e *TopicError) Error() string {
	return fmt.Sprintf("nothing is received from the topic %q for now, and other topics go on: %v", e.Topic, e.Err)
}

// PublishError says which messages of a Publish are not known to be durable.
type PublishError struct {
	Topic string

	// Failed maps the index of a message in the call to its error. Messages
	// without an entry are durable.
	Failed map[int]error
}

// Error names the topic, the count and the first few causes.
func (e *PublishError) Error() string {
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "publish to %q: %d not confirmed, keep the originals", e.Topic, len(e.Failed))
	for n, index := range slices.Sorted(maps.Keys(e.Failed)) {
		if n == shown {
			fmt.Fprintf(&b, "; and %d more", len(e.Failed)-shown)
			break
		}
		fmt.Fprintf(&b, "; message %d: %v", index, e.Failed[index])
	}
	return b.String()
}

// Unwrap returns the causes in the order of the messages.
func (e *PublishError) Unwrap() []error {
	causes := make([]error, 0, len(e.Failed))
	for _, index := range slices.Sorted(maps.Keys(e.Failed)) {
		causes = append(causes, e.Failed[index])
	}
	return causes
}

// TopologyError says all that is wrong with what a subscription needs. It is
// ErrMisconfigured, and ErrNotFound if something is missing.
type TopologyError struct {
	Findings []inspect.Finding
}

// Error has a line for each finding.
func (e *TopologyError) Error() string {
	lines := make([]string, len(e.Findings))
	for i, f := range e.Findings {
		lines[i] = f.String()
	}
	return fmt.Sprintf("%v: nothing was created or changed:\n%s", ErrMisconfigured, strings.Join(lines, "\n"))
}

// Is makes it ErrMisconfigured or ErrNotFound.
func (e *TopologyError) Is(target error) bool {
	return target == ErrMisconfigured ||
		target == ErrNotFound && slices.ContainsFunc(e.Findings, func(f inspect.Finding) bool { return f.Missing })
}
