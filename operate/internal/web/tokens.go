package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Tokens are the tokens that let callers in, each with the name of its holder.
type Tokens []bearer

type bearer struct {
	holder string
	sum    [sha256.Size]byte
}

// With returns tokens with one more.
func (t Tokens) With(holder, secret string) Tokens {
	return append(t, bearer{holder, sha256.Sum256([]byte(secret))})
}

// Holder returns whose token a request shows, as "Authorization: Bearer". It takes
// as long for every token.
func (t Tokens) Holder(r *http.Request) (holder string, ok bool) {
	shown := r.Header.Values("Authorization")
	if len(shown) != 1 {
		return "", false
	}
	scheme, secret, _ := strings.Cut(shown[0], " ")
	sum := sha256.Sum256([]byte(secret))
	for _, one := range t {
		if subtle.ConstantTimeCompare(sum[:], one.sum[:]) == 1 {
			holder, ok = one.holder, true
		}
	}
	return holder, ok && strings.EqualFold(scheme, "Bearer")
}
