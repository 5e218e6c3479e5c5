package rabbitmq_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

const (
	classQueue      = 50
	methodDeclare   = 10
	methodDeclared  = 11
	methodConsume   = 20
	methodConsumeOK = 21
	methodCancel    = 30
	methodNack      = 120
)

// underway stops deliveries of a broker on their way. Inside RabbitMQ a
// delivery goes from its queue to its channel. If the consumer is cancelled in
// between, the channel gives the delivery back at once. A test cannot stop a
// delivery there. So underway stops it after the channel, and gives it back
// after the cancel, as the channel would.
type underway struct {
	mu    sync.Mutex
	stops bool
	let   int // deliveries that have gone on to the worker
	parts int // content frames still to come of a stopped delivery
	tags  map[way][]uint64
}

type way struct {
	conn    *tapped
	channel uint16
}

func (w *world) underway() *underway {
	u := &underway{tags: make(map[way][]uint64)}
	w.tap.set(u.filter)
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	w.tap.edit = u.edit
	return u
}

// stop begins to stop deliveries, or ends it.
func (u *underway) stop(yes bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stops = yes
}

// through returns the number of deliveries that have gone on to the worker.
func (u *underway) through() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.let
}

// stopped returns the number of stopped deliveries.
func (u *underway) stopped() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, tags := range u.tags {
		n += len(tags)
	}
	return n
}

func (u *underway) filter(c *tapped, f frame) verdict {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case f.is(classBasic, methodDeliver) && u.stops:
		at := way{c, binary.BigEndian.Uint16(f.raw[1:])}
		tag := binary.BigEndian.Uint64(f.raw[12+int(f.raw[11]):])
		u.tags[at] = append(u.tags[at], tag)
		u.parts = 2 // a header and a short body
		return drop
	case f.is(classBasic, methodDeliver):
		u.let++
	case u.parts > 0 && f.class == 0:
		u.parts--
		return drop
	}
	return pass
}

// edit gives stopped deliveries back after the cancel of their consumer.
func (u *underway) edit(c *tapped, p []byte) []byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	if bytes.HasPrefix(p, []byte("AMQP")) { // no frame
		return p
	}
	var out []byte
	for r := bytes.NewReader(p); ; {
		begin := len(p) - r.Len()
		f, err := readFrame(r)
		if err != nil { // the end, or the beginning of a frame
			return append(out, p[begin:]...)
		}
		out = append(out, f.raw...)
		at := way{c, binary.BigEndian.Uint16(f.raw[1:])}
		switch {
		case f.is(classBasic, methodCancel):
			for _, tag := range u.tags[at] {
				nack := method(classBasic, methodNack, append(binary.BigEndian.AppendUint64(nil, tag), 2)...) // requeue
				binary.BigEndian.PutUint16(nack[1:], at.channel)
				out = append(out, nack...)
			}
			delete(u.tags, at)
		case f.is(classChannel, methodClose):
			delete(u.tags, at)
		}
	}
}

// inOrderWith runs f with an ordered source whose lease is 9 s. The worker
// has settled the first two of ten messages and has the others in its buffer.
// Five more are on their way to it.
func inOrderWith(t *testing.T, f func(w *two, u *underway)) {
	inTwo(t, rabbitmq.Options{ConsumerTimeout: 10 * time.Second}, 10*time.Millisecond, func(w *two) {
		w.closeSource()
		w.openOrdered(1000)
		w.grow()
		u := w.underway()
		w.number(w.topic, 0, 1)
		first := w.receive(1)
		w.number(w.topic, 1, 9)
		w.await("nine are with the worker", func() bool { return u.through() == 10 })
		w.settleAll(first)
		w.settleAll(w.receive(1))
		u.stop(true)
		w.number(w.topic, 10, 5)
		w.await("five are on their way", func() bool { return u.stopped() == 5 })
		f(w, u)
	})
}

