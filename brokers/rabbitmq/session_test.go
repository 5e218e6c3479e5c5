package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/health"
)

// Delivery tags begin at 1 again on every channel. So a settlement of the old
// session that reached the new one would end a message that nobody handled.
func TestStaleSettlementReachesNothing(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a", "b", "c", "d", "e")
		old := w.receive(5)
		w.tap.cut()
		w.receive(5) // in a new session, with the same tags, and held
		for i, d := range old {
			for _, s := range []brokers.Settlement{{Delivery: d}, retry(d, 0), release(d)} {
				if err := w.settle(s)[0]; !errors.Is(err, brokers.ErrLeaseLost) {
					w.Errorf("%s of delivery %d of the old session: error %v, want ErrLeaseLost", s.Action, i, err)
				}
			}
			if cause := context.Cause(d.Session); cause == nil || cause == context.Canceled {
				w.Errorf("the old session ended with the cause %v", cause)
			}
		}
		w.closeSource()
		w.await("all five messages are in their queue, and no copies", func() bool {
			return w.depth(w.topic) == 5 && w.depth(w.retries()) == 0
		})
	})
}

// A confirm that never comes may mean either; so the original stays, and a
// repeat goes on where it can. The delivery outlives the connection of the
// publisher: what is lost with that is a confirm, not the lease.
func TestUnknownConfirm(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a")
		d := w.receive(1)[0]
		w.tap.set(func(_ *tapped, f frame) verdict {
			if f.is(classBasic, methodAck) {
				return cut
			}
			return pass
		})
		s := retry(d, 300*time.Millisecond)
		for what, err := range map[string]error{
			"Retry":   w.settle(s)[0],
			"Publish": w.broker.Publish(w.Context(), w.topic+".dead", brokers.Message{Body: []byte("b")}),
		} {
			if !errors.Is(err, brokers.ErrUnknownOutcome) || errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrClosed) {
				w.Errorf("%s without a confirm: error %v, want ErrUnknownOutcome, and neither ErrLeaseLost nor ErrClosed", what, err)
			}
		}
		w.tap.set(nil)
		if err := context.Cause(d.Session); err != nil {
			w.Errorf("the session of the delivery ended with the publisher: %v", err)
		}
		if err := w.settle(s)[0]; err != nil {
			w.Fatalf("Retry once more: %v", err)
		}
		ds := w.receive(2) // the unconfirmed copy was stored too
		if got := bodies(ds); got["a"] != 2 {
			w.Fatalf("received %v, want the message twice", got)
		}
		w.ack(ds...)
		w.nothing(500 * time.Millisecond)
	})
}

// If the session is lost between the confirm and the ack, the retry is done:
// the original comes again as a duplicate.
func TestSessionLostAfterConfirm(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a")
		d := w.receive(1)[0]
		consumer := w.tap.conns[0]
		w.tap.set(func(c *tapped, f frame) verdict {
			if f.is(classBasic, methodAck) {
				consumer.Close()
				<-d.Session.Done()
			}
			return pass
		})
		if err := w.settle(retry(d, 300*time.Millisecond))[0]; err != nil {
			w.Fatalf("Retry that was confirmed: %v", err)
		}
		w.tap.set(nil)
		ds := w.receive(2)
		if first, second := ds[0].Meta().Attempt, ds[1].Meta().Attempt; first+second != 1 {
			w.Errorf("attempts are %d and %d, want the original and its copy", first, second)
		}
	})
}

// What no queue takes is confirmed all the same, after it was returned.
func TestReturnedCopyKeepsTheOriginal(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a")
		d := w.receive(1)[0]
		wait := w.prefix + ".delay.v2.2000"
		for _, tt := range []struct {
			delay                time.Duration
			queue, key, exchange string
		}{
			{2 * time.Second, wait, "", wait},
			{300 * time.Millisecond, w.retries(), w.retries(), w.prefix + ".copy.v1"},
		} {
			if err := w.do(func(ch *amqp.Channel) error { return ch.QueueUnbind(tt.queue, tt.key, tt.exchange, nil) }); err != nil {
				w.Fatal(err)
			}
			s := retry(d, tt.delay)
			err := w.settle(s)[0]
			for _, part := range []string{"no queue takes it", "the original stays", tt.exchange, "bound again"} {
				if err == nil || errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), part) {
					w.Errorf("Retry to an exchange without a queue: error %v, want a temporary one that says %q", err, part)
				}
			}
			if err := w.settle(s)[0]; err != nil {
				w.Fatalf("Retry after the binding is back: %v", err)
			}
			d = w.receive(1)[0]
		}
		w.ack(d)
		w.nothing(700 * time.Millisecond)
		if n := w.depth(w.prefix + ".unroutable.v1"); n != 0 {
			w.Errorf("%d copies that were returned are kept as unroutable, want none", n)
		}
	})
}

