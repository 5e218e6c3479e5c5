package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/internal/text"
)

const (
	ahead  = 10 * time.Second
	urgent = time.Second

	loadBytes  = 128 << 10 // that a fetch of some of those asks for
	loadedSize = 1 << 10   // that one is taken for

	doneHeader  = "redrive-done"
	dueHeader   = "redrive-due-at"
	crashHeader = "redrive-crashes"
	topicHeader = "redrive-topic"
	doneMark    = "1"
)

// delayed is what a reader knows of a delay partition: all that waits there, by
// due time. It is guarded by the lock of the reader.
type delayed struct {
	limits    memory
	lanes     []*lane
	records   map[int64]*record // of what waits or is due soon, by offset
	bytes     int
	early     int           // of the bytes, those that are due soon
	halted    int           // and those that are and whose topic is paused
	unwritten []int64       // done, without a done record
	target    int64         // nothing is handed out before all up to here is read
	changed   chan struct{} // signalled when something may be due earlier
}

// newDelayed is for a partition that is read from low on and ends at end.
func newDelayed(low, end int64, limits memory) *delayed {
	d := &delayed{limits: limits, records: make(map[int64]*record), changed: make(chan struct{}, 1)}
	if low < end {
		d.target = end
	}
	return d
}

// full reports whether no more may wait. What belongs to paused topics leaves
// some room for the others.
func (d *delayed) full() bool {
	all, flowing := 0, 0
	for _, l := range d.lanes {
		n := l.waiting.len()
		all += n
		if !l.paused {
			flowing += n
		}
	}
	most, reserve := d.limits.waiting, d.limits.waiting/4
	return all >= most && (flowing >= reserve || all >= most+reserve)
}

// reached notes how far the partition is read: until the end that it had when
// it was assigned, a done record may follow for what waits.
func (d *delayed) reached(next int64) {
	if next >= d.target || d.full() {
		d.target = 0
	}
	signal(d.changed)
}

// delay files a record of a delay partition. mu is held.
func (r *reader) delay(rec *record, now time.Time) {
	d := r.delayed
	if value, ok := isDoneRecord(rec); ok {
		offsets, err := readDone(value, rec.offset)
		if rec.unsigned {
			offsets, err = nil, fmt.Errorf("%w: nobody who has Options.Secret signed it", errDoneRecord)
		}
		if err != nil {
			r.source.fail(fmt.Errorf("offset %d of %s: %w", rec.offset, r.partition, err))
		}
		for _, offset := range offsets {
			r.progress.done(offset)
		}
		r.progress.done(rec.offset)
		return
	}
	if r.progress.isDone(rec.offset) {
		return
	}
	due, l := r.dueOf(rec, now), r.laneOf(rec)
	if d.target == 0 && !l.paused && d.admits(due, now, 0) { // before that, what is due first may come last
		d.hasten(l, d.keep(rec), due)
		return
	}
	d.shelve(l, rec, due)
}

// shelve has a record of l wait, and keeps it if there is room.
func (d *delayed) shelve(l *lane, rec *record, due int64) {
	if d.bytes-d.early-d.halted+cost(rec) <= d.limits.bodies {
		d.keep(rec)
	}
	l.waiting.add(rec.offset, due)
}

// keep holds on to a record, and to none that came with it.
func (d *delayed) keep(rec *record) *record {
	rec = rec.clone()
	d.records[rec.offset] = rec
	d.bytes += cost(rec)
	return rec
}

// millis reads a due time, in Unix milliseconds: 0 if that cannot be read.
func millis(value []byte) int64 { return max(0, text.Time(string(value)).UnixMilli()) }

// longest is how long after it was made a retry is due at the latest.
func (r *reader) longest() time.Duration { return max(r.source.sub.MaxDelay, longestNote) }

// dueOf is when a record is handed out, in Unix milliseconds. No worker notes a
// time that is farther from when the record was made, nor makes it in the future
// but for the difference between two clocks: whoever does so is not let hold up the
// partition, not even where workers come and go all the time.
func (r *reader) dueOf(rec *record, now time.Time) int64 {
	made := rec.time
	if made.After(now) || made.UnixMilli() <= 0 { // which also is what has no time
		made = now
	}
	if rec.unsigned || rec.time.Sub(now) > r.longest() {
		return 0
	}
	return min(dueOf(rec), made.Add(r.longest()).UnixMilli())
}

// examine finds which records of a delay topic are not signed. The lock need not be
// held, as nobody else has them yet.
func (r *reader) examine(records []*record) {
	seal := r.source.broker.seal
	if r.delayed == nil || !seal.Signs() {
		return
	}
	for _, rec := range records {
		topic, number := "", ""
		if _, ok := isDoneRecord(rec); ok {
			topic, number = r.partition.topic, strconv.Itoa(r.partition.number)
		}
		rec.unsigned = !seal.Believes(headersOf(rec), topic, number, rec.value)
	}
}

