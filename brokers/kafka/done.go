package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
)

const (
	doneVersion = 1

	// doneBatch is the most offsets in one done record, so that its value
	// stays below doneLimit whatever the offsets are.
	doneBatch = 50_000

	// doneLimit bounds the value of a done record in bytes.
	doneLimit = 512 << 10
)

// errDoneRecord reports a done record that cannot be used. Ignoring it costs
// duplicates only.
var errDoneRecord = errors.New("unreadable done record: what it names is handled again")

// doneBatches yields offsets in portions for one done record each. It sorts
// offsets in place and skips repetitions; the portions share its memory.
func doneBatches(offsets []int64) iter.Seq[[]int64] {
	slices.Sort(offsets)
	return slices.Chunk(slices.Compact(offsets), doneBatch)
}

// appendDone appends the value of the done record that names offsets, which
// may be in any order: a byte with the version, and then uvarints: the lowest
// offset, and for each other one the distance from the one before.
func appendDone(b []byte, offsets []int64) []byte {
	if !slices.IsSorted(offsets) {
		offsets = slices.Sorted(slices.Values(offsets))
	}
	b = append(b, doneVersion)
	last := int64(0)
	for i, offset := range offsets {
		if i > 0 && offset == last {
			continue
		}
		b = binary.AppendUvarint(b, uint64(offset-last))
		last = offset
	}
	return b
}

// readDone returns the offsets that a done record names, lowest first. A record
// can only name offsets below its own, which is below.
func readDone(value []byte, below int64) ([]int64, error) {
	if len(value) == 0 || len(value) > doneLimit {
		return nil, fmt.Errorf("%w: it has %d bytes, from 1 to %d are possible", errDoneRecord, len(value), doneLimit)
	}
	if value[0] != doneVersion {
		return nil, fmt.Errorf("%w: it has version %d, this program reads %d", errDoneRecord, value[0], doneVersion)
	}
	value = value[1:]
	offsets := make([]int64, 0, uvarints(value))
	last := int64(0)
	for len(value) > 0 {
		distance, size := binary.Uvarint(value)
		switch {
		case size <= 0:
			return nil, fmt.Errorf("%w: it is damaged after %d offsets", errDoneRecord, len(offsets))
		case distance == 0 && len(offsets) > 0:
			return nil, fmt.Errorf("%w: it names offset %d twice", errDoneRecord, last)
		case below <= last || distance >= uint64(below-last):
			return nil, fmt.Errorf("%w: it names offsets that do not come before its own, %d", errDoneRecord, below)
		}
		last += int64(distance)
		offsets = append(offsets, last)
		value = value[size:]
	}
	return offsets, nil
}

// uvarints returns how many uvarints end in data.
func uvarints(data []byte) int {
	n := 0
	for _, b := range data {
		if b < 0x80 {
			n++
		}
	}
	return n
}
