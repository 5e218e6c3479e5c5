package deadletter

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/text"
)

// Bounds in bytes of what is in a stub.
const (
	stubID     = 128 // and of the key
	stubBody   = 512
	stubText   = 256
	stubShort  = 64  // names of types, groups, instances, rules
	stubOrigin = 512 // all details together
)

// Stub returns the dead letter that stands for a message which the broker never
// takes with its story, because of its size, its headers or its characters. It
// is to be read, not to be sent back: the original has to be kept elsewhere, so
// it says where that is, how large, and what its hash is, in Entry.Original.
//
// Its Message has the ID, escaped and cut to 128 bytes; the key, if that is text
// of 128 bytes or less; the first 512 bytes of the body; and none of the
// producer's headers. Of the story, long texts are cut and the history goes.
// Encoded, all of it takes less than 4 KiB. The stub of a stub is the same.
func Stub(e dlq.Entry) dlq.Entry {
	if e.Original != nil {
		return e
	}
	sum := sha256.Sum256(e.Message.Body)
	e.Original = &dlq.Original{BodyBytes: len(e.Message.Body), HeaderBytes: size(e.Message.Headers), BodySHA256: hex.EncodeToString(sum[:])}
	e.Truncated = nil
	m := &e.Message
	m.Headers = nil
	m.ID = line(&e, "id", m.ID, stubID)
	if !text.IsLine(m.Key, stubID) {
		m.Key = ""
		e.Truncated = append(e.Truncated, "key")
	}
	if len(m.Body) > stubBody {
		m.Body = m.Body[:stubBody:stubBody]
		e.Truncated = append(e.Truncated, "body")
	}
	// The reason, the topic and the fingerprint are short, or needed.
	e.Group = line(&e, "group", e.Group, stubShort)
	e.DeadBy = line(&e, "by", e.DeadBy, stubShort)
	e.ErrorType = line(&e, "error-type", e.ErrorType, stubShort)
	e.ErrorCode = line(&e, "error-code", e.ErrorCode, stubShort)
	e.Rule = line(&e, "rule", e.Rule, stubShort)
	e.ErrorText = line(&e, "error-message", e.ErrorText, stubText)
	e.Stack = line(&e, "error-stack", e.Stack, stubShort)
	if size(e.Meta.Origin) > stubOrigin {
		e.Meta.Origin = nil
		e.Truncated = append(e.Truncated, "origin")
	}
	e.Stack, e.Meta.History, e.Meta.IdempotencyKey = "", nil, ""
	return e
}

// size is that of the names and values of h.
func size(h brokers.Headers) (n int) {
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}
