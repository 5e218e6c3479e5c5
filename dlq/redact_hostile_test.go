package dlq

import (
	"fmt"
	"strings"
	"testing"
)

// hostile are texts that the tests repeat to make Redact slow.
// BenchmarkRedactHostile shows that its time grows with the length, and no faster.
var hostile = []string{
	"password=", "password ", "password: ", "secret:(", "token=[", "key=\"", "\\\"password\\\":\\\"", "pass", "-", "p", "1", "4111 ", "4111-", "DE89 ", "DE89", "A1",
	"://", "://a", "a:b@", ":@", "@", "eyJaaaaaaaaaaa.", "SG.", "SG.1", "hvs.", "dp.1.", "ghp_", "ghp_1", "Authorization: ", "Authorization: Bearer ", "Authorization: Digest a=\"b\", ",
	"Bearer ", "Basic ", "basic a", "Cookie: ", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "<password>", "<password", "?code=", "&code=aaaaaaaaaaaa", "mysql ", "mysql -p", "sshpass -p ", "-u ", "-u a:b ",
	"Password: (string) (len=1) ", "Password: ((((", "(len=1) ", "\"name\":\"password\",\"value\":", "password value ", "password is ", "api key: ", "api ", "password%3D", "%3D", "123456789:A", "123456789:AA", "'", "\"", "\\", "[", "[redacted]", "=[redacted]", "é", "\x00", "\n", "a=b;",
	"a.", "a/", "//", "//a:b@", "mysql a.", "login -p ", "auth: [", "{", "password: \"\\", "key=\"a\" ", "IBAN GB12 ABCD ", "bot1:A", "1|a", "MMMMMMMMMMMMMMMMMMMMMMMM.a.",
}

// BenchmarkRedactTexts redacts 8 KiB, the longest error that a dead letter
// keeps.
func BenchmarkRedactTexts(b *testing.B) {
	const size = 8 << 10
	for name, unit := range map[string]string{
		"stack": "goroutine 18 [running]:\nmain.(*Server).handle(0xc000112000, {0x7f3a, 0x10})\n\t/srv/app/internal/server/handle.go:118 +0x1d5\n",
		"prose": ordinary + ": password is wrong for the user bob; ",
	} {
		text := strings.Repeat(unit, size)[:size]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				Redact(text)
			}
		})
	}
}

// BenchmarkRedactHostile redacts hostile texts of 1 KiB and 8 KiB: the second
// should take eight times as long as the first.
func BenchmarkRedactHostile(b *testing.B) {
	for _, n := range []int{1 << 10, 8 << 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				for _, unit := range hostile {
					Redact(strings.Repeat(unit, n/len(unit)))
				}
			}
		})
	}
}
