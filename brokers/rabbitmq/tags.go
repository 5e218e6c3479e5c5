package rabbitmq

import "time"

// tags follows the delivery tags of one channel, which count from 1. An ack
// with the flag multiple ends every delivery up to its tag, so it may only be
// sent when each of them is decided. A tag that has not been seen yet, because
// its delivery is on its way or in another buffer, counts as undecided.
type tags struct {
	intake  *intake
	low     uint64    // every tag below is decided
	decided []bool    // low and the tags after it
	waiting []waiting // acked, but not yet on the wire; in the order of ack
}

type waiting struct {
	tag   uint64
	since time.Time
}

func newTags(in *intake) *tags { return &tags{intake: in, low: 1} }

// ack decides that tag is to be acked by a later flush.
func (t *tags) ack(tag uint64, now time.Time) {
	t.waiting = append(t.waiting, waiting{tag, now})
	t.gone(tag)
}

// gone notes a tag that is settled on the wire already. Before that, a
// multiple ack could still ack it.
func (t *tags) gone(tag uint64) {
	if tag < t.low {
		return
	}
	i := int(tag - t.low)
	for len(t.decided) <= i {
		t.decided = append(t.decided, false)
	}
	t.decided[i] = true
	if i > 0 {
		return
	}
	n := 0
	for n < len(t.decided) && t.decided[n] {
		n++
	}
	t.low += uint64(n)
	t.decided = t.decided[n:]
}

// flush returns what to send: an ack of everything up to multiple, unless that
// is 0, and then acks of single tags. Those are the ones that wait for an
// earlier tag and have been acked by old; others go on waiting.
func (t *tags) flush(old time.Time) (multiple uint64, singles []uint64) {
	kept := t.waiting[:0]
	for _, w := range t.waiting {
		switch {
		case w.tag < t.low:
			multiple = max(multiple, w.tag)
		case !w.since.After(old):
			singles = append(singles, w.tag)
		default:
			kept = append(kept, w)
			continue
		}
		t.intake.returned(w.tag)
	}
	t.waiting = kept
	return multiple, singles
}
