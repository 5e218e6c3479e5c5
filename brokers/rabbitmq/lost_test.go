package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// pair is a world whose source has a second topic, which goes on. It keeps the errors
// of Receive about lost queues.
type pair struct {
	*world
	other  string
	shop   *rabbitmq.Broker // publishes the messages
	said   []string
	losses int // number of errors that were a *brokers.TopicError
}

func inPairs(t *testing.T, verify bool, f func(p *pair)) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource() // it has declared the first topic
		p := &pair{world: w, other: w.admin.topic("refunds")}
		p.Cleanup(func() { p.delete(p.prefix+".retry.v1."+p.other, p.other+".dead") })
		if err := w.broker.Declare(w.Context(), p.other); err != nil {
			w.Fatal(err)
		}
		w.open(w.topic, p.other).Close(w.Context())
		options := w.options(w.url, verify)
		options.Dial = w.tap.Dial
		w.broker = open(w.T, options)
		w.broker.SetLook(2 * time.Second)
		w.source, p.shop = w.open(w.topic, p.other), open(w.T, w.options(w.url, true))
		f(p)
	})
}

// eachWay runs f twice: with a worker that may declare queues, and with a
// worker that may not.
func eachWay(t *testing.T, f func(p *pair, verify bool)) {
	for name, verify := range map[string]bool{"declares": false, "verifies": true} {
		t.Run(name, func(t *testing.T) { inPairs(t, verify, func(p *pair) { f(p, verify) }) })
	}
}

// sends publishes one message to a topic.
func (p *pair) sends(topic, body string) {
	p.Helper()
	if err := p.shop.Publish(p.Context(), topic, brokers.Message{ID: body, Body: []byte(body)}); err != nil {
		p.Fatalf("publish %q to %q: %v", body, topic, err)
	}
}

// next returns the next delivery within d, nil if there is none. It fails the
// test if Receive returns an error that ends the work on all topics.
func (p *pair) next(d time.Duration) *brokers.Delivery {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), d)
	defer cancel()
	for {
		ds, err := p.source.Receive(ctx, 1)
		switch lost, is := errors.AsType[*brokers.TopicError](err); {
		case len(ds) > 0:
			return ds[0]
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, brokers.ErrMisconfigured), errors.Is(err, brokers.ErrClosed):
			p.Fatalf("Receive ends the work on all topics: %v", err)
		case is && lost.Topic != p.topic:
			p.Fatalf("a topic that exists is reported as lost: %v", err)
		default:
			if p.said = append(p.said, err.Error()); is {
				p.losses++
			}
		}
	}
}

// loses deletes a queue at a moment when the worker starts no consumer on it, which
// would end the session.
func (p *pair) loses(queue string) {
	p.Helper()
	p.await("the worker starts no consumer", func() bool { return rabbitmq.IsCalm(p.source) })
	p.delete(queue)
}

// gets receives one message, and acks it.
func (p *pair) gets(body string) {
	p.Helper()
	d := p.next(patience)
	if d == nil || string(d.Message.Body) != body {
		p.Fatalf("received %+v, want %q; Receive said %q", d, body, p.said)
	}
	p.ack(d)
}

// hears waits until one error of Receive contains all parts.
func (p *pair) hears(parts ...string) {
	p.Helper()
	says := func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	}
	for start := time.Now(); !slices.ContainsFunc(p.said, says); {
		if time.Since(start) > patience {
			p.Fatalf("Receive said %q, want %q", p.said, parts)
		}
		if d := p.next(time.Second); d != nil {
			p.Fatalf("received %q, want an error", d.Message.Body)
		}
	}
}

// One of two queues is deleted, with a message in the worker. The other topic does not
// notice. The worker handles the message to its end. A message that it retries or gives
// back outlives the queue.
func TestQueueDeletedInUse(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		p.sends(p.topic, "retried")
		p.sends(p.topic, "released")
		ds := []*brokers.Delivery{p.next(patience), p.next(patience)}
		p.sends(p.other, "held beside")
		beside := p.next(patience)
		p.loses(p.topic)
		p.sends(p.other, "beside")
		p.gets("beside")
		p.hears(p.topic, "does not exist any more", "lost", "create it again", "other topics go on")
		for _, d := range append(ds, beside) {
			if err := context.Cause(d.Session); err != nil {
				p.Errorf("the delivery of %q is lost with the queue: %v", d.Message.Body, err)
			}
		}
		p.ack(beside)
		if errs := p.settle(retry(ds[0], 300*time.Millisecond), release(ds[1])); errs[0] != nil || errs[1] != nil {
			p.Errorf("settle messages of a queue that is deleted: %v", errs)
		}
		got := map[string]int{}
		for range 2 {
			d := p.next(patience)
			if d == nil {
				p.Fatalf("%v of two messages came back; Receive said %q", got, p.said)
			}
			got[string(d.Message.Body)]++
			p.ack(d)
		}
		if got["retried"] != 1 || got["released"] != 1 {
			p.Errorf("received %v, want both once", got)
		}
		if err := p.broker.Declare(p.Context(), p.topic); err != nil {
			p.Fatal(err)
		}
		p.sends(p.topic, "anew")
		p.gets("anew")
		said := len(p.said)
		p.sends(p.other, "at last")
		p.gets("at last")
		if p.next(3*time.Second) != nil || len(p.said) > said {
			p.Errorf("Receive still returns %q", p.said[said:])
		}
	})
}

