package kafka

import (
	"iter"
	"math"
	"slices"
)

// offsetSet is a set of offsets: a sorted list of intervals with gaps between
// them. The list is in parts, so that a change moves only a few intervals in
// memory. Only the last part may be empty. The zero value is empty.
type offsetSet struct {
	parts [][]span
	size  int64 // how many offsets it has
}

// mostSpans is how many intervals a part has at most.
const mostSpans = 512

// find returns the place of the first interval that ends at offset or later.
func (s *offsetSet) find(offset int64) (part, at int) {
	for end := len(s.parts); part < end; {
		if middle := (part + end) / 2; endOfSpans(s.parts[middle]) < offset {
			part = middle + 1
		} else {
			end = middle
		}
	}
	if part == len(s.parts) {
		return part, 0
	}
	list := s.parts[part]
	for end := len(list); at < end; {
		if middle := (at + end) / 2; list[middle].last < offset {
			at = middle + 1
		} else {
			end = middle
		}
	}
	return part, at
}

func endOfSpans(part []span) int64 {
	if len(part) == 0 {
		return math.MinInt64
	}
	return part[len(part)-1].last
}

// covering returns the place of the interval that has offset.
func (s *offsetSet) covering(offset int64) (part, at int, ok bool) {
	part, at = s.find(offset + 1)
	return part, at, part < len(s.parts) && s.parts[part][at].first <= offset
}

func (s *offsetSet) has(offset int64) bool {
	_, _, ok := s.covering(offset)
	return ok
}

// add adds [from, to).
func (s *offsetSet) add(from, to int64) {
	part, at := s.find(from)
	if part == len(s.parts) || s.parts[part][at].first > to {
		s.size += to - from
		s.insert(part, at, span{from, to})
		return
	}
	r := &s.parts[part][at]
	s.size += max(0, r.first-from) + max(0, to-r.last)
	r.first, r.last = min(from, r.first), max(to, r.last)
	for { // it may reach the intervals that follow
		p, i := part, at+1
		if i == len(s.parts[p]) {
			p, i = p+1, 0
		}
		if p == len(s.parts) || len(s.parts[p]) == 0 || s.parts[p][i].first > r.last {
			return
		}
		next := s.parts[p][i]
		s.size -= min(to, next.last) - next.first
		r.last = max(r.last, next.last)
		s.cut(p, i, 1)
	}
}

func (s *offsetSet) remove(offset int64) {
	part, at, ok := s.covering(offset)
	if !ok {
		return
	}
	s.size--
	r := &s.parts[part][at]
	before, after := span{r.first, offset}, span{offset + 1, r.last}
	switch {
	case before.first < before.last && after.first < after.last:
		*r = before
		s.insert(part, at+1, after)
	case before.first < before.last:
		*r = before
	case after.first < after.last:
		*r = after
	default:
		s.cut(part, at, 1)
	}
}

// insert adds an interval at a place.
func (s *offsetSet) insert(part, at int, r span) {
	if part == len(s.parts) { // behind all others
		if part == 0 {
			s.parts = append(s.parts, nil)
		} else {
			part--
		}
		at = len(s.parts[part])
	}
	list := slices.Insert(s.parts[part], at, r)
	if s.parts[part] = list; len(list) > mostSpans {
		s.parts[part] = list[:mostSpans/2]
		s.parts = slices.Insert(s.parts, part+1, slices.Clone(list[mostSpans/2:]))
	}
}

// cut removes n intervals of a part.
func (s *offsetSet) cut(part, at, n int) {
	if n == len(s.parts[part]) && part < len(s.parts)-1 {
		s.parts = slices.Delete(s.parts, part, part+1)
		return
	}
	s.parts[part] = slices.Delete(s.parts[part], at, at+n)
}

// dropBelow forgets the intervals that end at or below low. What the set says of
// offsets below low means nothing from now on.
func (s *offsetSet) dropBelow(low int64) {
	if len(s.parts) == 0 || len(s.parts[0]) == 0 || s.parts[0][0].last > low {
		return
	}
	part, at := s.find(low + 1)
	if part == len(s.parts) { // all of them
		part--
		at = len(s.parts[part])
	}
	for i, list := range s.parts[:part+1] {
		if i == part {
			list = list[:at]
		}
		for _, r := range list {
			s.size -= r.last - r.first
		}
	}
	s.parts = slices.Delete(s.parts, 0, part)
	if at > 0 {
		s.cut(0, 0, at)
	}
}

// firstAbsent returns the first offset from offset on that is not in the set.
func (s *offsetSet) firstAbsent(offset int64) int64 {
	if part, at, ok := s.covering(offset); ok {
		return s.parts[part][at].last
	}
	return offset
}

// runs yields the set from low on, as intervals [from, to) with gaps between them.
func (s *offsetSet) runs(low int64) iter.Seq2[int64, int64] {
	return func(yield func(from, to int64) bool) {
		for _, part := range s.parts {
			for _, r := range part {
				if r.last > low && !yield(max(r.first, low), r.last) {
					return
				}
			}
		}
	}
}
