package breaker

import "fmt"

// window holds the latest outcome of each of the last size different messages,
// and the failures since the last success.
type window struct {
	size     int
	entries  []entry // newest last; nil before the first report
	failures int     // among entries

	messages int // that failed since the last success: the newest entries
	runs     int // of them that failed
	severe   int // of the runs
}

// entry is the outcome of a message. Those of message 0 are all of different ones.
type entry struct {
	of     uint64
	failed bool
}

// succeeded records a success of a message.
func (w *window) succeeded(of uint64) {
	w.put(entry{of: of})
	w.messages, w.runs, w.severe = 0, 0, 0
}

// failed records a failure of a message.
func (w *window) failed(of uint64, severe bool) {
	streak := len(w.entries) - w.messages // where its entries begin
	if w.put(entry{of: of, failed: true}) < streak {
		w.messages++
	}
	w.runs++
	if severe {
		w.severe++
	}
}

// put makes e the newest entry. It returns which entry had to go, that of the
// same message or the oldest; -1 if none.
func (w *window) put(e entry) (gone int) {
	if w.entries == nil {
		w.entries = make([]entry, 0, w.size)
	}
	gone = w.find(e.of)
	if gone < 0 && len(w.entries) == w.size {
		gone = 0
	}
	if gone >= 0 {
		w.failures -= weight(w.entries[gone])
		copy(w.entries[gone:], w.entries[gone+1:])
		w.entries = w.entries[:len(w.entries)-1]
	}
	w.failures += weight(e)
	w.entries = append(w.entries, e)
	return gone
}

func (w *window) find(of uint64) int {
	if of == 0 {
		return -1
	}
	for i := len(w.entries) - 1; i >= 0; i-- {
		if w.entries[i].of == of {
			return i
		}
	}
	return -1
}

func weight(e entry) int {
	if e.failed {
		return 1
	}
	return 0
}

// streak is the failed runs since the last success, severe ones counted twice.
func (w *window) streak() int { return w.runs + w.severe }

// healthy reports whether another success would change nothing: each entry is
// one, and which messages they are of makes no difference to what comes next.
func (w *window) healthy() bool { return len(w.entries) == w.size && w.failures == 0 }

// reset forgets all but one success.
func (w *window) reset(of uint64) {
	w.entries, w.failures = w.entries[:0], 0
	w.succeeded(of)
}

// verdict returns why the breaker should open; empty if it should not.
func (w *window) verdict(c *Config) string {
	n := len(w.entries)
	// The quotient of whole numbers is rounded as the literal 0.9 is: 45 of 50
	// are 0.9.
	if n == c.Window && float64(w.failures)/float64(n) >= c.Ratio || n >= c.MinRuns && w.failures == n {
		return fmt.Sprintf("%d of the last %d messages failed", w.failures, n)
	}
	if c.Streak < 0 || w.streak() < c.Streak || w.messages < streakMessages && w.failures < n {
		return ""
	}
	if w.severe > 0 {
		return fmt.Sprintf("%d runs in a row failed (%d severe)", w.runs, w.severe)
	}
	return fmt.Sprintf("%d runs in a row failed", w.runs)
}