// A broker whose consumer_timeout is less than it was said to be closes the
// channel, with all that was delivered on it.
func TestChannelClosedByTheBroker(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.source = w.open(w.topic) // on the second connection: nothing is missing, so that no channel ends before
		w.publish("a")
		d := w.receive(1)[0]
		const text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms"
		raw := method(classChannel, methodClose, slices.Concat([]byte{1, 150}, short(text), []byte{0, 0, 0, 0})...)
		raw[2] = 2                                   // the channel of first deliveries, after that for declarations
		w.tap.set(func(_ *tapped, f frame) verdict { // the broker complains about the answer to what it has not sent
			if f.is(classConnection, methodConnectionClose) {
				return drop
			}
			return pass
		})
		w.tap.mu.Lock()
		w.tap.conns[1].inject <- raw
		w.tap.mu.Unlock()
		w.publish("b") // it arrives behind this
		select {
		case <-d.Session.Done():
		case <-time.After(patience):
			w.Fatal("the session outlives its channel")
		}
		if cause := context.Cause(d.Session); !strings.Contains(cause.Error(), "the broker closed the channel") || !strings.Contains(cause.Error(), "timed out") {
			w.Errorf("the session ended with %v, want what the broker said", cause)
		}
		if err := w.settle(brokers.Settlement{Delivery: d})[0]; !errors.Is(err, brokers.ErrLeaseLost) {
			w.Errorf("settling what was on the channel: %v, want ErrLeaseLost", err)
		}
		seen := map[string]int{}
		for len(seen) < 2 {
			for _, d := range w.receive(1) {
				if w.settle(brokers.Settlement{Delivery: d})[0] == nil {
					seen[string(d.Message.Body)]++
				}
			}
		}
	})
}

// A broker that is silent in the middle of a request is given up.
func TestHungRequest(t *testing.T) {
	inWorlds(t, rabbitmq.Options{CallTimeout: 3 * time.Second, ConfirmTimeout: 3 * time.Second, Heartbeat: time.Hour}, func(w *world) {
		thaw := w.tap.freeze()
		defer thaw()
		start := time.Now()
		_, err := w.broker.Open(w.Context(), w.subscription(w.topic))
		if took := time.Since(start); err == nil || took > patience {
			w.Errorf("Open on a silent broker: error %v after %v", err, took)
		}
		err = w.broker.Publish(w.Context(), w.topic, brokers.Message{Body: []byte("a")})
		if perr, ok := errors.AsType[*brokers.PublishError](err); !ok || len(perr.Failed) != 1 {
			w.Errorf("Publish on a silent broker: error %v, want a *PublishError", err)
		}
		thaw()
		w.await("the broker takes a message", func() bool { // within the limit of a call
			return w.broker.Publish(w.Context(), w.topic, brokers.Message{Body: []byte("b")}) == nil
		})
		w.receive(1)
	})
}

// While the broker blocks publishing, hardly anything is handed out, and acks
// go on.
func TestBlocked(t *testing.T) {
	inWorlds(t, rabbitmq.Options{Heartbeat: 2 * time.Second}, func(w *world) {
		w.publish("first", "second", "third")
		first := w.receive(1)
		w.tap.send(method(classConnection, 60, append([]byte{10}, "low memory"...)...))
		ctx, cancel := context.WithTimeout(w.Context(), patience)
		defer cancel()
		var err error
		w.await("the broker blocks publishing", func() bool {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			err = w.broker.Publish(short, w.topic, brokers.Message{Body: []byte("x")})
			return err != nil && strings.Contains(err.Error(), "blocks publishing")
		})
		w.ack(first...)
		start := time.Now()
		w.receive(2)
		if took := time.Since(start); took < time.Second {
			w.Errorf("two deliveries took %v while the broker blocks publishing, want more than a second", took)
		}
		w.tap.send(method(classConnection, 61))
		w.publish("last")
	})
}

