package kafka

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// checkIndex does what steps say to an index and to a sorted list: below half,
// a record is added; otherwise the time goes on and what is due is taken.
func checkIndex(t *testing.T, steps []byte) {
	t.Helper()
	var x index
	var list []waiting
	now, offset := int64(0), int64(0)
	for _, step := range steps {
		if step < 128 {
			w := waiting{due: now + int64(step) - 5, offset: offset}
			offset++
			x.add(w.offset, w.due)
			at, _ := slices.BinarySearchFunc(list, w, func(a, b waiting) int {
				return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.offset, b.offset))
			})
			list = slices.Insert(list, at, w)
		} else {
			now += int64(step % 16)
			for {
				offset, due, ok := x.pop(now)
				if want := len(list) > 0 && list[0].due <= now; ok != want {
					t.Fatalf("pop at %d gave a record: %t, want %t", now, ok, want)
				}
				if !ok {
					break
				}
				if (waiting{due, offset}) != list[0] {
					t.Fatalf("pop at %d = offset %d, due %d; want %+v", now, offset, due, list[0])
				}
				list = list[1:]
			}
		}
		due, ok := x.next()
		if x.len() != len(list) || ok != (len(list) > 0) || ok && due != list[0].due {
			t.Fatalf("len %d, next %d, %t; want %d records and the first of %v", x.len(), due, ok, len(list), list[:min(len(list), 1)])
		}
	}
}

func TestIndexAgainstSortedList(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 7))
		steps := make([]byte, random.IntN(5000))
		for i := range steps {
			steps[i] = byte(random.IntN(132)) // mostly added
		}
		checkIndex(t, steps)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte{5, 5, 5, 0, 127, 129, 143, 20, 10, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		checkIndex(t, steps[:min(len(steps), 5000)])
	})
}

func TestIndexShrinks(t *testing.T) {
	const n = 50_000
	var x index
	for i := range int64(n) {
		x.add(i, i)
	}
	for i := range int64(n) {
		offset, _, ok := x.pop(i)
		if offset != i || !ok {
			t.Fatalf("pop(%d) = %d, %t", i, offset, ok)
		}
		if limit := max(4*x.len()+4, indexKept); cap(x.heap) > limit {
			t.Fatalf("%d records keep room for %d, want at most %d", x.len(), cap(x.heap), limit)
		}
	}
}

func TestIndexIsSmall(t *testing.T) {
	const n, limit = 1_000_000, 20
	var x index
	for i := range int64(n) {
		x.add(i, i)
	}
	bytes := float64(cap(x.heap)) * float64(unsafe.Sizeof(waiting{})) / n
	t.Logf("%d records: %.1f bytes each", n, bytes)
	if bytes > limit {
		t.Errorf("%d records take %.1f bytes each, want at most %d", n, bytes, limit)
	}
}
