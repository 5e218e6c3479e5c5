package flow

const (
	paceShare = 0.1 // a share of throttles above which the limit is cut; fewer are single customers
	sameParts = 5   // if all but one in so many messages are throttled again, they are themselves the reason
	sameLeast = 10  // of at least so many messages
	lately    = 512 // runs
)

// throttles tells a limit on calls from one on the calls of some customers, which
// fewer calls of all would not meet. There, nearly all messages that were throttled
// are throttled again, and most others are not.
type throttles struct{ all, again struct{ runs, throttled int } }

// ended counts a run.
func (h *throttles) ended(o Outcome) {
	if h.all.runs++; o == Throttled {
		h.all.throttled++
	}
	if h.all.runs >= lately {
		for _, n := range []*int{&h.all.runs, &h.all.throttled, &h.again.runs, &h.again.throttled} {
			*n /= 2
		}
	}
}

// repeated counts a run of a message that was throttled before.
func (h *throttles) repeated(o Outcome) {
	if h.again.runs++; o == Throttled {
		h.again.throttled++
	}
}

// same reports whether it is some messages that are throttled.
func (h *throttles) same() bool {
	return h.again.runs >= sameLeast && sameParts*h.again.throttled >= (sameParts-1)*h.again.runs && h.all.throttled < h.all.runs/2
}
