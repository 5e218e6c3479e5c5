package rabbitmq

import "sync/atomic"

// window follows the one consumer of an ordered intake. Several consumers of a
// queue get its messages in turn, and the order is lost. So the prefetch of an
// ordered intake grows by another consumer instead of this one, and only at a
// moment when nothing is on its way here: what is, the broker takes back when the
// consumer ends, and delivers it again behind others.
type window struct {
	wanted atomic.Int64  // the prefetch that it should have
	got    atomic.Int64  // deliveries of this consumer
	gone   atomic.Int64  // of these, the ones that the broker was told the end of
	last   atomic.Uint64 // the newest tag
	base   atomic.Uint64 // the newest tag of the consumer before
	again  atomic.Bool   // the newest delivery is a redelivery that may go back once more
}

// mostWindow is the largest prefetch that the protocol can say.
const mostWindow = 65535

// begin notes that the next delivery is that of another consumer. There is none.
func (w *window) begin() {
	w.base.Store(w.last.Load())
	w.got.Store(0)
	w.gone.Store(0)
}

func (w *window) arrived(tag uint64, again bool) {
	w.last.Store(tag)
	w.again.Store(again)
	w.got.Add(1)
}

// returned notes that an ack or a release of tag is about to be sent.
func (w *window) returned(tag uint64) {
	if tag > w.base.Load() {
		w.gone.Add(1)
	}
}

// quiet reports whether all that the broker may send with this prefetch is here.
func (w *window) quiet(prefetch int) bool {
	return w.got.Load()-w.gone.Load() >= int64(prefetch)
}

// widen asks for a larger prefetch of an ordered intake, if more is not 0, and
// reports whether one is about to begin. What cannot now may before the next acks.
func (n *session) widen(in *intake, granted, more int) bool {
	if more > 0 && !in.single { // the next consumer would be that of another worker
		in.wanted.Store(int64(min(granted+more, mostWindow)))
	}
	if granted == 0 || in.wanted.Load() <= int64(granted) || !in.quiet(granted) {
		return false
	}
	l := in.group.lanes[0]
	return n.change(func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.replace(in)
	})
}

// widen gives ordered intakes the prefetch that they want, if it can be now; the
// caller holds the lock.
func (l *lane) widen() {
	n := l.session
	if !n.source.sub.Ordered {
		return
	}
	for in, g := range l.consumers {
		if !in.ordered || in.wanted.Load() <= int64(g.prefetch) || !in.quiet(g.prefetch) || !n.busy.CompareAndSwap(false, true) {
			continue
		}
		err := l.replace(in)
		n.changed()
		if err != nil && n.ctx.Err() == nil {
			n.end(err)
		}
		return
	}
}

// replace starts a consumer with the wanted prefetch instead of the one that there
// is, unless something is on its way to that; the caller holds the lock.
func (l *lane) replace(in *intake) error {
	g, wanted := l.consumers[in], int(in.wanted.Load())
	if l.ended || g.prefetch == 0 || wanted <= g.prefetch || !in.quiet(g.prefetch) || l.session.isGone(in) {
		return nil
	}
	return l.swap(in, wanted)
}

// swap starts a consumer with this prefetch instead of the one that there is; the
// caller holds the lock.
func (l *lane) swap(in *intake, prefetch int) error {
	if err := l.end(in, l.consumers[in].tag); err != nil {
		return err
	}
	in.pumps.Wait()
	in.granted.Store(0)
	in.window.begin()
	g, err := l.start(in, prefetch)
	if err != nil {
		return err
	}
	l.consumers[in] = g
	l.rebatch()
	return nil
}
