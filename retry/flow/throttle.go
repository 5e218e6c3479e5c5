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

// ended counts what a message says.
func (h *throttles) ended(e End) {
	if h.all.runs++; e.Outcome == Throttled {
		h.all.throttled++
	}
	if e.Again {
		if h.again.runs++; e.Outcome == Throttled {
			h.again.throttled++
		}
	}
	if h.all.runs >= lately {
		for _, n := range []*int{&h.all.runs, &h.all.throttled, &h.again.runs, &h.again.throttled} {
			*n /= 2
		}
	}
}

// same reports whether it is some messages that are throttled.
func (h *throttles) same() bool {
	return h.again.runs >= sameLeast && sameParts*h.again.throttled >= (sameParts-1)*h.again.runs && h.all.throttled < h.all.runs/2
}
