package kafka

import (
	"cmp"
	"maps"
	"slices"
)

// progress follows which records of a partition are done, and which are
// with a handler. It is the truth of one owner; metadata takes it to the next.
// None of its methods, those that only ask included, may run at the same time
// as another: the lock is the caller's.
type progress struct {
	low   int64         // every offset below is done
	ahead offsetSet     // the offsets above low that are done
	out   offsetSet     // handed out, and neither done nor released
	lost  map[int64]int // the suspects, and how many owners were lost with each
}

// newProgress returns the progress of a partition whose records below low are
// all done.
func newProgress(low int64) *progress {
	return &progress{low: low}
}

// done marks a record as done, for ever. Doing it twice is harmless.
func (p *progress) done(offset int64) {
	if offset < p.low {
		return
	}
	p.out.remove(offset)
	delete(p.lost, offset)
	if offset > p.low {
		p.ahead.add(offset, offset+1)
		return
	}
	p.low++
	p.advance()
}

// skip says that [from, to) holds no records for us: control batches, holes
// that compaction left, aborted transactions. It costs the same for any width.
func (p *progress) skip(from, to int64) {
	from = max(from, p.low)
	if from >= to {
		return
	}
	maps.DeleteFunc(p.lost, func(offset int64, _ int) bool { return from <= offset && offset < to })
	p.ahead.add(from, to)
	if from == p.low {
		p.advance()
	}
}

// cut returns what is left of p if the log ends at end: what follows there are other
// records.
func (p *progress) cut(end int64) *progress {
	left := newProgress(min(p.low, end))
	for from, to := range p.ahead.runs(left.low) {
		if to = min(to, end); from < to {
			left.ahead.add(from, to)
		}
	}
	left.lost = maps.Clone(p.lost)
	maps.DeleteFunc(left.lost, func(offset int64, _ int) bool { return offset >= end })
	return left
}

// advance moves the low-water mark over what is done.
func (p *progress) advance() {
	p.low = p.ahead.firstAbsent(p.low)
	p.ahead.dropBelow(p.low)
	p.out.dropBelow(p.low)
}

// isDone reports whether offset is done or skipped.
func (p *progress) isDone(offset int64) bool {
	return offset < p.low || p.ahead.has(offset)
}

// lowWater returns the offset to commit: every offset below it is done.
func (p *progress) lowWater() int64 { return p.low }

// start says that a record is handed out. From now on its mark counts this
// owner as lost, too, until the record is done or released.
func (p *progress) start(offset int64) {
	if !p.isDone(offset) {
		p.out.add(offset, offset+1)
	}
}

// release says that a record came back undone and in order. The owners lost
// with it before still count.
func (p *progress) release(offset int64) {
	p.out.remove(offset)
}

// releaseAll releases everything that is handed out.
func (p *progress) releaseAll() { p.out = offsetSet{} }

// abandoned returns how many earlier owners were lost while they had the
// record. A record that is not done with more than 0 is a suspect.
func (p *progress) abandoned(offset int64) int { return p.lost[offset] }

// mark says how many owners will have been lost with a record if the present
// one gets lost now.
type mark struct {
	offset int64
	count  int
}

// maxMarks bounds the marks of a partition.
const maxMarks = 64

// marks returns the marks of the suspects, and then those of the lowest
// offsets that are handed out, at most maxMarks, sorted by offset.
func (p *progress) marks() []mark {
	var marks []mark
	for offset, count := range p.lost {
		if p.out.has(offset) {
			count++
		}
		marks = append(marks, mark{offset, count})
	}
	for from, to := range p.out.runs(p.low) {
		for offset := from; offset < to && len(marks) < maxMarks; offset++ {
			if p.lost[offset] == 0 && !p.isDone(offset) {
				marks = append(marks, mark{offset, 1})
			}
		}
		if len(marks) >= maxMarks {
			break
		}
	}
	slices.SortFunc(marks, func(a, b mark) int { return cmp.Compare(a.offset, b.offset) })
	return marks
}
