package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// mostAnswer bounds an answer with the records of many partitions.
	mostAnswer = 16 << 20

	// regather is how long the next fetch waits for readers that have just been
	// answered and may ask again.
	regather = 20 * time.Millisecond

	// lateWait is how long the second fetch waits for records.
	lateWait = 100 * time.Millisecond
)

// fetches gets the records of all partitions of a source: one fetch at a time
// from each leader, for all of its partitions whose readers ask, and a second one for
// those that ask while it waits.
type fetches struct {
	client *client
	ctx    context.Context // ends with the source

	mu          sync.Mutex
	leaders     map[int32]*leader
	where       map[partition]place
	leadersOnly time.Time // until then no replica is asked
	work        sync.WaitGroup
}

// place is the broker to ask for a partition: its leader, as last seen, or until some
// time a replica that the leader has named.
type place struct {
	node  int32
	until time.Time // zero for the leader
}

const (
	// replicaFor is how long a replica is asked before the leader is again.
	replicaFor = 5 * time.Minute

	// noReplica is for how long no replica is asked after one has failed.
	noReplica = time.Minute
)

// want is what a reader asks for: what follows an offset.
type want struct {
	partition
	offset   int64
	maxBytes int
}

// request is a want and the channel of its reader.
type request struct {
	want
	first bool // answered also if there is nothing
	found chan found
}

// found is the answer to a request. Without a part the partition has nothing.
type found struct {
	part   *kmsg.FetchResponseTopicPartition
	answer *fetchAnswer // that the part belongs to
	err    error
	moved  bool // another broker is to be asked
}

func newFetches(ctx context.Context, c *client) *fetches {
	return &fetches{client: c, ctx: ctx, leaders: make(map[int32]*leader), where: make(map[partition]place)}
}

// get returns the records from an offset on, as fetch of the client does. It waits
// until there are some; with first it returns after one fetch in any case. After
// withdraw it returns none.
func (f *fetches) get(ctx context.Context, w want, within room, first bool) (fetched, error) {
	var got found
	err := retry(ctx, func() error {
		got = f.once(ctx, w, first)
		for got.moved {
			got = f.once(ctx, w, first)
		}
		return got.err
	})
	if err == nil && got.part == nil {
		return fetched{next: w.offset}, nil
	}
	return f.client.decode(ctx, got.part, got.answer, err, w.partition, w.offset, within)
}

// once runs one request.
func (f *fetches) once(ctx context.Context, w want, first bool) found {
	node, err := f.nodeOf(ctx, w.partition, true)
	if err != nil {
		return found{err: f.client.Reread(ctx, w.topic, err)}
	}
	e := &request{want: w, first: first, found: make(chan found, 1)}
	l := f.leader(node)
	l.add(e)
	var got found
	select {
	case got = <-e.found:
	case <-ctx.Done():
		l.withdraw(w.partition)
		select {
		case got = <-e.found:
			if got.answer != nil {
				got.answer.release()
			}
		default:
		}
		return found{err: context.Cause(ctx)}
	}
	if got.err != nil {
		if f.forget(w.partition) && ctx.Err() == nil { // a replica: its leader knows better
			return found{moved: true}
		}
		got.err = f.client.Reread(ctx, w.topic, got.err)
	}
	return got
}

// nodeOf returns the node that leads p, as the client remembers it, or with replicas the
// one that the leader has named.
func (f *fetches) nodeOf(ctx context.Context, p partition, replicas bool) (int32, error) {
	f.mu.Lock()
	at, ok := f.where[p]
	f.mu.Unlock()
	if ok && (at.until.IsZero() || replicas && time.Now().Before(at.until)) {
		return at.node, nil
	}
	leaders, err := f.client.Leaders(ctx, p.topic)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, leader := range leaders {
		at := partition{p.topic, int(number)}
		if _, placed := f.where[at]; leader >= 0 && (!placed || replicas && at == p) {
			f.where[at] = place{node: leader}
		}
	}
	return leading(leaders, p)
}

// forget has the leader of p be looked up again. It reports whether a replica was asked.
func (f *fetches) forget(p partition) (replica bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if replica = !f.where[p].until.IsZero(); replica {
		f.leadersOnly = time.Now().Add(noReplica)
	}
	delete(f.where, p)
	return replica
}

// rack is where replicas are wanted; "" for the leaders.
func (f *fetches) rack() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.leadersOnly) {
		return ""
	}
	return f.client.options.Rack
}

// prefer has a replica be asked for p.
func (f *fetches) prefer(p partition, node int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.where[p] = place{node, time.Now().Add(replicaFor)}
}

