package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/health"
)

const (
	fetchWait  = 500 * time.Millisecond
	fetchPause = 200 * time.Millisecond // after an error, doubled up to
	mostPause  = 5 * time.Second

	// passOnDelay is how long a retry waits that this worker cannot handle.
	passOnDelay = 10 * time.Second

	// careful is for how long after its first fetch a reader that follows a lost
	// owner hands nothing out that is not marked before.
	careful = 10 * time.Second

	// longPause is how long a pause lasts after which a reader makes sure that
	// it is still the same log.
	longPause = time.Second

	// longestNote is how long after it was made a retry is due at the latest,
	// unless the policy of this worker has longer delays.
	longestNote = 24 * time.Hour
)

// reader follows one partition as long as this member owns it: it fetches ahead, hands
// out, and knows what is done.
type reader struct {
	source    *source
	partition partition
	places    string   // what those of its records begin with
	delayed   *delayed // nil unless it is a partition of a delay topic
	has       span     // when it was assigned
	unsure    bool     // whether it is the same log; belongs to read
	ask       int      // bytes that the next fetch asks for; belongs to read

	ctx    context.Context // the Session of its deliveries
	cancel context.CancelCauseFunc
	work   context.Context // of the goroutines that read, ends before
	stop   context.CancelCauseFunc
	tasks  sync.WaitGroup                   // those
	out    atomic.Int64                     // deliveries that are handed out
	told   atomic.Pointer[health.Partition] // as of the last fetch; nil before
	stands atomic.Int64                     // since when it has more to read and gets no further, in nanoseconds since 1970; 0 if it does, or has not

	mu       sync.Mutex
	memory   memory
	leaving  bool // nothing more is handed out
	progress *progress
	next     int64    // to fetch
	begun    bool     // something was fetched
	log      string   // the IDs of cluster and topic, "" if they are not known
	seen     epochEnd // of the newest batch that was read

	own    *lane            // of the topic, or in a delay topic of all that nobody subscribes to
	lanes  map[string]*lane // by topic
	active []*lane          // that have something to hand out
	turn   int              // the one of them to serve next
	halted int              // how many of lanes are paused
	bytes  int              // in the buffers of those that are not
	aside  int              // in the buffers of those that are
	more   chan struct{}    // signalled when there is room for more

	// After a lost owner, and as long as messages are on trial: what is handed out is
	// marked first, and suspects run alone.
	wary     time.Time // until then
	suspects []*record // that wait, at most maxMarks
	sole     *record   // the last suspect that was taken; nil before
	cleared  []*record // marked, and ready

	dirty int // done since the last commit
	last  commitment
}

// newReader begins where the last owner has committed. An error is an alarm:
// the reader goes on with what there is.
func newReader(s *source, p partition, stored commitment, has span, limits memory) (*reader, error) {
	r := &reader{source: s, partition: p, places: placesOf(p), memory: limits, has: has, unsure: true, ask: min(firstAsk, limits.buffer), more: make(chan struct{}, 1), last: commitment{offset: -1}}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.work, r.stop = context.WithCancelCause(s.ctx)
	low := stored.offset
	var alarm error
	if low >= 0 && (low < has.first || low > has.last) {
		alarm = &rangeError{partition: p, offset: low, first: has.first, last: has.last}
	}
	if low < has.first || low > has.last {
		low, stored.metadata = has.first, ""
	}
	r.resume(low, stored.metadata)
	if !s.topics[p.topic] {
		r.delayed = newDelayed(low, has.last, r.memory)
	}
	r.divide(s.topics)
	if k, ok := s.kept[p]; ok && k.last == stored {
		r.progress, r.next, r.seen, r.wary = k.progress, k.progress.lowWater(), k.seen, time.Time{}
		if len(r.progress.lost) > 0 {
			r.wary = time.Now().Add(careful)
		}
	}
	return r, alarm
}

// resume begins at low, where an owner has left off that wrote metadata.
func (r *reader) resume(low int64, metadata string) {
	text, open := strings.CutPrefix(metadata, ownerOpen)
	text = strings.TrimPrefix(text, ownerClean)
	r.log, r.seen, text = cutLog(text)
	r.progress, r.next, r.wary = readProgress(low, text), low, time.Time{}
	if open || len(r.progress.lost) > 0 {
		r.wary = time.Now().Add(careful)
	}
}

// limit bounds from now on what the partition takes. What is here stays.
func (r *reader) limit(m memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == m {
		return
	}
	if r.memory = m; r.delayed != nil {
		r.delayed.limits = m
	}
	r.roomMade()
}

// leave hands out nothing more, and fetches nothing more.
func (r *reader) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
	r.cleared = r.unmark(r.cleared)
	r.stop(nil)
}

