package flow

// The sample holds the last outcomes of so many different messages, none older
// than sampleAge seconds.
const (
	sampleSize = 64
	sampleAge  = 120.0
)

// sample is the last outcome of each of the last different messages, oldest
// first.
type sample struct {
	entries [sampleSize]entry
	n       int
	good    int     // entries that are successes
	renewed float64 // when a success was last left out because all entries were successes
}

type entry struct {
	who uint64
	at  float64
	o   Outcome
}

// add takes in the outcome of one message. A success after nothing but successes
// changes nothing but their age, so that a healthy run costs no search.
func (s *sample) add(t float64, who uint64, o Outcome) {
	if o == Success && s.good == sampleSize {
		s.renewed = t
		return
	}
	kept := s.entries[:0]
	s.good = 0
	for _, e := range s.entries[:s.n] {
		if e.who != who {
			kept = append(kept, e)
			s.good += success(e.o)
		}
	}
	if len(kept) == sampleSize {
		s.good -= success(kept[0].o)
		kept = kept[:copy(kept, kept[1:])]
	}
	kept = append(kept, entry{who, t, o})
	s.good += success(o)
	s.n = len(kept)
}

func success(o Outcome) int {
	if o == Success {
		return 1
	}
	return 0
}

// counts returns how many messages ended in each way.
func (s *sample) counts(t float64) (n counts) {
	for _, e := range s.entries[:s.n] {
		if t-max(e.at, s.renewed) <= sampleAge {
			n[e.o]++
		}
	}
	return n
}

// counts is a number of messages for each Outcome.
type counts [outcomes]int

// bad is the number of failures that the messages alone do not explain.
func (n counts) bad() int { return n[Unknown] + n[Overload] + n[Timeout] + n[Throttled] }

// poisoned reports whether practically all messages are poison.
func (n counts) poisoned() bool {
	return n[Poison] >= 10 && 10*n[Poison] >= 9*(n[Poison]+n[Success]+n.bad())
}