func (f *fetches) leader(node int32) *leader {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.leaders[node]
	if l == nil {
		l = &leader{fetches: f, node: node, pending: make(map[partition]*request), owed: make(map[partition]bool), more: make(chan struct{}, 1), late: make(chan struct{}, 1)}
		l.session.reset()
		f.leaders[node] = l
		f.work.Go(l.fetchAlways)
		f.work.Go(l.fetchLate)
	}
	return l
}

// at returns the leader that p was last asked from, if there is one.
func (f *fetches) at(p partition) *leader {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaders[f.where[p].node]
}

// withdraw ends the request of p, if there is one, without records.
func (f *fetches) withdraw(p partition) {
	if l := f.at(p); l != nil {
		l.withdraw(p)
	}
}

// rests says that the reader of p was answered, and does not ask again for now.
func (f *fetches) rests(p partition) {
	if l := f.at(p); l != nil {
		l.rests(p)
	}
}

// leader fetches from one broker.
type leader struct {
	fetches *fetches
	node    int32
	session session // belongs to fetchAlways

	mu      sync.Mutex
	pending map[partition]*request
	order   []partition        // of pending, the oldest first
	waiting map[partition]want // in the fetch on its way; nil if there is none
	second  map[partition]want // in the second one
	owed    map[partition]bool // were just answered, and may ask again at once
	more    chan struct{}      // signalled when pending or owed change
	late    chan struct{}      // signalled when a request comes while a fetch is on its way, or a question

	questions []*question     // that wait for those on their way
	versions  map[int16]int16 // belongs to fetchLate: the newest that the broker knows of each request
	asked     time.Time       // for those
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *leader) add(e *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[e.partition] = e
	l.order = append(l.order, e.partition)
	delete(l.owed, e.partition)
	signal(l.more)
	if l.waiting != nil {
		signal(l.late)
	}
}

// rests expects no request of p any more.
func (l *leader) rests(p partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owed[p] {
		delete(l.owed, p)
		signal(l.more)
	}
}

func (l *leader) withdraw(p partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.take(p); e != nil {
		e.found <- found{}
	}
	delete(l.owed, p)
	signal(l.more)
}

// take takes the request of p out. mu is held.
func (l *leader) take(p partition) *request {
	e := l.pending[p]
	delete(l.pending, p)
	return e
}

// fetchAlways is the one fetch after the other, each for all that ask.
func (l *leader) fetchAlways() {
	for {
		wants := l.gather()
		if wants == nil {
			return
		}
		answer, err := l.exchange(l.session.next(wants))
		l.session.answered(answer, err)
		l.answerTo(&l.waiting, answer, err)
	}
}

// gather waits until there is something to ask for, and returns it; nil once the
// source is closed.
func (l *leader) gather() []want {
	var timer *time.Timer
	var due <-chan time.Time
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()
	for {
		l.mu.Lock()
		wants := l.wanted(l.second)
		if len(wants) > 0 && (len(l.owed) == 0 || timer != nil && due == nil) {
			clear(l.owed)
			l.waiting = byPartition(wants)
			l.mu.Unlock()
			return wants
		}
		l.mu.Unlock()
		if len(wants) > 0 && timer == nil {
			timer = time.NewTimer(regather)
			due = timer.C
		}
		select {
		case <-l.more:
		case <-due:
			due = nil
		case <-l.fetches.ctx.Done():
			return nil
		}
	}
}

// wanted returns the pending that are in no other fetch, those first that have waited
// longest. mu is held.
func (l *leader) wanted(besides map[partition]want) (wants []want) {
	kept := l.order[:0]
	listed := make(map[partition]bool, len(l.pending))
	for _, p := range l.order {
		e := l.pending[p]
		if e == nil || listed[p] {
			continue
		}
		listed[p] = true
		kept = append(kept, p)
		if _, asked := besides[p]; !asked {
			wants = append(wants, e.want)
		}
	}
	l.order = kept
	return wants
}

func byPartition(wants []want) map[partition]want {
	all := make(map[partition]want, len(wants))
	for _, w := range wants {
		all[w.partition] = w
	}
	return all
}

// fetchLate fetches what is asked for while the other fetch waits, so that a partition
// that had no room does not wait for those that have nothing. It also asks about logs, as
// that needs no connection of its own.
func (l *leader) fetchLate() {
	for {
		select {
		case <-l.late:
		case <-l.fetches.ctx.Done():
			return
		}
		l.askAll()
		l.mu.Lock()
		var wants []want
		if l.waiting != nil {
			wants = l.wanted(l.waiting)
		}
		l.second = byPartition(wants)
		l.mu.Unlock()
		if len(wants) == 0 {
			continue
		}
		answer, err := l.exchange(newFetch(wants, mostAnswer, lateWait))
		l.answerTo(&l.second, answer, err)
		signal(l.more) // what brought nothing joins the others
	}
}

