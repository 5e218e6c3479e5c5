package brokertest

import (
	"fmt"
	"sync"
	"time"
)

var topicClauses = []clause{
	{name: "topics-all", needs: "ack-removes topic-named retry-returns",
		rule: "A subscription of several topics must receive from all of them, retries included.",
		check: steps(open("orders", "refunds", "invoices"),
			publish("an order"), publishTo("refunds", "a refund"), publishTo("invoices", "an invoice"),
			times(2, expect("an order", "a refund", "an invoice"), each(sameTopic), retry(1)))},
	{name: "topics-own", needs: "ack-removes topic-named",
		rule: "A source must not receive from topics that its subscription does not name.",
		check: steps(open("refunds"), publish("retried", "fresh"), expect("retried", "fresh"),
			retry(1, "retried"), release("fresh"), shut, open("orders"), quiet(2))},
	{name: "topics-fair", needs: "ack-removes topic-named topics-all", check: topicsFair,
		rule: "No topic of a subscription must starve while another one always has messages."},
	{name: "share-once", needs: "ack-removes topic-named", check: shareOnce,
		rule: "Sources of one group must share the messages: none is missed, and each goes to one of them."},
	{name: "share-idle", needs: "ack-removes topic-named lease-ends share-once", long: true,
		rule: "A source that nobody receives from must not keep messages from the others of its group for longer than a lease, whatever it has fetched.",
		check: steps(leased("first"), ack(), publish(numbered("message", 6)...), take(1), ack(),
			another, on(owesLease), consumeRest)},
	{name: "topic-deleted", needs: "ack-removes topic-named topics-all topics-own topics-fair share-once", with: "Delete", long: true, check: topicDeleted,
		rule: "A topic that is deleted while a source receives from it must stop no other topic: Receive must name it with a *brokers.TopicError, " +
			"and must receive from it again when it is created again. The same holds for the only topic of a source."},
}

// topicsFair refills one topic as fast as it is worked off.
func topicsFair(tr *trial) {
	most := by(tr, 300, 100)
	w := tr.open("orders", "refunds")
	calm := w.sub.Topics[1]
	w.publish(numbered("backlog", 30)...)
	tr.publish(calm, text("the calm one")...)
	for n := range most {
		a := w.some()
		w.ack(a)
		if a.Message.Topic == calm {
			return
		}
		w.publish(fmt.Sprintf("more %d", n))
	}
	tr.failf("%d messages came from %q, and none from %q, where one was waiting from the start", most, w.topic(), calm)
}

// topicDeleted deletes one of two topics, and the only topic of another source.
func topicDeleted(tr *trial) {
	both, alone := tr.open("orders", "refunds"), tr.open("invoices")
	losing := []*worker{both, alone} // their first topics
	other := func(body string) {
		tr.publish(both.sub.Topics[1], text(body)...)
		both.consume(body)
	}
	for _, w := range losing {
		w.publish("before, to " + w.topic())
		w.consume("before, to " + w.topic())
		w.quiet(tr.Unit)
	}
	var restore []func()
	for _, w := range losing {
		restore = append(restore, tr.Delete(tr.broker, w.topic()))
		tr.did("%q was deleted", w.topic())
	}
	other("beside")
	tr.together(both.losesFirst, alone.losesFirst)
	other("still beside")
	for i, w := range losing {
		restore[i]()
		tr.did("%q was created again", w.topic())
	}
	both.publish("again")
	alone.publish("again alone")
	tr.together(func() { both.consume("again") }, func() { alone.consume("again alone") })
}

// losesFirst demands that Receive reports the loss of the first topic.
func (w *worker) losesFirst() {
	until := deadline(w.tr.patience)
	for !w.losses[w.topic()] {
		if !time.Now().Before(until) {
			w.tr.failf("source.Receive from %q has not returned a *brokers.TopicError of %q within %v", w.sub.Topics, w.topic(), w.tr.patience)
		}
		w.fetch(earlier(until, deadline(w.tr.Unit)))
	}
}

// shareOnce works off one topic with two sources at the same time.
func shareOnce(tr *trial) {
	bodies := numbered("message", 30)
	ws := [2]*worker{tr.open("orders"), tr.open("orders")}
	ws[0].max, ws[1].max = 2, 2
	ws[0].publish(bodies...)
	var mu sync.Mutex
	counts := make(map[string]int)
	count := func(a *arrival) (more bool) {
		mu.Lock()
		defer mu.Unlock()
		counts[a.body()]++
		return len(counts) < len(bodies)
	}
	tr.together(func() { ws[0].work(count) }, func() { ws[1].work(count) })
	for _, body := range bodies {
		if n := counts[body]; n == 0 || n > 1 && tr.Virtual {
			tr.failf("two sources of %q: message %q was received %d times by both together", ws[0].topic(), body, n)
		}
	}
}

// work acks what comes, tells count, and ends when count says so or when
// nothing has come for a while.
func (w *worker) work(count func(*arrival) bool) {
	for more := true; more; {
		a := w.next(deadline(4 * w.tr.Unit))
		if a == nil {
			return
		}
		more = count(a)
		w.ack(a)
	}
}

