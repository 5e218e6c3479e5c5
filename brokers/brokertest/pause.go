package brokertest

import (
	"fmt"
	"time"
)

func pauseClauses() []clause {
	return []clause{
		{
			name:  "pause-holds",
			rule:  "Pause must return at once, and from then on nothing of a paused topic must be handed out: not what is fetched already, nor what is published or released later.",
			needs: []string{"topics-all", "release-returns", "receive-after-pause", "receive-ends"},
			check: pauseHolds,
		},
		{
			name:  "pause-holds-retries",
			rule:  "A retry of a paused topic must not be handed out, whether it is due before the pause or while it lasts.",
			needs: []string{"pause-holds"},
			check: pauseHoldsRetries,
		},
		{
			name:  "pause-lets-others",
			rule:  "The other topics must flow as if the paused one was not there, whatever is waiting in it: none of their messages is held up, and no retry is late.",
			needs: []string{"pause-holds-retries", "retry-not-late"},
			check: pauseLetsOthers,
		},
		{
			name:  "pause-ends",
			rule:  "Each Pause must replace the one before: a topic that it leaves out is handed out again, and Pause() resumes all.",
			needs: []string{"pause-lets-others"},
			check: pauseEnds,
		},
		{
			name:  "pause-unknown",
			rule:  "A name in Pause that is no topic of the subscription must have no effect.",
			needs: []string{"pause-ends"},
			check: pauseUnknown,
		},
		{
			name:  "pause-loses-nothing",
			rule:  "What was fetched before a pause must come after it, or to another source.",
			needs: []string{"pause-ends", "close-releases", "close-apart"},
			check: pauseLosesNothing,
		},
		{
			name:  "pause-not-counted",
			rule:  "Pauses must not change what a message is: however many and long they are, it comes with Attempt and Abandoned as before and can be settled.",
			long:  true,
			needs: []string{"pause-loses-nothing"},
			check: pauseNotCounted,
		},
	}
}

// suspend calls Pause, which has to return at once. It is for when no Receive
// is under way.
func (w *worker) suspend(topics ...string) {
	done := make(chan struct{})
	w.tr.calls.Go(func() {
		w.src.Pause(topics...)
		close(done)
	})
	select {
	case <-done:
	case <-time.After(w.tr.Slack):
		w.tr.failf("source.Pause(%q) has not returned after %v", topics, w.tr.Slack)
	}
}

// pauseHolds takes one of several messages, so that the adapter may have
// buffered the others.
func pauseHolds(tr *trial) {
	topic := tr.Topic("orders")
	w := tr.open(topic, tr.Topic("refunds"))
	tr.publish(topic, text(numbered("fetched", 4)...)...)
	w.max = 1
	first := w.some()
	w.suspend(topic)
	tr.note("while %q is paused", topic)
	w.quiet(2 * tr.Unit)
	w.release(first)
	tr.publish(topic, text("fresh")...)
	tr.note("after a Release and a Publish, while %q is paused", topic)
	w.quiet(2 * tr.Unit)
}

// some returns any message that is waiting.
func (w *worker) some() *arrival {
	a := w.next(deadline(w.tr.patience))
	if a == nil {
		w.tr.failf("nothing came from %q within %v although messages are waiting", w.sub.Topics, w.tr.patience)
	}
	return a
}

func pauseHoldsRetries(tr *trial) {
	topic := tr.Topic("orders")
	w := tr.open(topic, tr.Topic("refunds"))
	tr.publish(topic, text("due before", "due meanwhile")...)
	got := w.expect(tr.patience, "due before", "due meanwhile")
	for i, delay := range []time.Duration{tr.Unit, 3 * tr.Unit} {
		w.retry(got[i], delay)
	}
	tr.pause(2 * tr.Unit)
	w.suspend(topic)
	tr.note("while %q is paused", topic)
	w.quiet(4 * tr.Unit)
}

// pauseLetsOthers has more waiting in the paused topic than the worker may hold,
// and a retry there that is due before that of the other topic.
func pauseLetsOthers(tr *trial) {
	paused, other := tr.Topic("orders"), tr.Topic("refunds")
	w := tr.open(paused, other)
	for topic, body := range map[string]string{paused: "held up", other: "retried"} {
		tr.publish(topic, text(body)...)
	}
	got := w.expect(tr.patience, "held up", "retried")
	w.retry(got[0], tr.Unit)
	w.suspend(paused)
	backlog, fresh := numbered("backlog", w.sub.InFlight+8), numbered("fresh", w.sub.InFlight+8)
	tr.publish(paused, text(backlog...)...)
	w.flows(got[1], other, fresh)
}