func (l *leader) exchange(req *kmsg.FetchRequest) (*fetchAnswer, error) {
	req.Rack = l.fetches.rack()
	return l.fetches.client.exchange(l.fetches.ctx, l.node, req)
}

// answerTo gives each request of a fetch its part of the answer. A request for another
// offset than the fetch had stays.
func (l *leader) answerTo(asked *map[partition]want, answer *fetchAnswer, err error) {
	if err == nil && answer.ErrorCode != 0 && !isSessionLost(codeError(answer.ErrorCode)) {
		err = codeError(answer.ErrorCode)
	}
	if answer == nil {
		answer = &fetchAnswer{FetchResponse: new(kmsg.FetchResponse)}
	}
	answer.users.Store(1)
	defer answer.release()
	parts := make(map[partition]*kmsg.FetchResponseTopicPartition)
	for i := range answer.Topics {
		for j := range answer.Topics[i].Partitions {
			part := &answer.Topics[i].Partitions[j]
			parts[partition{answer.Topics[i].Topic, int(part.Partition)}] = part
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, w := range *asked {
		part, e := parts[p], l.pending[p]
		switch {
		case e == nil, e.offset != w.offset: // withdrawn
		case err != nil:
			l.take(p).found <- found{err: err}
		case part != nil && part.ErrorCode != 0:
			l.take(p).found <- found{err: codeError(part.ErrorCode)}
		case part != nil && part.PreferredReadReplica >= 0 && part.PreferredReadReplica != l.node && len(part.RecordBatches) == 0:
			l.fetches.prefer(p, part.PreferredReadReplica)
			l.take(p).found <- found{moved: true}
		case part != nil && (len(part.RecordBatches) > 0 || e.first):
			answer.users.Add(1)
			l.owed[p] = true
			l.take(p).found <- found{part: part, answer: answer}
		case e.first && answer.ErrorCode == 0:
			l.owed[p] = true
			l.take(p).found <- found{}
		}
	}
	*asked = nil
}

// session is what the broker remembers of a fetch (KIP-227): only what changes is
// asked for, and only partitions with news are answered.
type session struct {
	id, epoch int32
	known     map[partition]want
}

// noSession is the epoch of a fetch without a session. The first of a session has 0.
const noSession = -1

func (s *session) reset() { *s = session{known: make(map[partition]want)} }

// next is the fetch that follows, for wants.
func (s *session) next(wants []want) *kmsg.FetchRequest {
	asks := byPartition(wants)
	news := slices.DeleteFunc(wants, func(w want) bool { return s.known[w.partition] == w })
	req := newFetch(news, mostAnswer, fetchWait)
	req.SessionID, req.SessionEpoch = s.id, s.epoch
	for _, w := range news {
		s.known[w.partition] = w
	}
	var forgotten byTopic[kmsg.FetchRequestForgottenTopic]
	for p := range s.known {
		if _, asked := asks[p]; !asked {
			topic := forgotten.of(p.topic, kmsg.FetchRequestForgottenTopic{Topic: p.topic})
			topic.Partitions = append(topic.Partitions, int32(p.number))
			delete(s.known, p)
		}
	}
	req.ForgottenTopics = forgotten.list
	return req
}

// answered takes in how the fetch ended.
func (s *session) answered(answer *fetchAnswer, err error) {
	if err != nil || answer.ErrorCode != 0 || answer.SessionID == 0 {
		s.reset()
		return
	}
	s.id = answer.SessionID
	if s.epoch++; s.epoch < 0 {
		s.epoch = 1
	}
	for _, topic := range answer.Topics {
		for _, part := range topic.Partitions {
			if part.ErrorCode != 0 { // the broker may have dropped it
				delete(s.known, partition{topic.Topic, int(part.Partition)})
			}
		}
	}
}

// isSessionLost reports whether err says that the broker does not know the session:
// the next fetch begins a new one.
func isSessionLost(err error) bool {
	return errors.Is(err, kafka.FetchSessionIDNotFound) || errors.Is(err, kafka.InvalidFetchSessionEpoch) ||
		errors.Is(err, fetchSessionTopicID)
}

// fetchSessionTopicID says that a topic of the session was made anew. kafka-go has no
// name for it.
const fetchSessionTopicID kafka.Error = 106
