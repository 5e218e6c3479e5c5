package wire

import (
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

const prefix = "redrive-"

// Packed names the one header that holds all framework headers where headers
// are scarce or dear, see [Pack].
const Packed = prefix + "meta"

// Traceparent names the header of the last failed run in a trace. No signature
// covers it: a worker of a version without it would take the signature for wrong.
const Traceparent = prefix + "traceparent"

// Carried headers. Those of the first group are the identity of a message and
// may come from anyone; the others are its progress and come from workers.
const (
	nameID             = prefix + "id"
	nameKey            = prefix + "key"
	namePublishedAt    = prefix + "published-at"
	nameIdempotencyKey = prefix + "idempotency-key"
	nameRedriveCount   = prefix + "count"
	nameSend           = prefix + "send"

	nameTopic         = prefix + "topic"
	nameAttempt       = prefix + "attempt"
	nameThrottles     = prefix + "throttles"
	nameFirstFailedAt = prefix + "first-failed-at"
	nameLastFailedAt  = prefix + "failed-at"
	nameExcused       = prefix + "excused-ms"
	nameCrashes       = prefix + "crashes"
	nameDueAt         = prefix + "due-at"
	nameDelay         = prefix + "delay-ms"
	nameClass         = prefix + "class"
	nameHistory       = prefix + "history"
	nameOrigin        = prefix + "origin-" // followed by the name of the detail
	nameTrace         = Traceparent

	// By whom, where workers share a secret. Adapters write and read it.
	nameSignature = prefix + "signature"
)

// The record of a dead letter, which package dlq spells. What it tells of
// brokers.Meta has the words of the carried headers after deadPrefix.
const (
	deadPrefix    = prefix + "dlq-"
	deadVersion   = deadPrefix + "v"
	deadTruncated = deadPrefix + "truncated"
)

// Partition splits h into the headers of the user and those of the framework:
// the carried ones, and the record of a dead letter. Both keep their order, and
// user may be h itself.
func Partition(h brokers.Headers) (user, framework brokers.Headers) {
	user = without(h, reserved)
	if len(user) == len(h) {
		return user, nil
	}
	return user, without(h, func(name string) bool { return !reserved(name) })
}

// without returns h but for the headers with certain names. It may be h itself,
// and is nil if it is empty.
func without(h brokers.Headers, left func(name string) bool) brokers.Headers {
	n := 0
	for _, header := range h {
		if !left(header.Name) {
			n++
		}
	}
	switch n {
	case len(h):
		return h
	case 0:
		return nil
	}
	kept := make(brokers.Headers, 0, n)
	for _, header := range h {
		if !left(header.Name) {
			kept = append(kept, header)
		}
	}
	return kept
}

// reserved reports whether name belongs to either vocabulary.
func reserved(name string) bool {
	word, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	switch word {
	case "dlq-v", "dlq-reason", "dlq-at", "dlq-by", "dlq-group", "dlq-topic", "dlq-published-at", "dlq-rule",
		"dlq-abandoned", "dlq-truncated", "dlq-stub", "dlq-body-bytes", "dlq-header-bytes", "dlq-body-sha256",
		"error-type", "error-code", "error-message", "error-fingerprint", "error-stack":
		return true
	}
	if word, ok := strings.CutPrefix(name, deadPrefix); ok {
		return ofMeta(word)
	}
	return carried(name)
}

// ofMeta reports whether word stands for a field of brokers.Meta, after
// whichever prefix.
func ofMeta(word string) bool {
	switch name := prefix + word; name {
	case nameID, nameKey, namePublishedAt, nameTopic, nameSignature, Packed:
		return false
	default:
		return carried(name) && !IsDeath(name)
	}
}

func carried(name string) bool {
	switch name {
	case nameID, nameKey, namePublishedAt, nameIdempotencyKey, nameRedriveCount, nameSend, nameTopic, nameAttempt, nameThrottles,
		nameFirstFailedAt, nameLastFailedAt, nameExcused, nameCrashes, nameDueAt, nameDelay, nameClass, nameHistory, nameTrace, nameSignature, Packed:
		return true
	}
	return strings.HasPrefix(name, nameOrigin) || IsDeath(name)
}

func identity(name string) bool {
	switch name {
	case nameID, nameKey, namePublishedAt, nameIdempotencyKey, nameRedriveCount, nameSend:
		return true
	}
	return false
}
