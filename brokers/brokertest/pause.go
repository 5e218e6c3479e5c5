package brokertest

import (
	"errors"
	"fmt"
	"slices"
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
func (w *worker) suspend(topics ...string) error {
	done := make(chan struct{})
	w.tr.calls.Go(func() {
		w.src.Pause(topics...)
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-time.After(w.tr.Slack):
		return fmt.Errorf("source.Pause(%q) has not returned after %v", topics, w.tr.Slack)
	}
}

// pauseHolds takes one of several messages, so that the adapter may have
// buffered the others.
func pauseHolds(tr *trial) error {
	topic := tr.Topic("orders")
	w, err := tr.open(topic, tr.Topic("refunds"))
	if err != nil {
		return err
	}
	if err := tr.publish(topic, text(numbered("fetched", 4)...)...); err != nil {
		return err
	}
	w.max = 1
	first, err := w.some()
	if err != nil {
		return err
	}
	if err := w.suspend(topic); err != nil {
		return err
	}
	if err := w.quiet(2 * tr.Unit); err != nil {
		return fmt.Errorf("while %q is paused: %w", topic, err)
	}
	if err := w.release(first); err != nil {
		return err
	}
	if err := tr.publish(topic, text("fresh")...); err != nil {
		return err
	}
	if err := w.quiet(2 * tr.Unit); err != nil {
		return fmt.Errorf("after a Release and a Publish, while %q is paused: %w", topic, err)
	}
	return nil
}

// some returns any message that is waiting.
func (w *worker) some() (*arrival, error) {
	a, err := w.next(deadline(w.tr.patience))
	if a == nil && err == nil {
		err = fmt.Errorf("nothing came from %q within %v although messages are waiting", w.sub.Topics, w.tr.patience)
	}
	return a, err
}

func pauseHoldsRetries(tr *trial) error {
	topic := tr.Topic("orders")
	w, err := tr.open(topic, tr.Topic("refunds"))
	if err != nil {
		return err
	}
	if err := tr.publish(topic, text("due before", "due meanwhile")...); err != nil {
		return err
	}
	got, err := w.expect(tr.patience, "due before", "due meanwhile")
	if err != nil {
		return err
	}
	for i, delay := range []time.Duration{tr.Unit, 3 * tr.Unit} {
		if err := w.retry(got[i], delay); err != nil {
			return err
		}
	}
	tr.pause(2 * tr.Unit)
	if err := w.suspend(topic); err != nil {
		return err
	}
	if err := w.quiet(4 * tr.Unit); err != nil {
		return fmt.Errorf("while %q is paused: %w", topic, err)
	}
	return nil
}

// pauseLetsOthers has more waiting in the paused topic than the worker may hold,
// and a retry there that is due before that of the other topic.
func pauseLetsOthers(tr *trial) error {
	paused, other := tr.Topic("orders"), tr.Topic("refunds")
	w, err := tr.open(paused, other)
	if err != nil {
		return err
	}
	for topic, body := range map[string]string{paused: "held up", other: "retried"} {
		if err := tr.publish(topic, text(body)...); err != nil {
			return err
		}
	}
	got, err := w.expect(tr.patience, "held up", "retried")
	if err != nil {
		return err
	}
	if err := w.retry(got[0], tr.Unit); err != nil {
		return err
	}
	if err := w.suspend(paused); err != nil {
		return err
	}
	backlog, fresh := numbered("backlog", w.sub.InFlight+8), numbered("fresh", w.sub.InFlight+8)
	if err := tr.publish(paused, text(backlog...)...); err != nil {
		return err
	}
	return w.flows(got[1], other, fresh)
}

// flows retries a, and has fresh and then a come from its topic.
func (w *worker) flows(a *arrival, topic string, fresh []string) error {
	tr, delay := w.tr, 2*w.tr.Unit
	if err := w.retry(a, delay); err != nil {
		return err
	}
	retried := time.Now()
	if err := tr.publish(topic, text(fresh...)...); err != nil {
		return err
	}
	got, err := w.consume(tr.patience, append(fresh, a.body())...)
	if err != nil {
		return fmt.Errorf("while another topic is paused: %w", err)
	}
	again := got[len(fresh)]
	if waited := again.at.Sub(retried); waited > delay+w.caps.Granularity+tr.Slack {
		return fmt.Errorf("%s was retried in %v and came after %v, while another topic is paused", again, delay, waited)
	}
	return nil
}

// pauseEnds pauses first the one topic, then the other, then none, twice over.
func pauseEnds(tr *trial) error {
	topics := []string{tr.Topic("orders"), tr.Topic("refunds")}
	w, err := tr.open(topics...)
	if err != nil {
		return err
	}
	for n := range 2 {
		if err := w.suspend(topics[0]); err != nil {
			return err
		}
		for i, later := range [][]string{topics[1:], nil} {
			if err := w.suspend(topics[i]); err != nil { // of the first, for the second time
				return err
			}
			body := fmt.Sprintf("message %d to %s", n, topics[i])
			if err := tr.publish(topics[i], text(body)...); err != nil {
				return err
			}
			if err := w.suspend(later...); err != nil {
				return err
			}
			if _, err := w.consume(tr.patience, body); err != nil {
				return fmt.Errorf("after Pause(%q) and then Pause(%q): %w", topics[i], later, err)
			}
		}
	}
	return nil
}

func pauseUnknown(tr *trial) error {
	const unknown = "unknown"
	paused, other := tr.Topic("orders"), tr.Topic("refunds")
	w, err := tr.open(paused, other)
	if err != nil {
		return err
	}
	flows := func(topic, body string) error {
		if err := tr.publish(topic, text(body)...); err != nil {
			return err
		}
		_, err := w.consume(tr.patience, body)
		return err
	}
	if err := w.suspend(unknown); err != nil {
		return err
	}
	if err := errors.Join(flows(paused, "to one topic"), flows(other, "to the other")); err != nil {
		return fmt.Errorf("after Pause(%q): %w", unknown, err)
	}
	if err := w.suspend(unknown, paused, unknown); err != nil {
		return err
	}
	if err := tr.publish(paused, text("to the paused one")...); err != nil {
		return err
	}
	if err := errors.Join(w.quiet(2*tr.Unit), flows(other, "to the other, again")); err != nil {
		return fmt.Errorf("after Pause(%q, %q): %w", unknown, paused, err)
	}
	return nil
}

// pauseLosesNothing lets another source have of a paused topic what it can, then
// resumes it, and then closes a source while it is paused.
func pauseLosesNothing(tr *trial) error {
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return err
	}
	w.max = 1
	rest, err := w.fetchAndPause(numbered("early", 6)...)
	if err != nil {
		return err
	}
	if rest, err = tr.elsewhere(topic, rest); err != nil {
		return err
	}
	if err := w.suspend(); err != nil {
		return err
	}
	if _, err := w.consume(tr.patience, rest...); err != nil {
		return fmt.Errorf("after a pause, and another source: %w", err)
	}
	if rest, err = w.fetchAndPause(numbered("late", 4)...); err != nil {
		return err
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	if _, err := w.consume(tr.patience, rest...); err != nil {
		return fmt.Errorf("after a pause that ended with its source: %w", err)
	}
	return nil
}

// elsewhere lets another source have what comes, and returns what is left.
func (tr *trial) elsewhere(topic string, bodies []string) (rest []string, err error) {
	w, err := tr.open(topic)
	if err != nil {
		return nil, err
	}
	err = w.work(func(a *arrival) bool {
		bodies = slices.DeleteFunc(bodies, func(body string) bool { return body == a.body() })
		return true
	})
	return bodies, errors.Join(err, w.close())
}

// fetchAndPause acks one of several messages, so that the adapter may have
// buffered the others, and pauses their topic. It returns the others.
func (w *worker) fetchAndPause(bodies ...string) (rest []string, err error) {
	topic := w.sub.Topics[0]
	if err := w.tr.publish(topic, text(bodies...)...); err != nil {
		return nil, err
	}
	a, err := w.some()
	if err != nil {
		return nil, err
	}
	if err := w.ack(a); err != nil {
		return nil, err
	}
	rest = slices.DeleteFunc(bodies, func(body string) bool { return body == a.body() })
	return rest, w.suspend(topic)
}

// pauseNotCounted pauses a topic for moments before each of its messages, and
// for longer than a lease before the last ones.
func pauseNotCounted(tr *trial) error {
	const short = 20
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return err
	}
	w.max = 1
	bodies := numbered("message", short+4)
	if err := tr.publish(topic, text(bodies...)...); err != nil {
		return err
	}
	came := make(map[string]bool)
	for n := 0; len(came) < len(bodies); n++ {
		length := tr.Unit / 10
		if n == short {
			length = w.longPause()
		}
		if n <= short {
			if err := w.interrupt(length); err != nil {
				return err
			}
		}
		a, err := w.some()
		if err != nil {
			return fmt.Errorf("after %d pauses: %w", n, err)
		}
		if came[a.body()] && tr.Virtual {
			return fmt.Errorf("%s came twice, after %d pauses", a, n)
		}
		came[a.body()] = true
		if err := w.ackUnchanged(a); err != nil {
			return fmt.Errorf("after %d pauses: %w", n, err)
		}
	}
	return nil
}

// ackUnchanged acks a message to which nothing has happened.
func (w *worker) ackUnchanged(a *arrival) error {
	if a.Meta.Attempt != 0 || a.Abandoned != 0 {
		return fmt.Errorf("%s came with Attempt %d and Abandoned %d, want 0 and 0", a, a.Meta.Attempt, a.Abandoned)
	}
	return w.ack(a)
}

// interrupt pauses all topics for d.
func (w *worker) interrupt(d time.Duration) error {
	if err := w.suspend(w.sub.Topics...); err != nil {
		return err
	}
	if err := w.quiet(d); err != nil {
		return fmt.Errorf("while %q is paused: %w", w.sub.Topics, err)
	}
	return w.suspend()
}

// longPause is longer than two leases, where that can be waited for.
func (w *worker) longPause() time.Duration {
	const units = 5
	leases := 2*w.caps.Lease + w.tr.Unit
	if w.tr.affordable(leases, "") != nil {
		return units * w.tr.Unit
	}
	return max(leases, units*w.tr.Unit)
}
