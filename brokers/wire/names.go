package wire

import (
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// Prefix starts the name of every header of the framework.
const Prefix = "redrive-"

// Packed names the one header that holds all framework headers where headers
// are scarce or dear, see [Pack].
const Packed = Prefix + "meta"

// Carried headers. Those of the first group are the identity of a message and
// may come from anyone; the others are its progress and come from workers.
const (
	ID             = Prefix + "id"
	Key            = Prefix + "key"
	PublishedAt    = Prefix + "published-at"
	IdempotencyKey = Prefix + "idempotency-key"
	RedriveCount   = Prefix + "count"

	Topic         = Prefix + "topic"
	Attempt       = Prefix + "attempt"
	Throttles     = Prefix + "throttles"
	FirstFailedAt = Prefix + "first-failed-at"
	LastFailedAt  = Prefix + "failed-at"
	DueAt         = Prefix + "due-at"
	Delay         = Prefix + "delay-ms"
	Class         = Prefix + "class"
	History       = Prefix + "history"
	Origin        = Prefix + "origin-" // followed by the name of the detail
)

// The record of a dead letter. What it tells of brokers.Meta has the words of
// the carried headers after DeadPrefix.
const (
	DeadPrefix      = Prefix + "dlq-"
	DeadVersion     = DeadPrefix + "v"
	DeadReason      = DeadPrefix + "reason"
	DeadAt          = DeadPrefix + "at"
	DeadBy          = DeadPrefix + "by"
	DeadGroup       = DeadPrefix + "group"
	DeadTopic       = DeadPrefix + "topic"
	DeadPublishedAt = DeadPrefix + "published-at"
	DeadRule        = DeadPrefix + "rule"
	DeadAbandoned   = DeadPrefix + "abandoned"
	DeadTruncated   = DeadPrefix + "truncated"
	DeadHistory     = DeadPrefix + "history"
	DeadOrigin      = DeadPrefix + "origin-"

	errorPrefix      = Prefix + "error-"
	ErrorType        = errorPrefix + "type"
	ErrorCode        = errorPrefix + "code"
	ErrorMessage     = errorPrefix + "message"
	ErrorFingerprint = errorPrefix + "fingerprint"
	ErrorStack       = errorPrefix + "stack"
)

// Reserved reports whether name belongs to either vocabulary.
func Reserved(name string) bool {
	if !strings.HasPrefix(name, Prefix) {
		return false
	}
	if word, ok := strings.CutPrefix(name, DeadPrefix); ok {
		return deadWord(word) || metaWord(word)
	}
	switch name {
	case ErrorType, ErrorCode, ErrorMessage, ErrorFingerprint, ErrorStack:
		return true
	}
	return carried(name)
}

// Partition splits h into the headers of the user and those of the framework,
// both in their order. It may return h itself.
func Partition(h brokers.Headers) (user, framework brokers.Headers) {
	user = without(h, Reserved)
	if len(user) == len(h) {
		return user, nil
	}
	return user, without(h, func(name string) bool { return !Reserved(name) })
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

func carried(name string) bool {
	switch name {
	case ID, Key, PublishedAt, IdempotencyKey, RedriveCount, Topic, Attempt, Throttles, FirstFailedAt, LastFailedAt,
		DueAt, Delay, Class, History, Packed:
		return true
	}
	return strings.HasPrefix(name, Origin)
}

func identity(name string) bool {
	switch name {
	case ID, Key, PublishedAt, IdempotencyKey, RedriveCount:
		return true
	}
	return false
}

// metaWord reports whether word stands for a field of brokers.Meta, after
// whichever prefix.
func metaWord(word string) bool {
	switch Prefix + word {
	case IdempotencyKey, RedriveCount, Attempt, Throttles, FirstFailedAt, LastFailedAt,
		DueAt, Delay, Class, History:
		return true
	}
	return strings.HasPrefix(word, "origin-")
}

func deadWord(word string) bool {
	switch DeadPrefix + word {
	case DeadVersion, DeadReason, DeadAt, DeadBy, DeadGroup, DeadTopic, DeadPublishedAt,
		DeadRule, DeadAbandoned, DeadTruncated:
		return true
	}
	return false
}
