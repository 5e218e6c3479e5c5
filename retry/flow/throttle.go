package flow

const (
	paceShare = 0.1 // a share of throttles above which the limit is cut; fewer are single customers
	vainShare = 1.5 // throttles that fewer calls do not lessen may be so many times as many, too
	trial     = 128 // runs whose share of throttles is compared
	trialCut  = 0.7 // the part of an earlier load or share that is less
)

// throttles finds out whether fewer calls mean fewer throttles. They do where the
// dependency allows so many calls a second. They do not where it refuses the calls of
// some customers, however few there are: the limit would only fall and fall.
type throttles struct {
	runs, throttled int     // of this trial
	loads           float64 // the sum of the loads that its runs ended under

	share, load float64 // of an earlier trial under a higher load, or of the last one
	vain        float64 // the share that a lower load did not lessen
}

// most is the share above which the limit is cut.
func (h *throttles) most() float64 { return paceShare + vainShare*h.vain }

// ended counts a run under a load: the limit, or how many run at once if these are
// fewer. It returns the load to go back to, if a lower one did not lessen the
// throttles, or else 0.
func (h *throttles) ended(o Outcome, load float64) float64 {
	h.runs++
	h.loads += load
	if o == Throttled {
		h.throttled++
	}
	if h.runs < trial {
		return 0
	}
	share, mean, before := float64(h.throttled)/trial, h.loads/trial, *h
	h.runs, h.throttled, h.loads = 0, 0, 0
	if share > h.most() {
		h.vain = 0
	}
	if mean > trialCut*before.load && mean < before.load {
		return 0
	}
	if mean < before.load && share > max(paceShare, trialCut*before.share) && share < 0.5 {
		h.vain = share
		return before.load
	}
	h.share, h.load = share, mean
	return 0
}