// end gives up to read: the source begins anew with the partition.
func (r *reader) end(cause error) {
	r.stop(cause)
	signal(r.source.broken)
}

// ended notes that n deliveries came back.
func (r *reader) ended(n int) {
	if r.out.Add(-int64(n)) == 0 {
		signal(r.source.idle)
	}
}

// read fetches as long as the partition is not revoked.
func (r *reader) read() {
	s, ctx := r.source, r.work
	pause := fetchPause
	for r.waitForRoom(ctx) {
		got, err := r.fetch(ctx)
		var out *rangeError
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &out):
			s.alarm(err)
			r.end(err) // the next reader begins with what there is
			return
		case err != nil:
			s.fail(r.wayOut(err))
			r.stand(true)
			adapter.Rest(ctx, pause/2+rand.N(pause/2))
			pause = min(2*pause, mostPause)
			continue
		}
		pause = fetchPause
		r.accept(got)
	}
}

// fetch gets what follows, and makes sure that it is of the same log: of the first
// records, after an error or a pause, and when there is a new leader. It does so
// afterwards: by then a broker that has records of a new topic knows its ID.
func (r *reader) fetch(ctx context.Context) (fetched, error) {
	for {
		same := true
		got, err := r.source.fetches.get(ctx, want{r.partition, r.next, r.ask}, r.room(), !r.begun || r.unsure)
		if err == nil && (r.unsure || got.seen.epoch > r.seen.epoch) {
			same, err = r.verify(ctx, got.stable)
		}
		r.unsure = err != nil
		if err != nil {
			return got, err
		}
		r.adapt(got)
		if same {
			return got, nil
		}
	}
}

// wayOut adds to an error that stops the partition how to go on.
func (r *reader) wayOut(err error) error {
	unreadable, ok := errors.AsType[*unreadableError](err)
	if !ok {
		return err
	}
	fix := "repair the log"
	if errors.Is(err, errBomb) {
		fix = "raise Options.MaxDecompressed"
	}
	return fmt.Errorf("%w; it is tried again, and nothing behind it in %s is handed out, while all other partitions go on: "+
		"%s, or skip it while no worker runs, and lose what it has: kafka-consumer-groups.sh --group %s --topic %s:%d --reset-offsets --to-offset %d --execute",
		err, r.partition, fix, r.source.plan.group, r.partition.topic, r.partition.number, unreadable.behind)
}

// adapt has the next fetch ask for what there is room for when it is decoded:
// the rest would be fetched again.
func (r *reader) adapt(got fetched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if got.cut {
		r.ask = min(max(got.used, leastBuffer), r.memory.buffer)
		return
	}
	r.ask = min(r.ask+r.ask/8, r.memory.buffer)
}

// room is what an answer may take. Copies in delay topics have more headers than
// what came in, and must not be passed over.
func (r *reader) room() room {
	r.mu.Lock()
	defer r.mu.Unlock()
	within := room{batch: cmp.Or(r.source.decompressed, leastDecompressed), records: r.memory.buffer}
	if r.delayed != nil {
		within.batch, within.strict = within.batch+headroom, true
	}
	return within
}

// waitForRoom waits for room, and for the end of a pause, and reports whether
// ctx goes on. During a pause the log may have been made anew.
func (r *reader) waitForRoom(ctx context.Context) bool {
	var paused time.Time
	for waited := false; ctx.Err() == nil; waited = true {
		r.mu.Lock()
		rests := r.halted == len(r.lanes)
		full := r.bytes >= r.memory.buffer || r.delayed != nil && r.delayed.full()
		r.mu.Unlock()
		if rests && paused.IsZero() {
			paused = time.Now()
		}
		if rests || full {
			r.stand(!rests)
		} else {
			r.unsure = r.unsure || !paused.IsZero() && time.Since(paused) >= longPause
			if waited { // at its end, no fetch would say so: it returns when there is a record
				r.stand(false)
			}
			return true
		}
		r.source.fetches.rests(r.partition)
		select {
		case <-r.more:
		case <-ctx.Done():
		}
	}
	return false
}

// accept takes what was fetched, without what is done.
func (r *reader) accept(got fetched) {
	r.examine(got.records)
	r.mu.Lock()
	defer r.mu.Unlock()
	at, now := r.next, time.Now()
	r.tell(got, now)
	if !r.begun && !r.wary.IsZero() { // nobody was careful before there was something
		r.wary = now.Add(careful)
	}
	r.begun = true
	for _, record := range got.records {
		r.progress.skip(at, record.offset)
		at = record.offset + 1
		if r.delayed != nil {
			r.delay(record, now)
		}
	}
	r.progress.skip(at, got.next)
	r.next = got.next
	if got.seen.end > r.seen.end {
		r.seen = got.seen
	}
	if r.delayed != nil {
		r.delayed.reached(r.next)
		return
	}
	r.fill(r.own, slices.DeleteFunc(got.records, func(record *record) bool { return r.progress.isDone(record.offset) }))
}

