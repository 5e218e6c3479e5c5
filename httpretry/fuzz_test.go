package httpretry

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func FuzzKey(f *testing.F) {
	for _, key := range []string{"", "m1", "sha256-", " m", "m ", "ключ", strings.Repeat("k", 200), "m\r\nX: y", "\xff", strings.Repeat("k", 201)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		safe := safeKey(key)
		if len(safe) > maxKey || strings.Trim(safe, "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" {
			t.Errorf("safeKey(%q) = %q, which not every server takes", key, safe)
		}
		if safe != key && !strings.HasPrefix(safe, hashed) {
			t.Errorf("safeKey(%q) = %q, want the key or its hash", key, safe)
		}
		if again := safeKey(safe); again == safe && safe != key {
			t.Errorf("the key %q passes for that of %q", safe, key)
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, u := range []string{"https://Bank.example:443/x", "http://[::1]:8080", "http://a:", "//h", "mailto:x", "http://%41:1"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		host := hostOf(&http.Request{URL: u})
		if host != strings.ToLower(host) {
			t.Errorf("hostOf(%q) = %q, want lower case", text, host)
		}
		if strings.Contains(host, "@") && !strings.Contains(u.Host, "@") {
			t.Errorf("hostOf(%q) = %q, which has the user", text, host)
		}
	})
}
