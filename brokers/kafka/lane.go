package kafka

import (
	"slices"
	"time"
)

// lane is what a reader has of one topic, which can be paused. A partition of a
// delay topic has one for each topic of the subscription. It is guarded by the
// lock of the reader.
type lane struct {
	paused bool
	active bool // among the active ones of the reader

	again  []*record // released
	buffer queue
	bytes  int // in the buffer

	waiting index
	soon    index // due within ahead; their records are here
	early   int   // the bytes of those

	wary time.Duration // that was left when it was paused
}

func (l *lane) ready() int { return len(l.again) + l.buffer.len() }

// divide makes the lanes.
func (r *reader) divide(topics map[string]bool) {
	r.own, r.lanes = new(lane), make(map[string]*lane)
	if r.delayed == nil {
		r.lanes[r.partition.topic] = r.own
		return
	}
	r.delayed.lanes = append(r.delayed.lanes, r.own)
	for topic := range topics {
		l := new(lane)
		r.lanes[topic] = l
		r.delayed.lanes = append(r.delayed.lanes, l)
	}
}

func (r *reader) laneOf(rec *record) *lane {
	if r.delayed != nil {
		if l, ok := r.lanes[string(retriedTopic(rec))]; ok {
			return l
		}
	}
	return r.own
}

// retriedTopic reads what topic a record of a delay topic is of.
func retriedTopic(r *record) []byte { return r.note(topicHeader) }

// fill appends to the buffer of l. mu is held.
func (r *reader) fill(l *lane, records []*record) {
	if len(records) == 0 {
		return
	}
	size := 0
	for i := range records {
		size += cost(records[i])
	}
	l.buffer.add(records)
	l.bytes += size
	if l.paused {
		r.aside += size
		return
	}
	r.bytes += size
	r.activate(l)
}

// activate has l hand out what it has, if it has something and is not paused, and
// wakes who waits for it. mu is held.
func (r *reader) activate(l *lane) {
	if !l.active && !l.paused && l.ready() > 0 {
		l.active = true
		r.active = append(r.active, l)
		r.source.woken.Wake()
	}
}

func (r *reader) deactivate(l *lane) {
	i := slices.Index(r.active, l)
	if i < 0 {
		return
	}
	l.active = false
	r.active = slices.Delete(r.active, i, i+1)
	if i < r.turn {
		r.turn--
	}
}

// takeInTurn takes at most n records from the next active lane. mu is held.
func (r *reader) takeInTurn(n int) (records []*record) {
	r.turn %= len(r.active)
	l := r.active[r.turn]
	r.turn++
	if len(l.again) > 0 {
		n = min(n, len(l.again))
		records, l.again = l.again[:n], l.again[n:]
	} else {
		records = l.buffer.take(n)
		r.taken(l, records)
	}
	if l.ready() == 0 {
		r.deactivate(l)
	}
	return records
}

// pause stops what is handed out of a topic, or resumes it. What is here stays,
// as far as there is room.
func (r *reader) pause(topic string, paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[topic]
	if l == nil || l.paused == paused {
		return
	}
	if l.paused = paused; paused {
		if r.halt(l, time.Now()); r.halted == len(r.lanes) {
			r.source.fetches.withdraw(r.partition)
		}
	} else {
		r.goOn(l, time.Now())
	}
	signal(r.more)
	if r.delayed != nil {
		r.delayed.reached(r.next) // it may be full now
	}
}

// halt takes l from what is handed out, and its memory from what bounds the
// other lanes. A worker that dies during the pause is none of its fault.
func (r *reader) halt(l *lane, now time.Time) {
	r.halted++
	r.deactivate(l)
	r.bytes -= l.bytes
	r.aside += l.bytes
	r.cleared = r.unmark(r.cleared)
	switch {
	case r.wary.IsZero():
	case !r.begun:
		l.wary = careful
	default:
		l.wary = max(0, r.wary.Sub(now))
	}
	if d := r.delayed; d != nil {
		d.early -= l.early
		d.halted += l.early
		r.putAway(l)
	}
}

// goOn undoes halt, after which as much caution is left as before.
func (r *reader) goOn(l *lane, now time.Time) {
	r.halted--
	r.bytes += l.bytes
	r.aside -= l.bytes
	if until := now.Add(l.wary); l.wary > 0 && until.After(r.wary) {
		r.wary = until
	}
	l.wary = 0
	if d := r.delayed; d != nil {
		d.early += l.early
		d.halted -= l.early
	}
	r.activate(l)
}

// unmark puts those of records back that were about to be handed out and are not: they
// are paused, or the partition is revoked. It returns the others. mu is held.
func (r *reader) unmark(records []*record) (others []*record) {
	if r.halted == 0 && !r.leaving {
		return records
	}
	for _, record := range records {
		if r.leaving || !r.isFlowing(record) {
			r.giveBack(record)
		} else {
			others = append(others, record)
		}
	}
	return others
}

// putAway bounds what paused lanes of a delay partition keep. The rest of l, what
// is due last first, waits in the index, and is loaded when l goes on. mu is held.
func (r *reader) putAway(l *lane) {
	d := r.delayed
	most := d.limits.soon / 2
	for r.aside+d.halted > most && l.soon.len() > 0 {
		w := l.soon.cut()
		_, size := d.drop(w.offset)
		l.early -= size
		d.halted -= size
		l.waiting.add(w.offset, w.due)
	}
	for r.aside+d.halted > most && l.buffer.len() > 0 {
		for _, record := range l.buffer.cut() {
			size := cost(record)
			l.bytes -= size
			r.aside -= size
			l.waiting.add(record.offset, r.dueOf(record, time.Now()))
		}
	}
}
