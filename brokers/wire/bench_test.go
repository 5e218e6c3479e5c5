package wire

import (
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func BenchmarkAppendMeta(b *testing.B) {
	msg, meta := full()
	b.ReportAllocs()
	for b.Loop() {
		AppendMeta(msg, meta)
	}
}

func BenchmarkAppendPacked(b *testing.B) {
	msg, meta := full()
	b.ReportAllocs()
	for b.Loop() {
		AppendPacked(make([]byte, 0, 512), msg, meta)
	}
}

func BenchmarkSplitPacked(b *testing.B) {
	msg, meta := full()
	for i := range meta.Origin {
		meta.Origin[i].Type = "" // types are rare, and read in another way
	}
	headers := append(User(msg.Headers), brokers.Header{Name: Packed, Value: string(AppendPacked(nil, msg, meta))})
	b.ReportAllocs()
	for b.Loop() {
		SplitMeta(headers, limits())
	}
}

func BenchmarkSplitMeta(b *testing.B) {
	msg, meta := full()
	headers := AppendMeta(msg, meta)
	b.ReportAllocs()
	for b.Loop() {
		SplitMeta(headers, limits())
	}
}

func BenchmarkSplitMetaFirstDelivery(b *testing.B) {
	msg, _ := full()
	b.ReportAllocs()
	for b.Loop() {
		SplitMeta(msg.Headers, limits())
	}
}
