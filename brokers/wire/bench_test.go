package wire

import "testing"

func BenchmarkEncode(b *testing.B) {
	msg, meta := full()
	b.ReportAllocs()
	for b.Loop() {
		Encode(msg, meta)
	}
}

func BenchmarkEncodePacked(b *testing.B) {
	msg, meta := full()
	b.ReportAllocs()
	for b.Loop() {
		EncodePacked(make([]byte, 0, 512), msg, meta)
	}
}

func BenchmarkDecodePacked(b *testing.B) {
	msg, meta := full()
	for i := range meta.Origin {
		meta.Origin[i].Type = "" // types are rare, and read in another way
	}
	headers := packedOf(msg, meta)
	b.ReportAllocs()
	for b.Loop() {
		Decode(headers, limits())
	}
}

func BenchmarkDecode(b *testing.B) {
	msg, meta := full()
	headers := Encode(msg, meta)
	b.ReportAllocs()
	for b.Loop() {
		Decode(headers, limits())
	}
}

func BenchmarkDecodeFirstDelivery(b *testing.B) {
	msg, _ := full()
	b.ReportAllocs()
	for b.Loop() {
		Decode(msg.Headers, anyone())
	}
}
