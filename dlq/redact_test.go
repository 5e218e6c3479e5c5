package dlq

import (
	"errors"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/classify"
)

// canary stands for the secret in the table of TestRedact.
const canary = "Canary-7x9"

func TestRedact(t *testing.T) {
	const C = canary
	tests := []struct{ in, want string }{
		// Ends.
		{"Authorization: Bearer", "Authorization: [redacted]"},
		{"Bearer ", "Bearer "},
		{`password=""`, `password=""`},
		{"wrong password ", "wrong password "},
		{"order 4111 ", "order 4111 "},

		// Names and values.
		{"password=" + C, "password=[redacted]"},
		{"password: " + C + ", user bob", "password: [redacted], user bob"},
		{"PASSWORD = " + C, "PASSWORD = [redacted]"},
		{"host=db user=app password=" + C + " dbname=orders", "host=db user=app password=[redacted] dbname=orders"},
		{"Server=db;Password=" + C + ";", "Server=db;Password=[redacted];"},
		{"password='two words " + C + "'", "password='[redacted]'"},
		{`{"user":"bob","password":"` + C + `","n":1}`, `{"user":"bob","password":"[redacted]","n":1}`},
		{`{"password" : "a\"` + C + `"}`, `{"password" : "[redacted]"}`},
		{`body: "{\"password\":\"` + C + `\"}"`, `body: "{\"password\":\"[redacted]\"}"`},
		{"map[password:" + C + " user:bob]", "map[password:[redacted] user:bob]"},
		{"{Password:" + C + "}", "{Password:[redacted]}"},
		{"password1=" + C, "password1=[redacted]"},
		{"DB_PASSWORD=" + C, "DB_PASSWORD=[redacted]"},
		{"pwd=" + C + "&user=bob", "pwd=[redacted]"},
		{"passphrase: correcthorse", "passphrase: [redacted]"},
		{"password hunter2x rejected", "password [redacted] rejected"},
		{"client_secret=" + C, "client_secret=[redacted]"},
		{"clientSecret: " + C, "clientSecret: [redacted]"},
		{"AWS_SECRET_ACCESS_KEY=" + C, "AWS_SECRET_ACCESS_KEY=[redacted]"},
		{"AccountName=a;AccountKey=" + C + "==", "AccountName=a;AccountKey=[redacted]"},
		{"api_key: " + C, "api_key: [redacted]"},
		{"X-Api-Key: " + C, "X-Api-Key: [redacted]"},
		{"key=" + C, "key=[redacted]"},
		{"token=" + C, "token=[redacted]"},
		{"token: " + C, "token: [redacted]"},
		{"access_token: lowercase", "access_token: [redacted]"},
		{"invalid token " + C, "invalid token [redacted]"},
		{"GET /cb?access_token=" + C + "&state=1", "GET /cb?access_token=[redacted]"},
		{"X-Amz-Signature=" + C, "X-Amz-Signature=[redacted]"},
		{"session: " + C, "session: [redacted]"},
		{"password = > " + C, "password = > [redacted]"},
		{"password=\"never closed " + C, "password=\"[redacted]"},

		// Schemes.
		{"Authorization: Bearer " + C, "Authorization: [redacted]"},
		{"authorization: basic " + C + " sent", "authorization: [redacted] sent"},
		{`Authorization:[Bearer ` + C + `]`, `Authorization:[[redacted]`},
		{"header Bearer " + C + " refused", "header Bearer [redacted] refused"},
		{"bearer lowercasesecret", "bearer [redacted]"},
		{"Basic dXNlcjpwYXNz.", "Basic [redacted]."},
		{"Cookie: sid=" + C + "; theme=" + C, "Cookie: [redacted]"},
		{"Authorization: AWS4-HMAC-SHA256 Credential=" + C + "/s3", "Authorization: [redacted]"},

		// Addresses.
		{"dial postgres://app:" + C + "@db:5432/orders?x=1", "dial postgres://[redacted]@db:5432/orders?x=1"},
		{`parse "amqp://app:p/` + C + `@mq/v": invalid port`, `parse "amqp://[redacted]@mq/v": invalid port`},
		{"https://" + C + "@api.example/v1", "https://[redacted]@api.example/v1"},
		{"app:" + C + "@tcp(127.0.0.1:3306)/db", "[redacted]@tcp(127.0.0.1:3306)/db"},
		{"redis://:" + C + "@cache:6379", "redis://[redacted]@cache:6379"},
		{"https://user:a@" + C + "@host/x", "https://[redacted]@host/x"},

		// Known by their looks.
		{"key id AKIAIOSFODNN7EXAMPLE is inactive", "key id [redacted] is inactive"},
		{"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "[redacted]"},
		{"jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl expired", "jwt [redacted] expired"},
		{"got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl back", "got [redacted] back"},
		{"clone with ghp_16C7e42F292c6912E7710c838347Ae178B4a", "clone with [redacted]"},
		{"sk_live_4eC39HqLyjWDarjtT1zdp7dc declined", "[redacted] declined"},
		{"card 4111111111111111 declined", "card [redacted] declined"},
		{"card 4111 1111 1111 1111 declined", "card [redacted] declined"},
		{"card 4111-1111-1111-1111.", "card [redacted]."},
		{"amex=378282246310005", "amex=[redacted]"},
		{"pan_5555555555554444x", "pan_[redacted]x"},
	}
	for _, tt := range tests {
		got := Redact(tt.in)
		if got != tt.want {
			t.Errorf("Redact(%q)\n got %q\nwant %q", tt.in, got, tt.want)
		}
		if strings.Contains(got, canary) {
			t.Errorf("the secret survives in %q", got)
		}
		if again := Redact(got); again != got {
			t.Errorf("redacted twice: %q became %q", got, again)
		}
		for n := range tt.in { // a text may be cut anywhere
			Redact(tt.in[:n])
		}
	}
}

func TestRedactLeavesTheRest(t *testing.T) {
	for _, text := range []string{
		"",
		"order 8471 declined",
		"dial tcp 127.0.0.1:5432: connect: connection refused",
		`pq: duplicate key value violates unique constraint "orders_pkey"`,
		`pq: password authentication failed for user "app"`,
		"oauth2: invalid token: expired",
		"bearer token expired",
		"basic validation failed",
		"missing api key",
		"routing_key=orders.eu",
		"key: orders",
		"invalid character '}' looking for the beginning of object key string",
		`Get "https://api.example:8080/users/bob@example.com": EOF`,
		"user bob@example.com not found",
		"at 1767225600123 and 1767225600123456789",
		"4111111111111112 fails the check digit",
		"order 12345678901234567890123 is long",
		"sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709 differs",
		"/var/lib/app/releases/2026/current/config.d",
		`WWW-Authenticate: Basic realm="api"`,
		"a token is missing",
		"secret",
		"password=",
		"http://[::1]:8080/x@y",
		"größe=3, 一=二",
	} {
		if got := Redact(text); got != text {
			t.Errorf("Redact(%q) = %q, want it unchanged", text, got)
		}
	}
}

// TestNoSecretSurvives takes secrets through an entry and its headers.
func TestNoSecretSurvives(t *testing.T) {
	for _, text := range []string{
		"Bearer " + canary,
		`{"password": "` + canary + `"}`,
		"postgres://app:" + canary + "@db/orders",
		strings.Repeat("x", rawText-20) + " password=" + canary + " y",
		strings.Repeat("x ", rawText/2-10) + "postgres://app:" + canary + strings.Repeat("z", 50) + "@db",
		"token=" + strings.Repeat("t", 2*rawText) + canary,
	} {
		var e Entry
		e.SetError(&classify.PanicError{Value: errors.New(text), Stack: []byte("panic(" + text + ")\nmain.f(" + text + ")")}, classify.Verdict{}, nil, true)
		if all := e.ErrorText + e.Stack; strings.Contains(all, canary) || strings.Contains(all, "Canary") {
			t.Errorf("%.80q: the secret survives in %q, %q", text, e.ErrorText, e.Stack)
		}
		for _, h := range e.Encode(0).Headers {
			if strings.Contains(h.Value, canary) {
				t.Errorf("%.80q: the secret survives in the header %s", text, h.Name)
			}
		}
	}
}