// When a buffer goes back, the messages on their way to it go back too, in
// order. The worker consumes anew only after the broker has told it the number
// of consumers.
func TestOrderWhenABufferGoesBack(t *testing.T) {
	inOrderWith(t, func(w *two, u *underway) {
		var methods counted[[2]uint16]
		w.tap.hear(func(f frame) {
			methods.mu.Lock()
			defer methods.mu.Unlock()
			methods.values = append(methods.values, [2]uint16{f.class, f.method})
		})
		w.source.Pause(w.topic)
		w.await("all are back", func() bool {
			w.nothing(0)
			return w.depth(w.topic) == 13
		})
		u.stop(false)
		w.source.Pause()
		ds := w.receive(13)
		w.inOrder(ds, 2)
		sent := methods.all()
		for _, m := range [][2]uint16{{classChannel, methodClose}, {classQueue, methodDeclare}, {classBasic, methodConsume}} {
			at := slices.Index(sent, m)
			if at < 0 {
				w.Fatalf("method %v was not sent in its place among %v", m, methods.all())
			}
			sent = sent[at+1:]
		}
		for _, d := range ds {
			if n := rabbitmq.DeliveryCount(d); n != 1 {
				w.Errorf("the broker has counted %d deliveries of %s, want 1", n, d.Message.Body)
			}
		}
		w.settleAll(ds)
	})
}

// withBuffer runs f with an ordered source of a paused topic. Its buffer gets 32 of
// 99 messages. The worker has settled others before.
func withBuffer(t *testing.T, timeout time.Duration, f func(w *two)) {
	inTwo(t, rabbitmq.Options{ConsumerTimeout: timeout}, 10*time.Millisecond, func(w *two) {
		w.closeSource()
		w.openOrdered(1000)
		w.number(w.topic, -15, 16)
		first := w.receive(16)
		w.nothing(100 * time.Millisecond) // the prefetch grows
		w.source.Pause(w.topic)
		w.settleAll(first)
		w.number(w.topic, 1, 99)
		f(w)
	})
}

// A queue delivers requeued messages in the order of their return. So when a small
// buffer goes back, the worker must also give back the messages that an earlier,
// larger buffer has left in the queue.
func TestOrderWhenABufferGoesBackAgain(t *testing.T) {
	withBuffer(t, 4*time.Second, func(w *two) {
		for next := 1; next < 100; next++ {
			if next < 3 { // the prefetch is 2 after the first pause
				w.await("all are back", func() bool {
					w.nothing(0)
					return w.depth(w.topic) == 100-next
				})
				w.source.Pause()
			}
			ds := w.receive(1)
			if next < 2 {
				w.source.Pause(w.topic)
			}
			w.inOrder(ds, next)
			w.settleAll(ds)
		}
	})
}

// A broker that is busy answers that a queue has no messages and no consumers. The
// worker must not believe that when it has just given messages back.
func TestOrderOfABusyBroker(t *testing.T) {
	withBuffer(t, 4*time.Second, func(w *two) {
		name := append([]byte{byte(len(w.topic))}, w.topic...) // of the queue, in a frame
		var mu sync.Mutex
		var closed, consumes bool
		looks := 0
		w.tap.hear(func(f frame) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case f.is(classChannel, methodClose):
				closed = true
			case closed && f.is(classBasic, methodConsume) && bytes.Contains(f.raw, name):
				consumes = true
			case closed && !consumes && f.is(classQueue, methodDeclare) && bytes.Contains(f.raw, name):
				looks++
			}
		})
		w.tap.set(func(_ *tapped, f frame) verdict {
			mu.Lock()
			defer mu.Unlock()
			if looks == 1 && f.is(classQueue, methodDeclared) {
				clear(f.raw[len(f.raw)-9 : len(f.raw)-1]) // both numbers
			}
			return pass
		})
		w.await("all are back", func() bool {
			w.nothing(0)
			return w.depth(w.topic) == 99
		})
		w.source.Pause()
		w.settleAll(w.receive(1))
		mu.Lock()
		defer mu.Unlock()
		if looks < 3 { // for a true answer, and to see that the queue still exists
			w.Errorf("the worker looked %d times at the queue before it consumed again, want 3", looks)
		}
	})
}

// The broker counts each return, and dead-letters a message after 20. So the worker
// takes no message to give it back again that has gone back fourteen times.
func TestOrderedMessagesThatGoBackOften(t *testing.T) {
	withBuffer(t, time.Second, func(w *two) {
		for n := range 18 {
			w.await("all are back", func() bool {
				w.nothing(0)
				return w.depth(w.topic)+w.depth(w.retries()) >= 99-n
			})
			w.source.Pause()
			ds := w.receive(1)
			w.source.Pause(w.topic)
			if n := rabbitmq.DeliveryCount(ds[0]); n > bystandersOrdered+1 {
				w.Errorf("the broker has counted %d deliveries of %s, want at most %d", n, ds[0].Message.Body, bystandersOrdered+1)
			}
			w.settle(brokers.Settlement{Delivery: ds[0]}) // its lease is short and may have ended
		}
	})
}

