package flow

const (
	paceShare = 0.1 // a share of throttles above which the limit is cut; fewer are single customers
	vainShare = 1.5 // throttles that fewer calls do not lessen may be so many times as many, too
	trial     = 64  // runs whose share of throttles is compared
	trialCut  = 0.7 // the part of an earlier limit or share that is less
)

// throttles finds out whether fewer calls mean fewer throttles. They do where the
// dependency allows so many calls a second. They do not where it refuses the calls of
// some customers, however few there are: the limit would only fall and fall.
type throttles struct {
	runs, throttled int     // of this trial
	limits          float64 // the sum of those that its runs ended under

	share, limit float64 // of an earlier trial under a higher limit, or of the last one
	vain         float64 // the share that a lower limit did not lessen
}

// most is the share above which the limit is cut.
func (h *throttles) most() float64 { return paceShare + vainShare*h.vain }

// ended counts a run under limit. It returns the limit to go back to, if a lower one
// did not lessen the throttles, or else limit.
func (h *throttles) ended(o Outcome, limit float64) float64 {
	h.runs++
	h.limits += limit
	if o == Throttled {
		h.throttled++
	}
	if h.runs < trial {
		return limit
	}
	share, mean, before := float64(h.throttled)/trial, h.limits/trial, *h
	h.runs, h.throttled, h.limits = 0, 0, 0
	if share > h.most() {
		h.vain = 0
	}
	if mean > trialCut*before.limit && mean < before.limit {
		return limit
	}
	if mean < before.limit && share > max(paceShare, trialCut*before.share) && share < 0.5 {
		h.vain = share
		return before.limit
	}
	h.share, h.limit = share, mean
	return limit
}
