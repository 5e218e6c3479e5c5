package budget

import "math/bits"

// length is how many consecutive slots a wheel holds: 64 words of 64 bits.
const length = 64 * 64

// wheel counts reservations in a range of length slots that moves with time.
// A slot's place is its number modulo length.
type wheel struct {
	used   [length]uint32
	full   [64]uint64 // a bit for each slot that had no room when last looked at
	solid  uint64     // a bit for each word of full without a 0
	marked bool       // some slot may be marked
}

// next returns the first slot from from on that is not marked as full, or
// limit if it is not before that. The range is at most length long.
func (w *wheel) next(from, limit int64) int64 {
	if from >= limit {
		return limit
	}
	place := uint(from) % length
	word, bit := place/64, place%64
	if open := ^w.full[word] >> bit; open != 0 {
		return min(from+int64(bits.TrailingZeros64(open)), limit)
	}
	words := bits.RotateLeft64(^w.solid, -int(word+1))
	if words == 0 {
		return limit
	}
	skip := uint(bits.TrailingZeros64(words)) + 1
	first := bits.TrailingZeros64(^w.full[(word+skip)%64])
	return min(from-int64(bit)+int64(skip*64)+int64(first), limit)
}

// mark notes that slot has no room.
func (w *wheel) mark(slot int64) {
	place := uint(slot) % length
	w.full[place/64] |= 1 << (place % 64)
	if w.full[place/64] == ^uint64(0) {
		w.solid |= 1 << (place / 64)
	}
	w.marked = true
}

// unmark has slot looked at again.
func (w *wheel) unmark(slot int64) {
	place := uint(slot) % length
	w.full[place/64] &^= 1 << (place % 64)
	w.solid &^= 1 << (place / 64)
}

// unmarkAll has every slot looked at again.
func (w *wheel) unmarkAll() {
	if w.marked {
		w.full, w.solid, w.marked = [64]uint64{}, 0, false
	}
}

// count returns the counter of slot.
func (w *wheel) count(slot int64) *uint32 { return &w.used[uint(slot)%length] }

// reset empties slot.
func (w *wheel) reset(slot int64) {
	*w.count(slot) = 0
	w.unmark(slot)
}