// flows retries a, and has fresh and then a come from its topic.
func (w *worker) flows(a *arrival, topic string, fresh []string) {
	tr, delay := w.tr, 2*w.tr.Unit
	w.retry(a, delay)
	retried := time.Now()
	tr.publish(topic, text(fresh...)...)
	tr.note("while another topic is paused")
	got := w.consume(tr.patience, append(fresh, a.body())...)
	again := got[len(fresh)]
	// In real time it is enough that it came during the pause: how busy the broker
	// is decides on more.
	if waited := again.at.Sub(retried); tr.Virtual && waited > delay+w.caps.Granularity+tr.Slack {
		tr.failf("%s was retried in %v and came after %v, while another topic is paused", again, delay, waited)
	}
}

// pauseEnds pauses first the one topic, then the other, then none, twice over.
func pauseEnds(tr *trial) {
	topics := []string{tr.Topic("orders"), tr.Topic("refunds")}
	w := tr.open(topics...)
	for n := range 2 {
		w.suspend(topics[0])
		for i, later := range [][]string{topics[1:], nil} {
			w.suspend(topics[i]) // of the first, for the second time
			body := fmt.Sprintf("message %d to %s", n, topics[i])
			tr.publish(topics[i], text(body)...)
			w.suspend(later...)
			tr.note("after Pause(%q) and then Pause(%q)", topics[i], later)
			w.consume(tr.patience, body)
		}
	}
}

func pauseUnknown(tr *trial) {
	const unknown = "unknown"
	paused, other := tr.Topic("orders"), tr.Topic("refunds")
	w := tr.open(paused, other)
	flows := func(topic, body string) {
		tr.publish(topic, text(body)...)
		w.consume(tr.patience, body)
	}
	w.suspend(unknown)
	tr.note("after Pause(%q)", unknown)
	flows(paused, "to one topic")
	flows(other, "to the other")
	w.suspend(unknown, paused, unknown)
	tr.publish(paused, text("to the paused one")...)
	tr.note("after Pause(%q, %q)", unknown, paused)
	w.quiet(2 * tr.Unit)
	flows(other, "to the other, again")
}

// pauseLosesNothing lets another source have of a paused topic what it can, then
// resumes it, and then closes a source while it is paused.
func pauseLosesNothing(tr *trial) {
	w, topic := tr.empty()
	w.max = 1
	rest := w.fetchAndPause(numbered("early", 6)...)
	rest = tr.elsewhere(topic, rest)
	w.suspend()
	tr.note("after a pause, and another source")
	w.consume(tr.patience, rest...)
	rest = w.fetchAndPause(numbered("late", 4)...)
	w = w.reopen()
	tr.note("after a pause that ended with its source")
	w.consume(tr.patience, rest...)
}

// elsewhere lets another source have what comes, and returns what is left.
func (tr *trial) elsewhere(topic string, bodies []string) (rest []string) {
	w := tr.open(topic)
	w.work(func(a *arrival) bool {
		bodies = without(bodies, a)
		return true
	})
	w.close()
	return bodies
}

// fetchAndPause acks one of several messages, so that the adapter may have
// buffered the others, and pauses their topic. It returns the others.
func (w *worker) fetchAndPause(bodies ...string) (rest []string) {
	topic := w.sub.Topics[0]
	w.tr.publish(topic, text(bodies...)...)
	a := w.some()
	w.ack(a)
	rest = without(bodies, a)
	w.suspend(topic)
	return rest
}

// pauseNotCounted pauses a topic for moments before each of its messages, and
// for longer than a lease before the last ones.
func pauseNotCounted(tr *trial) {
	const short = 20
	bodies := numbered("message", short+4)
	w := tr.stocked(bodies...)
	w.max = 1
	came := make(map[string]bool)
	for n := 0; len(came) < len(bodies); n++ {
		length := tr.Unit / 10
		if n == short {
			length = w.longPause()
		}
		if n <= short {
			w.interrupt(length)
		}
		tr.note("after %d pauses", n)
		a := w.some()
		if came[a.body()] && tr.Virtual {
			tr.failf("%s came twice, after %d pauses", a, n)
		}
		came[a.body()] = true
		w.ackUnchanged(a)
	}
}

// ackUnchanged acks a message to which nothing has happened.
func (w *worker) ackUnchanged(a *arrival) {
	if a.Meta().Attempt != 0 || a.Abandoned != 0 {
		w.tr.failf("%s came with Attempt %d and Abandoned %d, want 0 and 0", a, a.Meta().Attempt, a.Abandoned)
	}
	w.ack(a)
}

// interrupt pauses all topics for d.
func (w *worker) interrupt(d time.Duration) {
	w.suspend(w.sub.Topics...)
	w.tr.note("while %q is paused", w.sub.Topics)
	w.quiet(d)
	w.suspend()
}

// longPause is longer than two leases, where that can be waited for.
func (w *worker) longPause() time.Duration {
	const units = 5
	leases := 2*w.caps.Lease + w.tr.Unit
	if !w.tr.affords(leases) {
		return units * w.tr.Unit
	}
	return max(leases, units*w.tr.Unit)
}
