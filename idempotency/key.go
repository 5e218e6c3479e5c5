package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
)

// Header is the header in which a producer may give a message its key. The
// case of its letters does not matter.
const Header = "Idempotency-Key"

const (
	maxKey   = 200 // bytes of a key; longer ones are hashed
	maxClaim = 255 // bytes of a Claim.Key
	hashed   = "sha256-"
)

// Key returns the idempotency key of a message that a handler works on, given
// what consumer.MetaFrom says, or the brokers.Item of a batch: the key there if
// that is not just the message's ID, else the last Header of the message that is not empty, else the ID. It is the same in
// all runs of a message, because brokers carry all three over retries and
// redrives unchanged. Only a message that came without an ID, to a broker that gives
// none (brokers.Delivery.Anonymous), has another ID in each delivery until it is
// retried, and nothing can tell a repeated one: set Options.Key then, or tell the
// adapter where the ID is.
//
// Whoever may publish to a topic chooses the keys of his messages, and may choose
// those of others: whichever message of a key is handled first, the others with
// the same body are acked without a run, and those with another body become dead
// letters. Options.Namespace keeps producers apart that do not trust each other.
// Package httpretry sends the key on to the API that a handler calls, where a
// foreign key can do the same: derive keys there from what the handler has
// verified, if producers are not to be trusted.
//
// The result can be put into a header or a database as it is: a key of more
// than 200 bytes, with control characters, or that is not UTF-8, is replaced
// by "sha256-" and the hash of it in hex. So is one that begins like that
// itself, and nobody can pretend to be another's hash. It is empty only if the
// message has no ID.
func Key(m *brokers.Message, meta brokers.Meta) string {
	key := meta.IdempotencyKey
	if key == "" || key == m.ID {
		key = m.ID
		if given := fromHeader(m.Headers); given != "" {
			key = given
		}
	}
	return safe(key)
}

func fromHeader(h brokers.Headers) (key string) {
	for _, header := range h {
		if header.Value != "" && strings.EqualFold(header.Name, Header) {
			key = header.Value
		}
	}
	return key
}

func safe(key string) string {
	if len(key) > maxKey || !printable(key) || strings.HasPrefix(key, hashed) {
		return hash(key)
	}
	return key
}

// scoped returns the key of a claim: no two triples of scope, namespace and key
// share one.
func scoped(scope, namespace, key string) string {
	full := escapeScope.Replace(scope)
	if namespace != "" {
		full += "%/" + escapeScope.Replace(namespace) // no escaped scope has a %/
	}
	full += ":" + key
	if len(full) > maxClaim || !printable(full) {
		return hash(full) // contains no colon
	}
	return full
}

var escapeScope = strings.NewReplacer("%", "%25", ":", "%3A")

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

func hash[T string | []byte](b T) string {
	sum := sha256.Sum256([]byte(b))
	return hashed + hex.EncodeToString(sum[:])
}