// stand notes whether the partition gets no further, though there is more to read.
func (r *reader) stand(stands bool) {
	switch {
	case !stands:
		r.stands.Store(0)
	case r.stands.Load() == 0:
		r.stands.Store(time.Now().UnixNano())
	}
}

// status is what the last fetch said of the partition, or before one, where it begins.
func (r *reader) status() (p health.Partition) {
	if told := r.told.Load(); told != nil {
		p = *told
	} else {
		r.mu.Lock()
		p = health.Partition{Topic: r.partition.topic, Partition: r.partition.number, Position: r.next, Lag: max(0, r.has.last-r.next)}
		r.mu.Unlock()
	}
	if since := r.stands.Load(); since != 0 {
		p.StalledSince = time.Unix(0, since)
	}
	return p
}

// tell keeps for the status what a fetch says.
func (r *reader) tell(got fetched, now time.Time) {
	r.stand(got.next == r.next && got.next < got.stable)
	p := &health.Partition{Topic: r.partition.topic, Partition: r.partition.number, Position: got.next, Lag: max(0, got.stable-got.next)}
	if last := r.told.Load(); len(got.records) > 0 {
		p.LastRecord = now
	} else if last != nil {
		p.LastRecord = last.LastRecord
	}
	r.told.Store(p)
}

// What a record and a header take in memory besides their bytes, about.
const (
	baseCost   = 128
	headerCost = 64
)

// cost is about what a record takes in memory.
func cost(r *record) int {
	n := baseCost + len(r.key) + len(r.value)
	for _, h := range r.headers {
		n += headerCost + len(h.Key) + len(h.Value)
	}
	return n
}

// ready returns how many deliveries can be handed out. With markedOnly, those that are
// not marked cannot.
func (r *reader) ready(markedOnly bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.leaving:
		return 0
	case !r.wary.IsZero():
		return len(r.cleared)
	case markedOnly:
		return 0
	}
	n := 0
	for _, l := range r.active {
		n += l.ready()
	}
	return n
}

// together is how many deliveries share a piece of memory: one that is held for
// long keeps the others, too.
const together = 15

// handed is a delivery with its token, in one piece of memory.
type handed struct {
	brokers.Delivery
	token
}

// hand appends at most n deliveries.
func (r *reader) hand(ds []*brokers.Delivery, n int) []*brokers.Delivery {
	for n > 0 {
		records, abandoned := r.begin(n)
		if len(records) == 0 {
			break
		}
		ds = r.deliver(ds, records, abandoned, time.Now()) // not before they were due
		n -= len(records)
	}
	return ds
}

// begin takes at most n records that are ready, and returns how often each was
// abandoned, nil if none was.
func (r *reader) begin(n int) (records []*record, abandoned []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.wary.IsZero():
		n = min(n, len(r.cleared))
		records, r.cleared = r.cleared[:n], r.cleared[n:]
	case len(r.active) > 0:
		records = r.takeInTurn(n)
	}
	for i := range records {
		r.progress.start(records[i].offset)
	}
	if len(r.progress.lost) > 0 {
		abandoned = make([]int, len(records))
		for i := range records {
			abandoned[i] = r.progress.abandoned(records[i].offset)
		}
	}
	return records, abandoned
}

// taken makes room for what is not in the buffer of l any more. mu is held.
func (r *reader) taken(l *lane, records []*record) {
	for i := range records {
		size := cost(records[i])
		l.bytes -= size
		r.bytes -= size
	}
	if r.bytes < r.memory.buffer {
		r.roomMade()
	}
}

// roomMade has the partition be read on, where it had no room.
func (r *reader) roomMade() {
	signal(r.more)
	if r.delayed != nil {
		signal(r.delayed.changed)
	}
}

