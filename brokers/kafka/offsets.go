package kafka

import (
	"iter"
	"math/bits"
	"slices"
)

// offsetSet is a set of offsets. It keeps them as a sorted list of chunks, each
// a page of bits or a run of pages that are full, so that a set with few gaps
// is small however far it reaches. The zero value is empty.
type offsetSet struct {
	chunks []chunk
	last   int   // the chunk found last, which is likely to be wanted again
	spare  *page // a page that is free again, all zero
}

// chunk covers the offsets [from, to), both multiples of pageSize.
type chunk struct {
	from, to int64
	bits     *page // of a single page; nil means that all of [from, to) is in the set
}

// page has one bit for each of pageSize offsets.
type page [pageSize / 64]uint64

const pageSize = 1024

func pageOf(offset int64) int64 { return offset &^ (pageSize - 1) }

// position returns the word of a page that has the bit of offset, and the bit.
func position(offset int64) (word int, bit uint64) {
	in := offset & (pageSize - 1)
	return int(in / 64), 1 << (in % 64)
}

// scan returns the first position from at on whose bit differs from those of
// same, which is 0 or ^0, or pageSize if there is none.
func (p *page) scan(at int, same uint64) int {
	word := at / 64
	found := (p[word] ^ same) >> (at % 64) << (at % 64)
	for found == 0 {
		word++
		if word == len(p) {
			return pageSize
		}
		found = p[word] ^ same
	}
	return word*64 + bits.TrailingZeros64(found)
}

func (p *page) count() int {
	n := 0
	for _, word := range p {
		n += bits.OnesCount64(word)
	}
	return n
}

// find returns the first chunk that ends above offset, which is the one that
// covers offset if there is one.
func (s *offsetSet) find(offset int64) int {
	if s.last < len(s.chunks) && s.chunks[s.last].from <= offset && offset < s.chunks[s.last].to {
		return s.last
	}
	low, high := 0, len(s.chunks)
	for low < high {
		middle := int(uint(low+high) / 2)
		if s.chunks[middle].to > offset {
			high = middle
		} else {
			low = middle + 1
		}
	}
	s.last = low
	return low
}

// covered reports whether chunk i, found for offset, covers it.
func (s *offsetSet) covered(i int, offset int64) bool {
	return i < len(s.chunks) && s.chunks[i].from <= offset
}

func (s *offsetSet) has(offset int64) bool {
	i := s.find(offset)
	if !s.covered(i, offset) {
		return false
	}
	word, bit := position(offset)
	return s.chunks[i].bits == nil || s.chunks[i].bits[word]&bit != 0
}

// add reports whether offset was not in the set before.
func (s *offsetSet) add(offset int64) bool {
	i := s.find(offset)
	if !s.covered(i, offset) {
		from := pageOf(offset)
		s.chunks = slices.Insert(s.chunks, i, chunk{from: from, to: from + pageSize, bits: s.take()})
	}
	c := &s.chunks[i]
	word, bit := position(offset)
	if c.bits == nil || c.bits[word]&bit != 0 {
		return false
	}
	c.bits[word] |= bit
	if c.bits[word] == ^uint64(0) && c.bits.scan(0, ^uint64(0)) == pageSize {
		s.free(c)
		s.merge(i)
	}
	return true
}

// addRange adds [from, to) and returns how many of these were not in the set.
func (s *offsetSet) addRange(from, to int64) int64 {
	added := int64(0)
	for from < to {
		if end := pageOf(to); pageOf(from) == from && from < end {
			added += s.fill(from, end)
			from = end
			continue
		}
		if s.add(from) {
			added++
		}
		from++
	}
	return added
}

// fill adds whole pages.
func (s *offsetSet) fill(from, to int64) int64 {
	added := to - from
	run := chunk{from: from, to: to}
	first := s.find(from)
	end := first
	for ; end < len(s.chunks) && s.chunks[end].from < to; end++ {
		c := &s.chunks[end]
		if c.bits != nil {
			added -= int64(c.bits.count())
			s.free(c)
			continue
		}
		added -= min(c.to, to) - max(c.from, from)
		run.from, run.to = min(run.from, c.from), max(run.to, c.to)
	}
	s.chunks = slices.Replace(s.chunks, first, end, run)
	s.merge(first)
	return added
}

