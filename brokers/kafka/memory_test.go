package kafka

import (
	"testing"
	"unsafe"
)

func TestASourceHasBoundedMemory(t *testing.T) {
	most := memory{bufferBytes, mostWaiting, bodyBytes, soonBytes}
	for _, tt := range []struct{ partitions, delays int }{{1, 0}, {12, 8}, {32, 8}, {33, 9}, {100, 16}, {1000, 400}} {
		each := most.share(tt.partitions, tt.delays)
		if few := tt.partitions <= fullBuffers && tt.delays <= fullDelays; few != (each == most) {
			t.Errorf("%+v: %+v each", tt, each)
		}
		if total := tt.partitions * each.buffer; total > fullBuffers*bufferBytes {
			t.Errorf("%+v: %d bytes of buffers", tt, total)
		}
		if total := tt.delays * (each.bodies + each.soon); total > fullDelays*(bodyBytes+soonBytes) {
			t.Errorf("%+v: %d bytes of delayed records", tt, total)
		}
		if total := tt.delays * each.waiting; total > fullDelays*mostWaiting {
			t.Errorf("%+v: %d entries", tt, total)
		}
	}
	if each := most.share(100_000, 50_000); each.buffer != leastBuffer || each.soon == 0 {
		t.Errorf("with very many: %+v", each)
	}
}

// A delivery that is held for long keeps what shares its memory. The pages say
// some 17 kB; the pipeline adds its own.
func TestAHeldMessageKeepsFewOthers(t *testing.T) {
	records := slabSize + slabRecords*int(unsafe.Sizeof(record{}))
	const texts = 64 // about: its key and its place
	kept := records + together*(int(unsafe.Sizeof(handed{}))+texts)
	t.Logf("%d bytes", kept)
	if kept > 18<<10 {
		t.Errorf("it keeps %d bytes, and they say some 17 kB", kept)
	}
}