func (r *reader) deliver(ds []*brokers.Delivery, records []*record, abandoned []int, now time.Time) []*brokers.Delivery {
	s := r.source
	r.out.Add(int64(len(records)))
	limits := wire.Limits{Now: now, MaxDelay: r.longest()}
	retried := r.delayed != nil
	var block []handed
	texts := texts{before: r.places}
	for i := range records {
		if len(block) == 0 {
			n := min(together, len(records)-i)
			block = make([]handed, n)
			texts.reserve(records[i : i+n])
		}
		h := &block[0]
		block = block[1:]
		h.token.reader, h.token.record, h.token.offset = r, records[i], records[i].offset
		understand(&h.Delivery, records[i], r.partition, retried, limits, &texts)
		if what := records[i].unread; what != nil {
			h.Unreadable = what.fault(r.partition, records[i].offset)
		}
		switch foreign := retried && !s.topics[h.Message.Topic]; {
		case foreign && records[i].unsigned: // to pass it on would be to sign it
			h.Message.Topic = s.plan.topics[0]
			h.Unreadable = fmt.Errorf("offset %d of %s: nobody who has Options.Secret signed it, and it is of no topic of this worker",
				records[i].offset, r.partition)
		case foreign:
			s.work.Go(func() { s.passOn(&h.token, h.Message, h.Meta()) })
			continue
		case retried && h.Carried != nil && h.Carried.DueAt.After(now): // it says more than is believed
			h.Carried.DueAt = now
		}
		if abandoned != nil {
			h.Abandoned = abandoned[i]
		}
		h.ReceivedAt, h.Session, h.Token = now, r.ctx, &h.token
		ds = append(ds, &h.Delivery)
	}
	return ds
}

// mark chooses what to hand out next while the reader is wary, and marks it. It joins
// what is marked already, so that a slow message keeps no other. The caller commits the
// marks.
func (r *reader) mark(now time.Time) (marked []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.wary.IsZero() || r.leaving:
		return nil
	case r.begun && len(r.progress.lost) == 0 && now.After(r.wary):
		r.wary = time.Time{}
		r.giveBack(r.cleared...)
		r.cleared = nil
		r.source.woken.Wake() // what came meanwhile was not ready before
		return nil
	}
	for n := maxMarks - int(r.progress.out.size); len(marked) < n && len(r.active) > 0; {
		marked = append(marked, r.takeInTurn(n-len(marked))...)
	}
	for _, record := range marked {
		r.progress.start(record.offset)
	}
	return marked
}

// changed returns what there is to commit.
func (r *reader) changed(state string) (commitment, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	low := r.progress.lowWater()
	state += logText(r.log, r.seen)
	c := commitment{low, state + r.progress.metadata(metadataLimit-len(state))}
	if c == r.last || c.offset < r.last.offset {
		return c, false
	}
	r.dirty = 0
	return c, true
}

// committed notes that c is stored, and that marked, which c has marks of, may be handed
// out.
func (r *reader) committed(c commitment, marked []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = c
	r.cleared = append(r.cleared, r.unmark(marked)...)
}

// notCommitted takes back marked, whose marks are not stored.
func (r *reader) notCommitted(marked []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveBack(marked...)
}

// done marks the records of deliveries as done. It reports whether they are: once the
// partition is given up, its progress belongs to another reader.
func (r *reader) done(tokens []*token) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return false
	}
	for _, t := range tokens {
		r.progress.done(t.offset)
		r.cameBack()
		if r.dirty++; r.dirty == commitBatch {
			r.source.commitSoon()
		}
		if r.delayed != nil {
			r.delayed.unwritten = append(r.delayed.unwritten, t.offset)
		}
	}
	return true
}

// cameBack says that one less is handed out than before. mu is held.
func (r *reader) cameBack() {
	if !r.wary.IsZero() && r.progress.out.size%(maxMarks/8) == 0 { // others may follow
		r.source.commitSoon()
	}
}

// release hands a record out again.
func (r *reader) release(record *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() == nil {
		r.giveBack(record)
	}
}

// giveBack has records wait that are not with a handler any more. mu is held.
func (r *reader) giveBack(records ...*record) {
	for _, record := range records {
		r.progress.release(record.offset)
		if r.isSuspect(record) {
			r.suspects = append(r.suspects, record)
		} else {
			l := r.laneOf(record)
			l.again = append(l.again, record)
			r.activate(l)
		}
		r.cameBack()
	}
}

// abandon releases what is handed out when the partition is given up: its worker is
// not lost.
func (r *reader) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.releaseAll()
}

// passOn stores anew a retry of a topic that this worker does not subscribe to,
// for another one that does, who may have any partition of the delay topic. It
// gives up with the partition.
func (s *source) passOn(t *token, m brokers.Message, meta brokers.Meta) {
	if _, told := s.foreign.LoadOrStore(m.Topic, true); !told {
		s.fail(fmt.Errorf("offset %d of %s is a retry of topic %q, which this worker does not subscribe to: this and others like it go back to their delay topic; "+
			"let all workers of the group subscribe to the same topics, or give them groups of their own", t.offset, t.reader.partition, m.Topic))
	}
	meta.DueAt = time.Now().Add(passOnDelay)
	out := outgoing{topic: s.plan.pick(passOnDelay), partition: anywhere, record: copyOf(s.broker.seal, m, meta)}
	ctx := t.reader.ctx // after which it is somebody else's
	for s.broker.producer.produce(ctx, []outgoing{out}) != nil {
		if !adapter.Rest(ctx, mostPause) {
			t.release()
			return
		}
	}
	t.done()
}
