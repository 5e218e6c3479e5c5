package sqstest

import (
	"time"
)

// exhausted moves a message to the dead-letter queue if it was received as
// often as the redrive policy allows. Without that queue it stays.
func (q *queue) exhausted(m *message, now time.Time) bool {
	policy := q.settings.redrive
	if policy == nil || m.here < policy.max {
		return false
	}
	target := q.server.byARN(policy.target)
	if target == nil || target == q {
		return false
	}
	q.remove(m)
	q.report.Moved++
	m.source = q.report.ARN
	m.here = 0
	target.arrive(m, now)
	return true
}

// arrive takes a message that another queue gave up. On a standard queue it
// keeps the time when it was sent; on a FIFO queue it starts anew, and its own
// ID is its deduplication ID.
func (q *queue) arrive(m *message, now time.Time) {
	if q.fifo {
		m.sent = now
		m.dedup = m.id
		m.sequence = q.server.nextSequence()
	}
	m.generation++
	q.put(m, now, 0)
}
