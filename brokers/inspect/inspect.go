// Package inspect describes what adapters find when they look at the queues and
// topics of a broker. Open takes a [Finding], or refuses it in a
// brokers.TopologyError; the method Inspect of an adapter and redrive doctor show
// all of them.
package inspect

import (
	"fmt"
	"strings"
)

// Severity says what a [Finding] costs.
type Severity uint8

const (
	// Noted is a promise that is weaker on this queue, or a net of the broker
	// that is missing. Open takes the queue as it is.
	Noted Severity = iota + 1

	// Unverified is a setting that could not be read: the protocol does not show
	// it, or the user has no right to see it. Open goes on; an operator should
	// look at it.
	Unverified

	// Blocking is a setting that would lose messages, or repeat them without
	// end. Open fails.
	Blocking
)

// String is one lower-case word.
func (s Severity) String() string {
	switch s {
	case Noted:
		return "noted"
	case Unverified:
		return "unverified"
	case Blocking:
		return "blocking"
	}
	return fmt.Sprintf("Severity(%d)", uint8(s))
}

// Finding is a setting of a queue or topic, or of the broker, other than this
// framework would make it.
type Finding struct {
	Severity Severity

	// Topic names the queue, topic or exchange; or the node, group or host that
	// it is about.
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