// A network that takes and gives nothing any more holds up Close no longer than
// its context.
func TestCloseInBlackHole(t *testing.T) {
	inWorlds(t, rabbitmq.Options{CallTimeout: time.Hour, Heartbeat: time.Hour}, func(w *world) {
		w.publish("a")
		w.receive(1)
		thaw := w.tap.freeze()
		defer thaw()
		ctx, cancel := context.WithTimeout(w.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := w.source.Close(ctx)
		if took := time.Since(start); took > patience {
			w.Errorf("Close: error %v after %v, want it to end with its context, after 300 ms", err, took)
		}
		thaw()
		w.source = w.open(w.topic)
		w.receive(1)
	})
}

// Closing a source gives back what it holds, which costs a message one count
// of the broker at most.
func TestCloseCountsOnce(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a", "b")
		w.receive(1)
		w.closeSource()
		w.await("both messages are back", func() bool { return w.depth(w.topic) == 2 })
		for range 2 {
			var d amqp.Delivery
			if err := w.do(func(ch *amqp.Channel) (err error) {
				d, _, err = ch.Get(w.topic, true)
				return err
			}); err != nil {
				w.Fatal(err)
			}
			if n, _ := d.Headers["x-delivery-count"].(int64); n > 1 {
				w.Errorf("message %q was counted %d times", d.Body, n)
			}
		}
	})
}

// The broker charges a lost connection to every message that was on it. In a
// network that fails again and again a worker must come back less and less
// often, or messages that nobody has run look as if they killed their workers.
func TestFailingNetworkIsNotChargedToMessages(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		var cuts atomic.Int64
		w.tap.set(func(_ *tapped, f frame) verdict {
			if f.is(classBasic, methodDeliver) {
				cuts.Add(1)
				return cut
			}
			return pass
		})
		w.publish("innocent")
		ctx, cancel := context.WithTimeout(w.Context(), 4*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			w.source.Receive(ctx, 1)
		}
		if n := cuts.Load(); n > 6 {
			w.Errorf("the network failed %d times in 4 s, want 6 at most: the worker comes back less and less often", n)
		}
		w.await("the network fails twice", func() bool {
			short, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
			defer cancel()
			w.source.Receive(short, 1)
			return cuts.Load() >= 2
		})
		w.tap.set(nil)
		ds := w.receive(1)
		if ds[0].Abandoned > 0 {
			w.Errorf("the message counts as abandoned %d times, want 0: only the network has failed", ds[0].Abandoned)
		}
		w.ack(ds...)
	})
}

// The source tells of its connection, and why it is lost.
func TestConnection(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		connection := w.source.(health.Connected).Connection
		if c := connection(); c.State != health.Running || c.Since.IsZero() || c.Error != "" {
			w.Errorf("after Open: %+v, want it to be connected", c)
		}
		opened := connection().Since
		w.tap.cut()
		w.await("the loss is told", func() bool {
			short, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
			defer cancel()
			w.source.Receive(short, 1)
			return connection().Error != ""
		})
		w.publish("later")
		w.ack(w.receive(1)...)
		if c := connection(); c.State != health.Running || !c.Since.After(opened) || c.Error == "" {
			w.Errorf("after the loss: %+v, want it to be connected again, with the last error", c)
		}
	})
}

// Messages that were lost together often are handed out few at a time: one of
// them may kill its worker, and the others must not die of it.
func TestSuspectsAreTriedApart(t *testing.T) {
	const messages, most = 16, 8 // up to four times 1 and a sixteenth of those that wait
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		for i := range messages {
			w.publish(fmt.Sprint(i))
		}
		for range 3 {
			w.receive(messages)
			w.tap.cut()
		}
		seen := map[string]int{}
		for len(seen) < messages {
			tried := append(w.receive(1), w.within(100*time.Millisecond)...)
			if len(tried) > most {
				w.Fatalf("%d suspects are handed out at once, want at most %d", len(tried), most)
			}
			for body := range bodies(tried) {
				seen[body]++
			}
			w.ack(tried...)
		}
	})
}

// A message that kills its workers is charged for that. The others in its queue
// are until they are taken for suspects too, and not again while they wait behind it.
func TestKillerIsChargedAlone(t *testing.T) {
	const messages, killer, most = 60, "20", 5
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		for i := range messages {
			w.publish(fmt.Sprint(i))
		}
		deaths := map[string]int{} // that a message has been charged for when it was handled
		charged := most
		for len(deaths) < messages {
			ds, err := w.source.Receive(w.Context(), 10)
			if err != nil {
				w.Fatal(err)
			}
			if i := slices.IndexFunc(ds, func(d *brokers.Delivery) bool { return string(d.Message.Body) == killer }); i >= 0 && ds[i].Abandoned < 3 {
				arrived := ds[i].LeaseUntil.Add(-w.source.Capabilities().Lease)
				if care := rabbitmq.Seclusion(rabbitmq.DeliveryCount(ds[i])); care > 0 && time.Since(arrived) >= care {
					charged++ // this machine was too slow to die before others came
				}
				w.die(ds[i])
				w.source = w.open(w.topic)
				continue
			}
			for _, d := range ds {
				deaths[string(d.Message.Body)] = rabbitmq.DeliveryCount(d)
			}
			w.ack(ds...)
		}
		for body, n := range deaths {
			if body != killer && n > charged {
				w.Errorf("message %s was charged for %d deaths of its worker, want at most %d", body, n, charged)
			}
		}
	})
}

