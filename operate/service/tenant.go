package service

import (
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

// tokens are those of callers, whose holders are tenants.
func (a *API) tokens() (all web.Tokens) {
	for _, t := range a.Tokens {
		all = all.With(t.Tenant, t.Secret)
	}
	return all
}

// tenantOf is whose request this is. Without tokens everybody on this machine is
// whom they say.
func tenantOf(r *http.Request, tokens web.Tokens) (string, *problem) {
	named := r.Header.Values("X-Tenant")
	if len(named) > 1 || len(named) == 1 && !isTenant(named[0]) {
		return "", invalidTenant.because("X-Tenant must be one name of at most %d letters, digits, -, _ and ., which does not begin", text.MaxWord)
	}
	if len(tokens) == 0 {
		if p := untrusted(r); p != nil {
			return "", p
		}
		return append(named, DefaultTenant)[0], nil
	}
	tenant, ok := tokens.Holder(r)
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
