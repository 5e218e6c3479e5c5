package httpretry

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/fnv"
	"io"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/consumer"
)

const (
	keyHeader = "Idempotency-Key"
	maxKey    = 200
	hashed    = "sha256-"
)

// idempotent reports whether a request with this method has the same effect
// whether it is sent once or twice, by RFC 9110, section 9.2.2.
func idempotent(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

func keyOfMessage(req *http.Request) string {
	return consumer.MetaFrom(req.Context()).IdempotencyKey
}

// message identifies the message whose handler makes the call to the breaker, so
// that one which fails again and again counts as one; 0 if there is none.
func (c *call) message() uint64 {
	key := consumer.MetaFrom(c.req.Context()).IdempotencyKey
	if key == "" {
		return 0
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, key)
	return h.Sum64()
}

// elsewhere reports whether a redirect has led req to another host than that of
// the request which the handler made.
func elsewhere(req *http.Request) bool {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	return first != req && first.URL.Host != req.URL.Host
}

// safeKey returns key in a form that every server can take.
func safeKey(key string) string {
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(key) > maxKey || strings.ContainsFunc(key, invisible) || strings.HasPrefix(key, hashed) {
		sum := sha256.Sum256([]byte(key))
		return hashed + hex.EncodeToString(sum[:])
	}
	return key
}
