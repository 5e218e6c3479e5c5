package dlq

import (
	"fmt"
	"strings"
	"testing"
)

const ordinary = `charge order 8471: Post "https://api.pay.example/v1/charges": dial tcp 10.0.0.7:443: connect: connection refused`

func BenchmarkFingerprint(b *testing.B) {
	for _, size := range []int{len(ordinary), 2048} {
		text := strings.Repeat(ordinary+"; ", 20)[:size]
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fingerprint("*net.OpError", "ECONNREFUSED", text)
			}
		})
	}
}

func BenchmarkRedact(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Redact(ordinary)
	}
}

func BenchmarkEncode(b *testing.B) {
	e := full()
	b.ReportAllocs()
	for b.Loop() {
		e.Encode(0)
	}
}

func BenchmarkDecode(b *testing.B) {
	letter := full().Encode(0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(letter); err != nil {
			b.Fatal(err)
		}
	}
}
