package wire

import "testing"

func BenchmarkAppendMeta(b *testing.B) {
	msg, meta := full()
	b.ReportAllocs()
	for b.Loop() {
		AppendMeta(msg, meta)
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
