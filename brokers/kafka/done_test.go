package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestReadDoneRefuses(t *testing.T) {
	overflow := binary.AppendUvarint([]byte{doneVersion, 5}, math.MaxUint64-2)
	for _, tt := range []struct {
		name  string
		value []byte
		below int64
	}{
		{"a tombstone", nil, 100},
		{"another version", []byte{doneVersion + 1, 3}, 100},
		{"text", []byte("done"), 100},
		{"its own offset", doneValue([]int64{5, 100}), 100},
		{"a later offset", doneValue([]int64{101}), 100},
		{"offset 0 in the first record", doneValue([]int64{0}), 0},
		{"any offset without an own one", doneValue([]int64{0}), -1},
		{"one offset twice", []byte{doneVersion, 5, 0}, 100},
		{"a broken number", []byte{doneVersion, 5, 0x80}, 100},
		{"a number too long", append([]byte{doneVersion}, bytes.Repeat([]byte{0xff}, 11)...), 100},
		{"a sum too high", overflow, math.MaxInt64},
		{"too many bytes", append([]byte{doneVersion}, bytes.Repeat([]byte{1}, doneLimit)...), math.MaxInt64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			offsets, err := readDone(tt.value, tt.below)
			if !errors.Is(err, errDoneRecord) || offsets != nil {
				t.Errorf("readDone = %v, %v; want no offsets and errDoneRecord", offsets, err)
			}
		})
	}
}

func TestDoneBatches(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 6))
	for _, span := range []int64{1, 1000, 100_000, 1 << 40, math.MaxInt64} {
		offsets := make([]int64, 2*doneBatch+doneBatch/2)
		for i := range offsets {
			offsets[i] = random.Int64N(span)
		}
		want := slices.Compact(slices.Sorted(slices.Values(offsets)))
		var got []int64
		for batch := range doneBatches(offsets) {
			value := doneValue(batch)
			if len(value) >= doneLimit {
				t.Errorf("seed %d: %d offsets below %d take %d bytes, want less than %d", seed, len(batch), span, len(value), doneLimit)
			}
			read, err := readDone(value, math.MaxInt64)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got = append(got, read...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("seed %d: %d offsets below %d became %d", seed, len(want), span, len(got))
		}
	}
	for batch := range doneBatches(nil) {
		t.Errorf("no offsets make the batch %v", batch)
	}
}

func TestDoneBatchFitsWhateverItHolds(t *testing.T) {
	if worst := 1 + doneBatch*binary.PutUvarint(make([]byte, 10), math.MaxInt64); worst >= doneLimit {
		t.Errorf("%d offsets may take %d bytes, want less than %d", doneBatch, worst, doneLimit)
	}
}

func FuzzReadDone(f *testing.F) {
	f.Add(doneValue([]int64{3, 4, 900}), int64(901))
	f.Add([]byte{doneVersion, 0, 1, 0x80, 1}, int64(math.MaxInt64))
	f.Add([]byte{doneVersion, 0x85, 0, 1}, int64(50))
	f.Fuzz(func(t *testing.T, value []byte, below int64) {
		offsets, err := readDone(value, below)
		if err != nil {
			return
		}
		if cap(offsets) > len(value) {
			t.Fatalf("%d bytes make room for %d offsets", len(value), cap(offsets))
		}
		for i, offset := range offsets {
			if offset < 0 || offset >= below || i > 0 && offset <= offsets[i-1] {
				t.Fatalf("offset %d of %v is not between its neighbours and %d", i, offsets, below)
			}
		}
		again := doneValue(offsets)
		if len(again) > len(value) {
			t.Fatalf("%d bytes became %d", len(value), len(again))
		}
		if back, err := readDone(again, below); err != nil || !slices.Equal(back, offsets) {
			t.Fatalf("written and read again: %v, %v; want %v", back, err, offsets)
		}
	})
}
