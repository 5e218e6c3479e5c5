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

// doneValue is the value of the done record that names offsets, each once and the
// lowest first: a byte with the version, and then uvarints: the lowest offset, and
// for each other one the distance from the one before.
func doneValue(offsets []int64) []byte {
	b, last := []byte{doneVersion}, int64(0)
	for _, offset := range offsets {
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
	offsets, last := make([]int64, 0, min(len(value), doneBatch)), int64(0)
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