// dueOf reads the due time of a record, in Unix milliseconds: 0, which is due,
// where there is none.
func dueOf(r *record) int64 { return millis(r.note(dueHeader)) }

// note reads one of the notes of a copy, as [wire.Decode] does: packed, or else in a
// header of its own, as earlier versions stored it.
func (r *record) note(name string) (note []byte) {
	opened := false
	for _, h := range slices.Backward(r.headers) {
		switch {
		case h.Key == wire.Packed && !opened: // the last one counts
			opened = true
			if packed := wire.Lookup(h.Value, name); packed != nil {
				return packed
			}
		case h.Key == name && note == nil:
			note = h.Value
		}
	}
	return note
}

// feed moves what is due to the buffer, as long as the partition is not revoked. It does
// not wait for what is loaded meanwhile.
func (r *reader) feed() {
	ctx := r.work
	timer := time.NewTimer(0)
	defer timer.Stop()
	var work sync.WaitGroup
	defer work.Wait()
	loading, loaded := false, make(chan struct{}, 1)
	for ctx.Err() == nil {
		missing, next := r.due(time.Now(), !loading)
		if len(missing) > 0 {
			loading = true
			work.Go(func() {
				r.load(ctx, missing)
				loaded <- struct{}{}
			})
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-r.delayed.changed:
		case <-loaded:
			loading = false
		case <-ctx.Done():
		}
	}
}

// due moves what is due at now to the buffer, and what soon is to soon, if more
// of that is wanted. It returns what of it has no record here and is to be
// loaded, and when to come again, unless that is loaded before.
func (r *reader) due(now time.Time, more bool) (missing []missed, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.delayed
	if d.target > 0 || r.bytes >= r.memory.buffer {
		return nil, now.Add(time.Minute) // not all is read yet, or nobody takes it
	}
	if more && d.wants(now) {
		missing = r.sweep(now)
	}
	signal(r.more)
	r.moveDue(now)
	next = now.Add(time.Minute)
	for _, l := range d.lanes {
		if due, ok := l.soon.next(); ok && !l.paused && time.UnixMilli(due).Before(next) {
			next = time.UnixMilli(due)
		}
	}
	if l, due := d.first(); l != nil && more && len(missing) == 0 && d.early < d.limits.soon {
		at := time.UnixMilli(due).Add(-ahead / 2)
		if !at.After(now) { // soon is too full for that
			at = time.UnixMilli(due).Add(-urgent)
		}
		if at.Before(next) {
			next = at
		}
	}
	return missing, next
}

// missed is a record that is due soon and is to be loaded.
type missed struct {
	waiting
	lane *lane
}

// sweep moves what soon is due, and has room, to soon. It returns what of it is to
// be loaded. mu is held.
func (r *reader) sweep(now time.Time) (missing []missed) {
	d := r.delayed
	for {
		l, due := d.first()
		if l == nil || !d.admits(due, now, len(missing)) {
			return missing
		}
		offset, _, _ := l.waiting.pop(due)
		switch rec, here := d.records[offset]; {
		case r.progress.isDone(offset):
			d.drop(offset)
		case here:
			d.hasten(l, rec, due)
		default:
			missing = append(missing, missed{waiting{due, offset}, l})
		}
	}
}

// first returns the lane with what is due first of all that waits and is not
// paused, nil if there is nothing.
func (d *delayed) first() (first *lane, due int64) {
	for _, l := range d.lanes {
		if at, ok := l.waiting.next(); ok && !l.paused && (first == nil || at < due) {
			first, due = l, at
		}
	}
	return first, due
}

// wants reports whether it is time to get more of what is due soon: much of it
// at a time, or what cannot wait.
func (d *delayed) wants(now time.Time) bool {
	l, due := d.first()
	wait := time.UnixMilli(due).Sub(now)
	return l != nil && (wait <= ahead/2 && d.early < d.limits.soon/4 || wait <= urgent)
}

// moveDue moves what is due from soon to the buffers. A message that is on trial makes
// the reader wary, so that its mark is stored before it runs: every worker that it kills
// counts. mu is held.
func (r *reader) moveDue(now time.Time) {
	d := r.delayed
	for _, l := range d.lanes {
		var ready []*record
		for !l.paused {
			offset, _, ok := l.soon.pop(now.UnixMilli())
			if !ok {
				break
			}
			rec, size := d.drop(offset)
			l.early -= size
			d.early -= size
			if r.progress.isDone(offset) {
				continue
			}
			if rec.note(crashHeader) != nil {
				r.wary = now.Add(careful)
			}
			if r.isSuspect(rec) {
				r.suspects = append(r.suspects, rec)
			} else {
				ready = append(ready, rec)
			}
		}
		r.fill(l, ready)
	}
}

// admits reports whether soon takes a record, besides n that are to be loaded:
// a fourth of the room is for what cannot wait.
func (d *delayed) admits(due int64, now time.Time, n int) bool {
	wait, taken := time.UnixMilli(due).Sub(now), d.early+n*loadedSize
	return wait <= ahead && taken < d.limits.soon*3/4 || wait <= urgent && taken < d.limits.soon
}

