package flow

import "math"

// meter measures what is usual for the dependency.
type meter struct {
	usual       float64 // mean duration of a success over ten minutes; 0 if unknown
	recent      float64 // the same of the last 32
	normal      float64 // successes a second while nothing was held back
	lastSuccess float64
	since       float64 // the last success, or else the first failure
	successes   float64

	second      float64 // the second that is counted
	now, before int     // successes in it, and in the one before
	best        [2]int  // successes in the best second of these bestOf seconds, and of those before

	period    float64 // the begin of ten seconds in which normal is measured
	count     int     // successes in them
	disturbed bool    // they held work back, or met failures
}

func newMeter() meter { return meter{lastSuccess: never, since: never, second: never} }

// bestOf is how many seconds share their best one.
const bestOf = 4

// window is the number of successes of the recent mean.
const window = 32

// duration is how long a run usually takes.
func (m *meter) duration() float64 {
	if m.usual == 0 {
		return assumed
	}
	return m.usual
}

// silence is how long no run has succeeded.
func (m *meter) silence(t float64) float64 { return t - m.since }

// rate is how many runs a second succeed now.
func (m *meter) rate() float64 { return float64(max(m.now, m.before)) }

// served is how many runs succeeded in the best second of the last few.
func (m *meter) served() float64 { return float64(max(m.now, m.best[0], m.best[1])) }

// ended counts a run.
func (m *meter) ended(t float64, o Outcome) {
	if m.since == never || o == Success {
		m.since = t
	}
	if s := math.Floor(t); s != m.second {
		m.before = 0
		if s == m.second+1 {
			m.before = m.now
		}
		m.best[0] = max(m.best[0], m.now)
		if math.Floor(s/bestOf) != math.Floor(m.second/bestOf) {
			m.best = [2]int{0, m.best[0]}
		}
		m.now, m.second = 0, s
	}
	if t-m.period >= 10 {
		if m.count > 0 && !m.disturbed {
			rate := float64(m.count) / (t - m.period)
			if m.normal == 0 {
				m.normal = rate
			}
			m.normal += (rate - m.normal) / 10
		}
		m.period, m.count, m.disturbed = t, 0, false
	}
	if o.bad() {
		m.disturbed = true
	}
}

// succeeded counts a success that took so long.
func (m *meter) succeeded(t, took float64) {
	m.count++
	m.now++
	m.successes++
	took = max(took, 1e-4)
	few := 1.0 / window
	if m.successes < window {
		few = 1 / m.successes
	}
	m.recent += (took - m.recent) * few
	m.usual += (took - m.usual) * max(1/m.successes, min(few, (t-m.lastSuccess)*(1/memory)))
	m.lastSuccess = t
}
