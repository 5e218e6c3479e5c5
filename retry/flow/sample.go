package flow

// The sample holds the last outcomes of so many different messages, none older
// than sampleAge seconds, or twice as long as runs take that time out.
const (
	sampleSize = 64
	sampleAge  = 120.0
)

// sample is the last outcome of each of the last different messages, in a ring,
// oldest first.
type sample struct {
	entries  [sampleSize]entry
	first, n int
	tally    counts  // of the entries
	renewed  float64 // when a success was last left out because all entries were successes
	age      float64 // how old an entry gets
}

type entry struct {
	who uint64
	at  float64
	o   Outcome
}

// entry returns the nth oldest.
func (s *sample) entry(n int) *entry { return &s.entries[(s.first+n)%sampleSize] }

// add takes in the outcome of one message. A success after nothing but successes
// changes nothing but their age, so that a healthy run costs no search.
func (s *sample) add(t float64, who uint64, o Outcome) {
	if o == Success && s.tally[Success] == sampleSize {
		s.renewed = t
		return
	}
	if i := s.find(who); i >= 0 {
		s.remove(i)
	} else if s.n == sampleSize {
		s.remove(0)
	}
	*s.entry(s.n) = entry{who, t, o}
	s.n++
	s.tally[o]++
}

// find returns the place of a message, or -1.
func (s *sample) find(who uint64) int {
	for i := range s.entries {
		if place := (i - s.first + sampleSize) % sampleSize; s.entries[i].who == who && place < s.n {
			return place
		}
	}
	return -1
}

// remove forgets the ith oldest message.
func (s *sample) remove(i int) {
	s.tally[s.entry(i).o]--
	s.n--
	if i == 0 {
		s.first = (s.first + 1) % sampleSize
		return
	}
	for ; i < s.n; i++ {
		*s.entry(i) = *s.entry(i + 1)
	}
}

// counts returns how many messages ended in each way, and forgets the old ones.
func (s *sample) counts(t float64) counts {
	for s.n > 0 && t-max(s.entry(0).at, s.renewed) > max(s.age, sampleAge) {
		s.remove(0)
	}
	return s.tally
}

// counts is a number of messages for each Outcome.
type counts [outcomes]int

// bad is the number of failures that the messages alone do not explain.
func (n counts) bad() int { return n[Unknown] + n[Overload] + n[Timeout] + n[Throttled] }

// poisoned reports whether practically all messages are poison.
func (n counts) poisoned() bool {
	return n[Poison] >= 10 && 10*n[Poison] >= 9*(n[Poison]+n[Success]+n.bad())
}
