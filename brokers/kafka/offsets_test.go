package kafka

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkOffsets holds s against the set that it should be.
func checkOffsets(t *testing.T, s *offsetSet, want map[int64]bool, low int64) {
	t.Helper()
	var got []int64
	last := low - 1
	for from, to := range s.runs(low) {
		if from <= last || from >= to {
			t.Fatalf("run [%d, %d) after one that ends at %d: runs must be apart and not empty", from, to, last)
		}
		for offset := from; offset < to; offset++ {
			got = append(got, offset)
		}
		last = to
	}
	sorted := slices.Sorted(maps.Keys(want))
	if !slices.Equal(got, sorted) {
		t.Fatalf("the set has %d offsets, want %d: %v, want %v", len(got), len(sorted), head(got), head(sorted))
	}
	for i, c := range s.chunks {
		if i > 0 && c.from < s.chunks[i-1].to || c.from >= c.to || pageOf(c.from) != c.from || pageOf(c.to) != c.to {
			t.Fatalf("chunk %d is [%d, %d): chunks are whole pages in order", i, c.from, c.to)
		}
		if c.bits != nil && (c.to-c.from != pageSize || c.bits.count() == pageSize && c.from >= low) {
			t.Fatalf("chunk %d is [%d, %d) with %d bits set: it should be a run", i, c.from, c.to, c.bits.count())
		}
		if i > 0 && c.bits == nil && s.chunks[i-1].bits == nil && c.from == s.chunks[i-1].to {
			t.Fatalf("chunks %d and %d are runs that touch at %d", i-1, i, c.from)
		}
	}
}

func head(offsets []int64) []int64 { return offsets[:min(len(offsets), 20)] }

func TestOffsetSetIsASet(t *testing.T) {
	for range 15 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 1))
		span := 1 + random.Int64N(8*pageSize)
		var s offsetSet
		want := map[int64]bool{}
		for range 1000 {
			offset := random.Int64N(span)
			switch random.IntN(8) {
			case 0:
				to := min(offset+random.Int64N(3*pageSize), span)
				before := len(want)
				for o := offset; o < to; o++ {
					want[o] = true
				}
				if added := s.addRange(offset, to); int(added) != len(want)-before {
					t.Fatalf("seed %d: addRange(%d, %d) = %d, want %d", seed, offset, to, added, len(want)-before)
				}
			case 1, 2, 3:
				s.remove(offset)
				delete(want, offset)
			default:
				if added := s.add(offset); added == want[offset] {
					t.Fatalf("seed %d: add(%d) = %t", seed, offset, added)
				}
				want[offset] = true
			}
			if probe := random.Int64N(span); s.has(probe) != want[probe] {
				t.Fatalf("seed %d: has(%d) = %t, want %t", seed, probe, s.has(probe), want[probe])
			}
		}
		t.Logf("seed %d", seed)
		checkOffsets(t, &s, want, 0)
		low := random.Int64N(span)
		s.dropBelow(low)
		maps.DeleteFunc(want, func(offset int64, _ bool) bool { return offset < low })
		checkOffsets(t, &s, want, low)
	}
}