// The same holds for a topic in order, whose messages otherwise go back by the end of
// its channel.
func TestOrderedQueueDeletedInUse(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		p.closeSource()
		sub := p.subscription(p.topic, p.other)
		sub.Ordered = true
		src, err := p.broker.Open(p.Context(), sub)
		if err != nil {
			p.Fatal(err)
		}
		p.source = src
		p.sends(p.topic, "in hand")
		d := p.next(patience)
		p.loses(p.topic)
		p.hears(p.topic, "does not exist any more")
		p.ack(d)
		if err := p.broker.Declare(p.Context(), p.topic); err != nil {
			p.Fatal(err)
		}
		p.sends(p.topic, "anew")
		p.gets("anew")
	})
}

// A broker ends the consumers of a queue that it deletes, and may forget the queue much
// later. The worker looks for the queue, and does not consume while it seems to be there
// and empty: that would end the session. It consumes again when the queue has a message.
func TestQueueSeemsToBeDeleted(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		p.closeSource()
		p.broker.SetDeletion(time.Hour)
		var mu sync.Mutex
		var consumes, looks int // frames about the queue of the topic
		var end []byte          // the broker's frame that ends the consumer
		var conn *tapped        // of the consumers
		queue := short(p.topic)
		p.tap.hear(func(f frame) {
			mu.Lock()
			defer mu.Unlock()
			at := bytes.Index(f.raw, queue)
			switch {
			case at < 0:
			case f.is(classBasic, methodConsume):
				consumes++
				tag := f.raw[at+len(queue):]
				end = method(classBasic, methodCancel, append(tag[:1+tag[0]:1+tag[0]], 1)...)
				copy(end[1:3], f.raw[1:3])
			case f.is(classQueue, methodDeclare):
				looks++
			}
		})
		p.tap.set(func(c *tapped, f frame) verdict {
			mu.Lock()
			defer mu.Unlock()
			if f.is(classBasic, methodConsumeOK) {
				conn = c
			}
			return pass
		})
		p.source = p.open(p.topic, p.other)
		p.await("the worker starts no consumer", func() bool { return rabbitmq.IsCalm(p.source) })
		mu.Lock()
		begun, seen := consumes, looks
		conn.inject <- end
		mu.Unlock()
		p.sends(p.other, "beside") // it arrives behind this
		beside := p.next(patience)
		p.await("the worker looks for the queue a few times", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return looks >= seen+4
		})
		mu.Lock()
		if consumes > begun {
			t.Error("the worker consumes from a queue that may be in deletion")
		}
		mu.Unlock()
		p.sends(p.topic, "anew")
		p.gets("anew")
		p.ack(beside)
	})
}

// A queue that is deleted and declared anew at once is consumed from again, and Receive
// reports that its messages may be lost.
func TestQueueReplacedInUse(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		if !p.drops() {
			p.Skip("RabbitMQ 3.10 does not tell a consumer that its quorum queue was declared anew within milliseconds, and deliveries of the new queue do not reach the consumer")
		}
		p.closeSource()
		p.broker.SetDeletion(time.Second)
		p.source = p.open(p.topic, p.other)
		p.loses(p.topic)
		p.redeclare(p.topic, p.topicArgs())
		p.hears(p.topic, "the broker has ended the consumers", "from which the worker receives again")
		p.sends(p.topic, "anew")
		p.gets("anew")
		if p.losses > 0 {
			p.Errorf("the topic counts as lost: %q", p.said)
		}
	})
}

// A queue comes back with arguments that lose messages. The worker refuses it,
// as at the start, and refuses no other queue. After a new connection it still
// refuses it.
func TestQueueBackWithOtherArguments(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		p.loses(p.topic)
		p.hears(p.topic, "does not exist any more")
		p.redeclare(p.topic, amqp.Table{"x-message-ttl": int64(3600000)})
		p.hears(p.topic, "its messages stay in it", "x-message-ttl is 3600000")
		p.sends(p.topic, "waits")
		p.tap.cut()
		p.sends(p.other, "beside")
		p.gets("beside")
		said := len(p.said)
		p.await("it is refused once more", func() bool {
			if d := p.next(500 * time.Millisecond); d != nil {
				p.Fatalf("received %q", d.Message.Body)
			}
			return len(p.said) > said+1
		})
		if n := p.depth(p.topic); n != 1 {
			p.Errorf("%d messages are in the queue, want 1", n)
		}
		p.redeclare(p.topic, p.topicArgs())
		p.sends(p.topic, "anew")
		p.gets("anew")
	})
}