// A suspect whose handler takes its time holds nobody: after a moment the others
// come, also of an ordered topic.
func TestSlowSuspectHoldsNobody(t *testing.T) {
	for name, ordered := range map[string]bool{"unordered": false, "ordered": true} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, rabbitmq.Options{}, func(w *world) {
				const messages = 4
				w.closeSource()
				w.number(w.topic, 0, messages)
				for range 3 {
					w.lose(messages)
				}
				if ordered {
					w.openOrdered(10)
				} else {
					w.source = w.open(w.topic)
				}
				ds := w.receive(messages) // the first is not settled meanwhile
				w.ack(ds...)
			})
		})
	}
}

// die ends the worker that holds d, as a kill does.
func (w *world) die(d *brokers.Delivery) {
	w.Helper()
	w.tap.cut()
	select {
	case <-d.Session.Done(): // or closing might settle what is left
	case <-time.After(patience):
		w.Fatal("the session outlives its connection")
	}
	w.closeSource()
}

// within returns what is received within d.
func (w *world) within(d time.Duration) (ds []*brokers.Delivery) {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	for ctx.Err() == nil {
		got, _ := w.source.Receive(ctx, 50)
		ds = append(ds, got...)
	}
	return ds
}

// The broker counts what is given back. So a buffer that nobody takes from is
// given back once, and stays in the queue until somebody does.
func TestPauseWhenNobodyReceives(t *testing.T) {
	inWorlds(t, rabbitmq.Options{ConsumerTimeout: 2 * time.Second}, func(w *world) {
		w.grow()
		w.publish("held")
		held := w.receive(1)[0]
		w.publish("a", "b")
		w.await("the two wait with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.await("they are given back", func() bool { return w.depth(w.topic) == 2 })
		for paused := time.Now(); time.Since(paused) < 4*time.Second; <-time.After(100 * time.Millisecond) {
			if n := w.depth(w.topic); n < 2 {
				w.Fatalf("%d messages are ready after %v, want 2 until somebody receives", n, time.Since(paused))
			}
		}
		if err := w.settle(brokers.Settlement{Delivery: held})[0]; !errors.Is(err, brokers.ErrLeaseLost) {
			w.Errorf("settling after the lease: %v, want ErrLeaseLost", err)
		}
		if ds := w.receive(3); len(bodies(ds)) != 3 || ds[0].Abandoned+ds[1].Abandoned+ds[2].Abandoned > 0 {
			w.Errorf("received %v, want all three and none abandoned", bodies(ds))
		} else {
			w.ack(ds...)
		}
	})
}

// What the broker has counted as often as says nothing about a message is given back by a copy, also when it
// waited in the buffer of a worker that ends.
func TestCloseRenewsWhatWasLostOften(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.publish("unlucky")
		for range bystanders {
			w.lose(1)
		}
		w.source = w.open(w.topic)
		w.await("the message waits with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.closeSource()
		w.await("a copy has taken its place", func() bool { return w.depth(w.topic) == 0 && w.depth(w.retries()) == 1 })
		w.source = w.open(w.topic)
		if d := w.receive(1)[0]; d.Abandoned != 0 || d.Message.ID != "unlucky" || d.Meta().Attempt != 0 {
			t.Errorf("received %+v, want the message as it was", d)
		} else {
			w.ack(d)
		}
	})
}

// lose has another worker die with n messages.
func (w *world) lose(n int) {
	w.Helper()
	conn, err := amqp.Dial(w.url)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		w.Fatal(err)
	}
	for range n {
		w.await("there is a message to lose", func() bool {
			_, ok, err := ch.Get(w.topic, false)
			return err == nil && ok
		})
	}
}

// A Receive that comes while the session is about to pause gets what there is
// all the same.
func TestReceiveDuringPause(t *testing.T) {
	inWorlds(t, rabbitmq.Options{ConsumerTimeout: 2 * time.Second}, func(w *world) {
		pausing, received := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.publish("waiting")
		w.await("it waits with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.tap.set(func(_ *tapped, f frame) verdict {
			if f.is(classBasic, methodCancelOK) {
				once.Do(func() { close(pausing) })
				<-received
			}
			return pass
		})
		select {
		case <-pausing:
		case <-time.After(patience):
			w.Fatal("the worker does not pause")
		}
		time.AfterFunc(300*time.Millisecond, func() { close(received) }) // by then Receive waits
		w.ack(w.receive(1)...)
	})
}
