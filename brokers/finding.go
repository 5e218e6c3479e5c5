package brokers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Severity is what a Finding costs.
type Severity uint8

const (
	// SeverityNoted is a promise that is weaker on this queue, or a net of the broker that
	// is missing. Open takes the queue as it is.
	SeverityNoted Severity = iota + 1

	// SeverityUnverified is what nobody could look at: the protocol does not show it, or
	// the user has no right to. Open goes on, and it is for an operator to see to.
	SeverityUnverified

	// SeverityBlocking is what would lose messages, or repeat them without end. Open fails.
	SeverityBlocking
)

// String is one lower-case word.
func (s Severity) String() string {
	switch s {
	case SeverityNoted:
		return "noted"
	case SeverityUnverified:
		return "unverified"
	case SeverityBlocking:
		return "blocking"
	}
	return fmt.Sprintf("Severity(%d)", uint8(s))
}

// Finding is a setting of a queue or topic, or of the broker, other than this
// framework would make it.
type Finding struct {
	Severity Severity

	// Topic names the queue, topic or exchange; or the node, group or host that it is
	// about.
	Topic string

	// Missing says that it does not exist.
	Missing bool

	// Setting is the broker's word for it, Value what it is now ("" where it is not
	// set, or not known), and Want what it should be.
	Setting, Value, Want string

	// Why is what it costs, in one sentence without a full stop.
	Why string

	// Fix is the command that mends it, or what to do. Empty where nothing can be
	// done.
	Fix string

	// See is the address of a page about it. Empty where there is none.
	See string
}

// String is the finding in one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q: ", f.Topic)
	if f.Setting != "" {
		fmt.Fprintf(&b, "%s is %s", f.Setting, orNotSet(f.Value))
		if f.Want != "" {
			fmt.Fprintf(&b, ", and should be %s", f.Want)
		}
		b.WriteString(": ")
	}
	b.WriteString(f.Why)
	if f.Fix != "" {
		b.WriteString(". To mend it: " + f.Fix)
	}
	if f.See != "" {
		b.WriteString(" (" + f.See + ")")
	}
	return b.String()
}

func orNotSet(value string) string {
	if value == "" {
		return "not set"
	}
	return value
}

// TopologyError says all that is wrong with what a subscription needs. It is
// ErrMisconfigured, and ErrNotFound if something is missing.
type TopologyError struct {
	Findings []Finding
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
		target == ErrNotFound && slices.ContainsFunc(e.Findings, func(f Finding) bool { return f.Missing })
}

// IsFinal reports whether repeating cannot cure err, which an operator or the
// program must: ErrMisconfigured, ErrRefused, ErrClosed and ErrSettled.
func IsFinal(err error) bool {
	for _, final := range []error{ErrMisconfigured, ErrRefused, ErrClosed, ErrSettled} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}
