package service

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/operate/internal/text"

	"github.com/redrive-go/redrive/operate/internal/web"
)

// DefaultTenant is whose requests name no tenant.
const DefaultTenant = "default"

// Token lets callers act as a tenant.
type Token struct{ Tenant, Secret string }

// gate says which tenant a request is of.
type gate []struct {
	tenant string
	sum    [sha256.Size]byte
}

func newGate(tokens []Token) gate {
	g := make(gate, len(tokens))
	for i, t := range tokens {
		g[i].tenant, g[i].sum = t.Tenant, sha256.Sum256([]byte(t.Secret))
	}
	return g
}

// tenant is whose request this is. Without tokens everybody on this machine is whom
// they say.
func (g gate) tenant(r *http.Request) (string, *problem) {
	named := r.Header.Values("X-Tenant")
	if len(named) > 1 || len(named) == 1 && !isTenant(named[0]) {
		return "", invalidTenant.because("X-Tenant must be one name of at most %d letters, digits, -, _ and ., which does not begin", text.MaxWord)
	}
	if len(g) == 0 {
		if p := untrusted(r); p != nil {
			return "", p
		}
		return append(named, DefaultTenant)[0], nil
	}
	tenant, ok := g.holder(r)
	switch {
	case !ok:
		return "", unauthorized.because("send the token of your tenant as Authorization: Bearer")
	case len(named) == 1 && named[0] != tenant:
		return "", otherTenant.because("the token is not of the tenant that X-Tenant names: leave the header out, or send that tenant's token")
	}
	return tenant, nil
}

// untrusted says why a service without tokens does not answer a request, if so.
func untrusted(r *http.Request) *problem {
	if !isLoopback(r.Host) {
		return untrustedHost.because("without tokens the service is for this machine alone: call it as 127.0.0.1 or localhost, or give it tokens")
	}
	if new(http.CrossOriginProtection).Check(r) != nil {
		return untrustedHost.because("without tokens the service takes nothing from web pages of other sites: give it tokens")
	}
	return nil
}

// Local has a handler answer to this machine alone, as the API does without tokens.
func Local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := untrusted(r); p != nil {
			p.write(w)
			return
		}
		web.Admit(r)
		h.ServeHTTP(w, r)
	})
}

// holder is the tenant whose token a request shows. It takes as long for every token.
func (g gate) holder(r *http.Request) (tenant string, ok bool) {
	shown := r.Header.Values("Authorization")
	if len(shown) != 1 {
		return "", false
	}
	scheme, secret, _ := strings.Cut(shown[0], " ")
	sum := sha256.Sum256([]byte(secret))
	for _, t := range g {
		if subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
			tenant, ok = t.tenant, true
		}
	}
	return tenant, ok && strings.EqualFold(scheme, "Bearer")
}

// isTenant keeps names out that mean something in a file system.
func isTenant(s string) bool { return text.IsWord(s) && s[0] != '.' }

// isLoopback reports whether a host, with or without a port, is this machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