// hasten moves a record of l that is in records to soon.
func (d *delayed) hasten(l *lane, rec *record, due int64) {
	l.soon.add(rec.offset, due)
	l.early += cost(rec)
	d.early += cost(rec)
}

// drop takes a record out of records, where it counts size.
func (d *delayed) drop(offset int64) (rec *record, size int) {
	rec, ok := d.records[offset]
	if ok {
		size = cost(rec)
		d.bytes -= size
		delete(d.records, offset)
	}
	return rec, size
}

// load fetches what is due soon, as much as there is room for.
func (r *reader) load(ctx context.Context, missing []missed) {
	s := r.source
	slices.SortFunc(missing, func(a, b missed) int { return cmp.Compare(a.offset, b.offset) })
	pause := fetchPause
	for ctx.Err() == nil {
		if missing = r.waitOn(missing); len(missing) == 0 {
			return
		}
		got, err := s.broker.client.fetch(ctx, r.partition, missing[0].offset, loadBytes, 0, r.room())
		out, isOut := errors.AsType[*rangeError](err)
		switch {
		case ctx.Err() != nil:
			return
		case isOut && out.first > missing[0].offset:
			s.alarm(err)
			missing, _ = r.loaded(missing, fetched{next: out.first})
			continue
		case isOut && out.first >= 0:
			s.alarm(err)
			r.end(err)
			return
		case err != nil:
			s.fail(r.wayOut(err))
		case got.next > missing[0].offset:
			var gone int
			if missing, gone = r.loaded(missing, got); gone > 0 {
				s.alarm(fmt.Errorf("%d of the retries that waited in %s are not there any more, and are lost: they were deleted, or compacted (cleanup.policy)", gone, r.partition))
			}
			pause = fetchPause
			continue
		}
		adapter.Rest(ctx, pause) // also where a new leader does not show all yet
		pause = min(2*pause, mostPause)
	}
}

// waitOn has what of missing there is no room for, or is paused, wait on. It
// returns the rest.
func (r *reader) waitOn(missing []missed) []missed {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.delayed.early >= r.delayed.limits.soon || r.bytes >= r.memory.buffer
	if !full && r.halted == 0 {
		return missing
	}
	return slices.DeleteFunc(missing, func(w missed) bool {
		if !full && !w.lane.paused {
			return false
		}
		w.lane.waiting.add(w.offset, w.due)
		return true
	})
}

// loaded takes what got has of missing, and returns what is missing still, and
// how many should have been there and are not any more: those are done.
func (r *reader) loaded(missing []missed, got fetched) (left []missed, gone int) {
	r.examine(got.records)
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.delayed
	records := got.records
	for len(missing) > 0 && missing[0].offset < got.next {
		w := missing[0]
		missing = missing[1:]
		for len(records) > 0 && records[0].offset < w.offset {
			records = records[1:]
		}
		if len(records) == 0 || records[0].offset > w.offset {
			if !r.progress.isDone(w.offset) {
				r.progress.done(w.offset)
				gone++
			}
			continue
		}
		if w.lane.paused {
			d.shelve(w.lane, records[0], w.due)
			continue
		}
		d.hasten(w.lane, d.keep(records[0]), w.due)
	}
	r.moveDue(time.Now())
	signal(d.changed)
	return missing, gone
}

// unwritten takes what is done above the low-water mark and has no done record,
// in portions for one each. A log that is not the same any more gets none: there the
// offsets are those of other records.
func (r *reader) unwritten() [][]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.delayed
	if _, out := errors.AsType[*rangeError](context.Cause(r.work)); out {
		return nil
	}
	low := r.progress.lowWater()
	fresh := slices.DeleteFunc(d.unwritten, func(offset int64) bool { return offset < low })
	d.unwritten = nil
	return slices.Collect(doneBatches(fresh))
}

// notWritten takes back what has no done record after all.
func (r *reader) notWritten(offsets []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delayed.unwritten = append(r.delayed.unwritten, offsets...)
}

// doneRecord is one for p, which seal signs: it is no good for another partition.
func doneRecord(seal adapter.Seal, p partition, value []byte) record {
	h := brokers.Headers{{Name: doneHeader, Value: doneMark}}
	return recordOf(brokers.Message{Body: value}, seal.Sign(h, p.topic, strconv.Itoa(p.number), value))
}

// isDoneRecord returns the value of a done record. Copies of messages have
// another header besides, or instead.
func isDoneRecord(r *record) ([]byte, bool) {
	h := r.headers
	if len(h) == 2 && h[1].Key == adapter.SignatureHeader {
		h = h[:1]
	}
	if r.key != nil || len(h) != 1 || h[0].Key != doneHeader || string(h[0].Value) != doneMark {
		return nil, false
	}
	return r.value, true
}