// merge joins the run that is chunk i with the runs that it touches.
func (s *offsetSet) merge(i int) {
	first, end := i, i+1
	if i > 0 && s.chunks[i-1].bits == nil && s.chunks[i-1].to == s.chunks[i].from {
		first--
	}
	if end < len(s.chunks) && s.chunks[end].bits == nil && s.chunks[end].from == s.chunks[i].to {
		end++
	}
	s.chunks[first].to = s.chunks[end-1].to
	s.chunks = slices.Delete(s.chunks, first+1, end)
}

func (s *offsetSet) remove(offset int64) {
	i := s.find(offset)
	if !s.covered(i, offset) {
		return
	}
	if s.chunks[i].bits == nil {
		i = s.split(i, offset)
	}
	c := &s.chunks[i]
	word, bit := position(offset)
	c.bits[word] &^= bit
	if c.bits[word] == 0 && c.bits.scan(0, 0) == pageSize {
		s.free(c)
		s.chunks = slices.Delete(s.chunks, i, i+1)
	}
}

// split takes the page of offset out of the run that is chunk i, and returns
// which chunk it is now.
func (s *offsetSet) split(i int, offset int64) int {
	run, from := s.chunks[i], pageOf(offset)
	full := s.take()
	for word := range full {
		full[word] = ^uint64(0)
	}
	parts := make([]chunk, 0, 3)
	if run.from < from {
		parts = append(parts, chunk{from: run.from, to: from})
	}
	at := i + len(parts)
	parts = append(parts, chunk{from: from, to: from + pageSize, bits: full})
	if from+pageSize < run.to {
		parts = append(parts, chunk{from: from + pageSize, to: run.to})
	}
	s.chunks = slices.Replace(s.chunks, i, i+1, parts...)
	return at
}

// dropBelow forgets the chunks that end at or below low. What the set says of
// offsets below low means nothing from now on.
func (s *offsetSet) dropBelow(low int64) {
	for len(s.chunks) > 0 && s.chunks[0].to <= low {
		s.free(&s.chunks[0])
		s.chunks = s.chunks[1:]
		s.last = max(s.last-1, 0)
	}
}

// firstAbsent returns the first offset from offset on that is not in the set.
func (s *offsetSet) firstAbsent(offset int64) int64 {
	for i := s.find(offset); s.covered(i, offset); i++ {
		c := s.chunks[i]
		if c.bits == nil {
			offset = c.to
			continue
		}
		offset = c.from + int64(c.bits.scan(int(offset-c.from), ^uint64(0)))
		if offset < c.to {
			break
		}
	}
	return offset
}

// firstPresent returns the first offset from offset on that is in the set.
func (s *offsetSet) firstPresent(offset int64) (int64, bool) {
	for i := s.find(offset); i < len(s.chunks); i++ {
		c := s.chunks[i]
		offset = max(offset, c.from)
		if c.bits == nil {
			return offset, true
		}
		offset = c.from + int64(c.bits.scan(int(offset-c.from), 0))
		if offset < c.to {
			return offset, true
		}
	}
	return 0, false
}

// runs yields the set from low on, as runs [from, to) with gaps between them.
func (s *offsetSet) runs(low int64) iter.Seq2[int64, int64] {
	return func(yield func(from, to int64) bool) {
		for to := low; ; {
			from, ok := s.firstPresent(to)
			if !ok {
				return
			}
			to = s.firstAbsent(from)
			if !yield(from, to) {
				return
			}
		}
	}
}

// take returns a page that is all zero.
func (s *offsetSet) take() *page {
	if p := s.spare; p != nil {
		s.spare = nil
		return p
	}
	return new(page)
}

// free turns c into a run, and keeps its page for later.
func (s *offsetSet) free(c *chunk) {
	if c.bits != nil && s.spare == nil {
		*c.bits = page{}
		s.spare = c.bits
	}
	c.bits = nil
}