var pauseClauses = []clause{
	{name: "pause-holds", needs: "topics-all release-returns receive-after-pause receive-ends",
		rule: "Pause must return at once, and from then on nothing of a paused topic must be handed out: not what is fetched already, nor what is published or released later.",
		check: steps(open("orders", "refunds"), publish(numbered("fetched", 4)...), take(1), pause("orders"), quiet(2),
			release(), publish("fresh"), quiet(2))},
	{name: "pause-holds-retries", needs: "pause-holds",
		rule: "A retry of a paused topic must not be handed out, whether it is due before the pause or while it lasts.",
		check: steps(open("orders", "refunds"), publish("due before", "due meanwhile"), expect("due before", "due meanwhile"),
			retry(1, "due before"), retry(3, "due meanwhile"), wait(2), pause("orders"), quiet(4))},
	{name: "pause-lets-others", needs: "pause-holds-retries retry-not-late",
		rule: "The other topics must flow as if the paused one was not there, whatever is waiting in it: none of their messages is held up, and no retry is late.",
		check: steps(open("orders", "refunds"), publish("held up"), publishTo("refunds", "retried"), expect("held up", "retried"),
			retry(1, "held up"), pause("orders"), publish(numbered("backlog", 40)...), // more than the worker may hold
			retry(2, "retried"), publishTo("refunds", numbered("fresh", 40)...),
			consume(append(numbered("fresh", 40), "retried")...), each(notLate))},
	{name: "pause-ends", needs: "pause-lets-others",
		rule:  "Each Pause must replace the one before: a topic that it leaves out is handed out again, and Pause() resumes all.",
		check: steps(open("orders", "refunds"), pausesInTurn("first round"), pausesInTurn("second round"))},
	{name: "pause-unknown", needs: "pause-ends",
		rule: "A name in Pause that is no topic of the subscription must have no effect.",
		check: steps(open("orders", "refunds"), pause("unknown"), publish("to one"), consume("to one"),
			publishTo("refunds", "to the other"), consume("to the other"),
			pause("unknown", "orders", "unknown"), publish("to the paused one"), quiet(2),
			publishTo("refunds", "to the other, again"), consume("to the other, again"))},
	{name: "pause-loses-nothing", needs: "pause-ends close-releases close-apart",
		rule: "What was fetched before a pause must come after it, or to another source.",
		check: steps(open("orders"), publish(numbered("early", 6)...), take(1), ack(), pause("orders"),
			another, on(worksOff), shut, // what comes to another source
			pause(), consumeRest, publish(numbered("late", 4)...), take(1), ack(), pause("orders"), reopen, consumeRest)},
	{name: "pause-not-counted", needs: "pause-loses-nothing", long: true,
		rule:  "Pauses must not change what a message is: however many and long they are, it comes with Attempt and Abandoned as before and can be settled.",
		check: steps(open("orders"), publish(numbered("message", 24)...), most(1), on(pauseNotCounted))},
}

func pausesInTurn(round string) step {
	one, other := "to one, "+round, "to the other, "+round
	return steps(pause("orders"), pause("orders"), publishTo("orders", one), pause("refunds"), consume(one),
		pause("refunds"), publishTo("refunds", other), pause(), consume(other))
}

// notLate demands that a retry came when its delay was over. In real time it is
// enough that it came: how busy the broker is decides on more.
func notLate(w *worker, a *arrival) error {
	due := w.tr.fateOf(a.body(), nil).due
	if late := a.at.Sub(due); w.tr.Virtual && !due.IsZero() && late > w.caps.Granularity+w.tr.Slack {
		return fmt.Errorf("%s came %v after the delay of its retry was over", a, late)
	}
	return nil
}

func worksOff(w *worker) { w.work(func(*arrival) bool { return true }) }

// pauseNotCounted pauses a topic for moments before each of its messages, and
// for longer than a lease before the last ones.
func pauseNotCounted(w *worker) {
	tr := w.tr
	const short = 20
	long := 5 * tr.Unit
	if leases := 2*w.caps.Lease + tr.Unit; tr.affords(leases) {
		long = max(long, leases)
	}
	for n := 0; len(tr.rest()) > 0; n++ {
		switch {
		case n < short:
			w.interrupt(tr.Unit / 10)
		case n == short:
			w.interrupt(long)
		}
		a := w.some()
		if tr.fateOf(a.body(), nil).acks > 0 && tr.Virtual {
			tr.failf("%s came twice, after %d pauses", a, n)
		}
		if a.Meta().Attempt != 0 || a.Abandoned != 0 {
			tr.failf("%s came with Attempt %d and Abandoned %d after %d pauses, want 0 and 0", a, a.Meta().Attempt, a.Abandoned, n)
		}
		w.ack(a)
	}
}

// interrupt pauses all topics for d.
func (w *worker) interrupt(d time.Duration) {
	w.suspend(w.sub.Topics...)
	w.quiet(d)
	w.suspend()
}