// A queue is deleted while the worker has no connection, or while its topic is
// paused. The worker then consumes from the other queue, and from the deleted
// queue when it is back.
func TestQueueDeletedUnseen(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		for what, unseen := range map[string]func(gone func()){
			"during a pause": func(gone func()) {
				p.source.Pause(p.topic)
				p.await("the consumers of the topic end", func() bool { p.next(100 * time.Millisecond); return p.consumers(p.topic) == 0 })
				gone()
				p.source.Pause()
			},
			"without a connection": func(gone func()) {
				p.tap.cut()
				gone()
			},
		} {
			p.said = nil
			unseen(func() { p.delete(p.topic) })
			p.sends(p.other, what)
			p.gets(what)
			p.hears(p.topic, "does not exist any more")
			if err := p.broker.Declare(p.Context(), p.topic); err != nil {
				p.Fatal(err)
			}
			p.sends(p.topic, "anew")
			p.gets("anew")
		}
	})
}

// consumers returns the number of consumers of a queue.
func (w *world) consumers(queue string) (n int) {
	if err := w.do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Consumers
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return n
}

// The queue of retries is the worker's own. The worker declares it anew, unless
// Options.Verify forbids it.
func TestQueueOfRetriesDeletedInUse(t *testing.T) {
	eachWay(t, func(p *pair, verify bool) {
		p.loses(p.retries())
		if verify {
			p.hears(p.topic, p.retries(), "the retries that were in it are lost", "redrive doctor --topology")
			p.sends(p.other, "beside")
			p.gets("beside")
			p.redeclare(p.retries(), p.topicArgs())
		} else {
			p.hears(p.retries(), "the retries that were in it are lost", "declared anew")
		}
		p.sends(p.topic, "a")
		d := p.next(patience)
		for tries := 0; ; tries++ {
			err := p.settle(retry(d, 300*time.Millisecond))[0]
			if err == nil {
				break
			}
			if tries == 3 {
				p.Fatalf("Retry: %v", err)
			}
		}
		p.gets("a")
	})
}

// The worker declares a delay queue and a dead-letter queue that are deleted in use. The
// first message that needs them fails for now, and the next try gets through. A worker
// that may declare nothing names the fix.
func TestTargetsDeletedInUse(t *testing.T) {
	eachWay(t, func(p *pair, verify bool) {
		dead, wait := p.topic+".dead", p.prefix+".delay.v2.2000"
		p.sends(p.topic, "a")
		d := p.next(patience)
		letter := brokers.Message{ID: "letter", Body: []byte("letter")}
		for queue, send := range map[string]func() error{
			wait: func() error { return p.settle(retry(d, 2*time.Second))[0] },
			dead: func() error { return p.broker.Publish(p.Context(), dead, letter) },
		} {
			p.delete(queue)
			err := send()
			if verify {
				fault(p.T, err, "no queue takes it", "start a worker of the topic anew")
				p.opens(p.options(p.url, false)).Close(p.Context())
			} else if err == nil || errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "declared and bound again") {
				p.Errorf("%q: error %v, want a temporary one", queue, err)
			}
			if err := send(); err != nil {
				p.Errorf("%q, after it was declared again: %v", queue, err)
			}
		}
		p.gets("a")
		p.await("the dead letter is there", func() bool { return p.depth(dead) == 1 })
		if n := p.depth(p.prefix + ".unroutable.v1"); n != 0 {
			p.Errorf("%d copies are kept as unroutable, want none", n)
		}
		if p.sends(p.other, "beside"); len(p.said) > 0 {
			p.Errorf("Receive said %q", p.said)
		}
		p.gets("beside")
	})
}

// A queue that was declared anew without its binding is bound by the first copy that
// does not reach it.
func TestDeadLetterQueueMadeAnew(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		dead := w.topic + ".dead"
		w.redeclare(dead, amqp.Table{"x-queue-type": "quorum"})
		letter := brokers.Message{ID: "a", Body: []byte("a")}
		if err := w.broker.Publish(w.Context(), dead, letter); err == nil || !strings.Contains(err.Error(), "no queue takes it") {
			w.Errorf("Publish to a queue that is not bound: %v", err)
		}
		if err := w.broker.Publish(w.Context(), dead, letter); err != nil {
			w.Errorf("Publish once more: %v", err)
		}
		w.await("the dead letter is there", func() bool { return w.depth(dead) == 1 })
	})
}

// A tool that only reads dead letters goes on with one queue when the other is gone.
func TestReadersGoOn(t *testing.T) {
	inPairs(t, false, func(p *pair) {
		p.closeSource()
		src, err := p.broker.Open(p.Context(), brokers.Subscription{Topics: []string{p.topic, p.other}, InFlight: 10})
		if err != nil {
			p.Fatal(err)
		}
		p.source = src
		p.loses(p.topic)
		p.sends(p.other, "beside")
		p.gets("beside")
		p.hears(p.topic, "does not exist any more", "create it again")
		if err := p.broker.Declare(p.Context(), p.topic); err != nil {
			p.Fatal(err)
		}
		p.sends(p.topic, "anew")
		p.gets("anew")
	})
}