// If other consumers are being changed for long, the leases of some messages in the
// buffer end before the buffer can go back. Then it goes back in order, too.
func TestOrderWhenLeasesEndInTheBuffer(t *testing.T) {
	inTwo(t, rabbitmq.Options{ConsumerTimeout: 2 * time.Second}, 10*time.Millisecond, func(w *two) {
		w.closeSource()
		w.openOrdered(1000)
		w.number(w.topic, 0, 1)
		ds := w.receive(1)
		w.nothing(100 * time.Millisecond) // the prefetch grows
		w.settleAll(ds)
		w.source.Pause(w.topic)
		var release func()
		w.await("no consumer is being changed", func() (ok bool) {
			release, ok = rabbitmq.HoldChanges(w.source)
			return ok
		})
		w.number(w.topic, 1, 5)
		w.nothing(time.Second)
		w.number(w.topic, 6, 5)
		w.nothing(time.Second) // the leases of the first five end after 1.8 s
		release()
		w.await("all are back", func() bool {
			w.nothing(0)
			return w.depth(w.topic) == 10
		})
		w.source.Pause()
		ds = w.receive(10)
		w.inOrder(ds, 1)
		w.settleAll(ds)
	})
}

// The messages also go back in order when a worker stops, as for a deployment.
func TestOrderWhenAWorkerStops(t *testing.T) {
	inOrderWith(t, func(w *two, u *underway) {
		w.closeSource()
		w.await("all are back", func() bool { return w.depth(w.topic) == 13 })
		u.stop(false)
		w.openOrdered(1000)
		ds := w.receive(13)
		w.inOrder(ds, 2)
		w.settleAll(ds)
	})
}

// The messages also go back in order if the worker had several consumers, one
// after the other.
func TestOrderOfSeveralConsumers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages = 8300 // by fifteen consumers: the prefetch is 1, 2, 4 and so on
		w.closeSource()
		w.number(w.topic, 0, messages)
		for range 2 {
			w.openOrdered(messages)
			ds := w.receive(messages)
			w.inOrder(ds, 0)
			w.closeSource()
			w.await("all are back", func() bool { return w.depth(w.topic) == messages })
		}
	})
}

// The worker settles the message that it has begun with before the others go
// back. So no message runs twice, and none overtakes the running message.
func TestOrderWaitsForTheRunningMessage(t *testing.T) {
	inOrderWith(t, func(w *two, u *underway) {
		begun := w.receive(1) // no other lease ends before its own
		w.source.Pause(w.topic)
		w.await("the buffer is old", func() bool {
			w.nothing(0)
			return rabbitmq.TurnsBack(w.source, w.topic)
		})
		if n := w.depth(w.topic); n > 0 {
			w.Errorf("%d messages went back before the worker had settled the running message", n)
		}
		w.settleAll(begun)
		w.await("all are back", func() bool {
			w.nothing(0)
			return w.depth(w.topic) == 12
		})
		u.stop(false)
		w.source.Pause()
		ds := w.receive(12)
		w.inOrder(ds, 3)
		w.settleAll(ds)
	})
}

// Messages that are too large for the buffer come in order, too.
func TestOrderOfLargeMessages(t *testing.T) {
	// A busy machine takes its time for so many bytes.
	inWorlds(t, rabbitmq.Options{CallTimeout: 2 * time.Minute, ConfirmTimeout: 2 * time.Minute}, func(w *world) {
		const small, large = 100, 25 // of 3 MiB: more than the buffer of 64
		w.closeSource()
		w.openOrdered(1000)
		w.number(w.topic, 0, small)
		for i := range large {
			body := append(strconv.AppendInt(nil, int64(small+i), 10), make([]byte, 3<<20)...)
			if err := w.broker.Publish(w.Context(), w.topic, brokers.Message{Body: body}); err != nil {
				w.Fatal(err)
			}
		}
		for next := 0; next < small+large; {
			ds := w.receive(1)
			ds[0].Message.Body = bytes.TrimRight(ds[0].Message.Body, "\x00")
			w.inOrder(ds, next)
			next++
			w.settleAll(ds)
		}
	})
}
