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
		if from <= last && last >= low || from >= to {
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
	for i, part := range s.parts {
		if len(part) == 0 && i < len(s.parts)-1 || len(part) > mostSpans {
			t.Fatalf("part %d has %d intervals, at most %d are possible", i, len(part), mostSpans)
		}
	}
}

func head(offsets []int64) []int64 { return offsets[:min(len(offsets), 20)] }

func TestOffsetSetIsASet(t *testing.T) {
	for n := range 15 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 1))
		span := 1 + random.Int64N(8192)
		var s offsetSet
		want := map[int64]bool{}
		add := func(from, to int64) {
			for o := from; o < to; o++ {
				want[o] = true
			}
			s.add(from, to)
		}
		for range 1000 * (1 + n%2*7) { // some have many parts
			offset := random.Int64N(span)
			switch random.IntN(8) {
			case 0:
				add(offset, min(offset+1+random.Int64N(3072>>(n%2*11)), span))
			case 1, 2, 3:
				s.remove(offset)
				delete(want, offset)
			default:
				add(offset, offset+1)
			}
			if probe := random.Int64N(span); s.has(probe) != want[probe] || int(s.size) != len(want) {
				t.Fatalf("seed %d: has(%d) = %t of %d, want %t of %d", seed, probe, s.has(probe), s.size, want[probe], len(want))
			}
		}
		t.Logf("seed %d: %d parts", seed, len(s.parts))
		checkOffsets(t, &s, want, 0)
		low := random.Int64N(span)
		s.dropBelow(low)
		maps.DeleteFunc(want, func(offset int64, _ bool) bool { return offset < low })
		checkOffsets(t, &s, want, low)
	}
}
