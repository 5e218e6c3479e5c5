package dlq

import (
	"strings"
	"testing"
)

func TestFingerprintGroups(t *testing.T) {
	tests := []struct {
		name, a, b string
		same       bool
	}{
		{"order number", "order 8471 declined", "order 9 declined", true},
		{"another fault of orders", "order 8471 declined", "order 8471 expired", false},
		{"refused, other address", "dial tcp 127.0.0.1:5432: connect: connection refused", "dial tcp 10.0.0.7:6000: connect: connection refused", true},
		{"refused, IPv6", "dial tcp 127.0.0.1:5432: connect: connection refused", "dial tcp [fe80::1%eth0]:5432: connect: connection refused", true},
		{"refused and timeout", "dial tcp 127.0.0.1:5432: connect: connection refused", "dial tcp 127.0.0.1:5432: i/o timeout", false},
		{"reset, two addresses", "read tcp 10.0.0.5:48832->10.0.0.9:443: read: connection reset by peer", "read tcp 172.17.0.2:51000->93.184.216.34:443: read: connection reset by peer", true},
		{"reset and broken pipe", "read tcp 10.0.0.5:48832->10.0.0.9:443: read: connection reset by peer", "write tcp 10.0.0.5:48832->10.0.0.9:443: write: broken pipe", false},
		{"resolver", "lookup payments.internal on 10.0.0.2:53: no such host", "lookup payments.internal on 10.96.0.10:53: no such host", true},
		{"resolver, other host", "lookup payments.internal on 10.0.0.2:53: no such host", "lookup orders.internal on 10.0.0.2:53: no such host", false},
		{"resolver, numbered host", "lookup db-1.internal: no such host", "lookup db-22.internal: no such host", true},
		{"duplicate key", `pq: duplicate key value violates unique constraint "orders_pkey"`, `pq: duplicate key value violates unique constraint "orders_2026_pkey"`, true},
		{"duplicate and foreign key", `pq: duplicate key value violates unique constraint "orders_pkey"`, `pq: insert or update on table "orders" violates foreign key constraint "orders_customer_fkey"`, false},
		{"pgx state", `ERROR: could not serialize access (SQLSTATE 40001)`, `ERROR: could not serialize access (SQLSTATE 40P01)`, false},
		{"MySQL entry", `Error 1062 (23000): Duplicate entry 'bob@example.com' for key 'users.email'`, `Error 1062 (23000): Duplicate entry 'o''hara' for key 'users.email'`, true},
		{"MySQL entry, plain", `Error 1062 (23000): Duplicate entry 'bob@example.com' for key 'users.email'`, `Error 1062 (23000): Duplicate entry '8471' for key 'users.email'`, true},
		{"client timeout", `Get "https://api.example/v1/charges/ch_1": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, `Get "https://api.example/v1/charges/ch_2?expand=1": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, true},
		{"client timeout while reading", `Get "https://api.example/v1": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, `Get "https://api.example/v1": context deadline exceeded (Client.Timeout or context cancellation while reading body)`, false},
		{"verbs", `Get "https://api.example/v1": EOF`, `Post "https://api.example/v1": EOF`, false},
		{"deadline and cancel", "context deadline exceeded", "context canceled", false},
		{"UUID", "order 550e8400-e29b-41d4-a716-446655440000 not found", "order 0196f0c2-abcd-7eef-bbbb-deadbeefcafe not found", true},
		{"UUID in capitals", "order 550E8400-E29B-41D4-A716-446655440000 not found", "order abcdefab-cdef-abcd-efab-cdefabcdefab not found", true},
		{"hexadecimal id", "trace 4bf92f3577b34da6a3ce929d0e0e4736 lost", "trace 00f067aa0ba902b7 lost", true},
		{"short hexadecimal id", "commit abc123 is bad", "commit def4567 is bad", true},
		{"pointer", "bad state at 0xc000123456", "bad state at 0xdeadbeef", true},
		{"ULID", "job 01ARZ3NDEKTSV4RRFFQ69G5FAV failed", "job 01BX5ZZKBKACTAV9WEVGEMMVRZ failed", true},
		{"prefixed id", "charge ch_3MmlLrLkdIwHu7ix0snN0B15 failed", "charge ch_9AbCdEfGh failed", true},
		{"prefixed id without digits", "no such customer: cus_NffrFeUfNV", "no such customer: cus_9s6XKzkNRiz8i3", true},
		{"suffix number", "queue shard7 is full", "queue shard12 is full", true},
		{"words before numbers", "queue shard7 is full", "queue topic7 is full", false},
		{"pod name", "pod payments-7d9f8b6c5d-x2x4q evicted", "pod payments-5f6d7c8b9a-k9z1w evicted", true},
		{"timestamps", "stale since 2026-01-02T15:04:05Z", "stale since 2025-12-31T23:59:59.123+01:00", true},
		{"log timestamps", "2026/01/02 15:04:05 worker stopped", "2026/11/30 05:00:00.000001 worker stopped", true},
		{"RFC 1123", "expired at Mon, 02 Jan 2006 15:04:05 GMT", "expired at Tue, 31 Dec 2024 01:00:00 GMT", true},
		{"Go time", "deadline 2026-01-02 15:04:05.999 +0000 UTC m=+12.5 passed", "deadline 2026-03-04 05:06:07.1 +0000 UTC m=+0.001 passed", true},
		{"durations", "gave up after 1m30.5s", "gave up after 250ms", true},
		{"float", "ratio 0.25 too low", "ratio 1e-9 too low", true},
		{"sign", "amount must be positive, got -5", "amount must be positive, got 12", true},
		{"list", "missing items [1 2 3]", "missing items [7]", true},
		{"list with commas", "missing items 1, 2, 3", "missing items 99", true},
		{"list of strings", `unknown tags "a", "b"`, `unknown tags "c"`, true},
		{"e-mail", "user bob@example.com is blocked", "user alice.w+x@mail.example.org is blocked", true},
		{"e-mail in brackets", "to <bob@example.com>: refused", "to <alice@example.org>: refused", true},
		{"path ids", "GET /orders/8471/items/12: gone", "GET /orders/1/items/9: gone", true},
		{"paths", "GET /orders/8471: gone", "GET /users/8471: gone", false},
		{"files", "open /var/lib/orders/8471.json: no such file or directory", "open /var/lib/orders/9.json: no such file or directory", true},
		{"file faults", "open /etc/app.conf: permission denied", "open /etc/app.conf: no such file or directory", false},
		{"status", "unexpected status 503", "unexpected status 404", false},
		{"status with sign", "payment: StatusCode=503, request 12", "payment: StatusCode=503, request 4711", true},
		{"status and code", "unexpected status code: 500", "unexpected status code: 502", false},
		{"exit status", "exit status 1", "exit status 137", false},
		{"long code is an id", "verification code 482133 is wrong", "verification code 7712 is wrong", true},
		{"JSON values", `refused: {"id": "a1", "amount": 5}`, `refused: {"id": "b2", "amount": 77}`, true},
		{"JSON keys", `refused: {"id": "a1"}`, `refused: {"name": "a1"}`, false},
		{"JSON syntax", "invalid character 'x' looking for beginning of value", "invalid character '}' looking for beginning of value", true},
		{"JSON faults", "invalid character 'x' looking for beginning of value", "unexpected end of JSON input", false},
		{"JSON types", "json: cannot unmarshal string into Go struct field Order.amount of type int", "json: cannot unmarshal string into Go struct field Order.total of type int", false},
		{"strconv", `strconv.Atoi: parsing "12x": invalid syntax`, `strconv.Atoi: parsing "": invalid syntax`, true},
		{"strconv faults", `strconv.Atoi: parsing "12x": invalid syntax`, `strconv.Atoi: parsing "99999999999999999999": value out of range`, false},
		{"backquotes", "Unknown column `price`", "Unknown column `total`", true},
		{"apostrophe", "can't charge order 1", "can't charge order 22", true},
		{"unclosed quote", `bad token " at 5`, `bad token " at 17`, true},
		{"escaped quotes", `got "a \"b\" c" here`, `got "x" here`, true},
		{"index out of range", "panic: runtime error: index out of range [5] with length 3", "panic: runtime error: index out of range [12] with length 0", true},
		{"nil map", "panic: assignment to entry in nil map", "panic: runtime error: invalid memory address or nil pointer dereference", false},
		{"redacted", "card [redacted] declined", "card 4111 declined", true},
		{"white space", "a  b\t c", "a b c", true},
		{"case", "Order declined", "order declined", false},
		{"other scripts", "заказ 8471 отклонён", "заказ 9 отклонён", true},
		{"other scripts, other fault", "заказ 8471 отклонён", "заказ 8471 просрочен", false},
	}
	for _, tt := range tests {
		a, b := fingerprint("", "", tt.a), fingerprint("", "", tt.b)
		if (a == b) != tt.same {
			t.Errorf("%s: same group = %v, want %v\n%q -> %q\n%q -> %q", tt.name, a == b, tt.same, tt.a, masked(tt.a), tt.b, masked(tt.b))
		}
		for n := range tt.a { // a text may be cut anywhere
			masked(tt.a[:n])
		}
	}
}

// masked is the text that Fingerprint hashes.
func masked(text string) string {
	m := masker{text: text, end: maxMasked}
	m.run()
	return string(m.out[:min(len(m.out), maxMasked)])
}

func TestMasked(t *testing.T) {
	for word := range strings.FieldsSeq("Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec") {
		if got := masked("since " + word + " 5"); got != "since #" {
			t.Errorf("%s before a number is masked as %q", word, got)
		}
	}
	for text, want := range map[string]string{
		"":                        "",
		"8471":                    "#",
		"-5":                      "#",
		"a-5":                     "a-#",
		"f(-5)":                   "f(#)",
		"std::abort()":            "std::abort()",
		"on ::1 port 80":          "on # port #",
		"x@":                      "x@",
		"@x 5@y":                  "@x #",
		"a: b@c.d. e":             "a: #. e",
		"a: b@c.d.":               "a: #.",
		"dial [::1":               "dial [#",
		"amqp://guest:x@h:5672/v": "amqp://guest:#/v",
		"May 5":                   "#",
		"it May be":               "it May be",
		"utf8 s3 x509":            "utf# s# x#",
		"IsInvalidRequestError":   "IsInvalidRequestError",
		"'a' 'b'":                 "#",
		"[::1]:80":                "#",
		"[x]":                     "[x]",
		`{"a":"b"}`:               "{a:#}",
		"10:00:00":                "#",
		"fe80::1:2 up":            "# up",
	} {
		if got := masked(text); got != want {
			t.Errorf("masked(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestFingerprintParts(t *testing.T) {
	base := fingerprint("*pq.Error", "23505", "duplicate key")
	if len(base) != 16 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("Fingerprint = %q, want 16 hexadecimal digits", base)
	}
	for _, other := range []string{
		fingerprint("*mysql.Error", "23505", "duplicate key"),
		fingerprint("*pq.Error", "40001", "duplicate key"),
		fingerprint("*pq.Error", "23505", "deadlock"),
		fingerprint("*pq.Error23505", "", "duplicate key"),
	} {
		if other == base {
			t.Errorf("another type, code or text has the same fingerprint %q", base)
		}
	}
	if got := fingerprint("*pq.Error", "23505", "duplicate key"); got != base {
		t.Errorf("the same arguments gave %q and %q", base, got)
	}
}

func TestFingerprintOfLongTexts(t *testing.T) {
	long := strings.Repeat("the words of a long story ", 100)
	if fingerprint("", "", long+"a") != fingerprint("", "", long+"b") {
		t.Error("what comes after 512 bytes counts")
	}
	ids := strings.Repeat("id 1234567890123456789 of ", 30)
	few := strings.Repeat("id 1 of ", 30)
	if fingerprint("", "", ids) != fingerprint("", "", few) {
		t.Error("the length of numbers decides where a text is cut")
	}
}
