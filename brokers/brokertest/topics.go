package brokertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

func topicClauses() []clause {
	needs := []string{"ack-removes", "topic-named"}
	return []clause{
		{
			name:  "topics-all",
			rule:  "A subscription of several topics must receive from all of them, retries included.",
			needs: append(needs, "retry-returns"),
			check: topicsAll,
		},
		{
			name:  "topics-own",
			rule:  "A source must not receive from topics that its subscription does not name.",
			needs: needs,
			check: topicsOwn,
		},
		{
			name:  "topics-fair",
			rule:  "No topic of a subscription must starve while another one always has messages.",
			needs: append(needs, "topics-all"),
			check: topicsFair,
		},
		{
			name:  "share-once",
			rule:  "Sources of one group must share the messages: none is missed, and each goes to one of them.",
			needs: needs,
			check: shareOnce,
		},
		{
			name:  "share-idle",
			rule:  "A source that nobody receives from must not keep messages from the others of its group for longer than a lease, whatever it has fetched.",
			long:  true,
			needs: append(needs, "lease-ends", "share-once"),
			check: shareIdle,
		},
	}
}

func topicsAll(tr *trial) error {
	topics := []string{tr.Topic("orders"), tr.Topic("refunds"), tr.Topic("invoices")}
	w, err := tr.open(topics...)
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if err := tr.publish(topic, text("to "+topic)...); err != nil {
			return err
		}
	}
	for retries := range 2 {
		bodies := []string{"to " + topics[0], "to " + topics[1], "to " + topics[2]}
		got, err := w.expect(tr.patience, bodies...)
		if err != nil {
			return err
		}
		for i, a := range got {
			if a.Message.Topic != topics[i] {
				return fmt.Errorf("after %d retries: %s was published to %q", retries, a, topics[i])
			}
			if err := w.retry(a, tr.Unit); err != nil {
				return err
			}
		}
	}
	return nil
}

// topicsOwn looks for a fresh and for a retried message of another topic.
func topicsOwn(tr *trial) error {
	other, err := tr.open(tr.Topic("refunds"))
	if err != nil {
		return err
	}
	if err := tr.publish(tr.Topic("refunds"), text("retried", "fresh")...); err != nil {
		return err
	}
	got, err := other.expect(tr.patience, "retried", "fresh")
	if err != nil {
		return err
	}
	if err := errors.Join(other.retry(got[0], tr.Unit), other.release(got[1]), other.close()); err != nil {
		return err
	}
	w, err := tr.open(tr.Topic("orders"))
	if err != nil {
		return err
	}
	if err := w.quiet(2 * tr.Unit); err != nil {
		return fmt.Errorf("from a source of %q: %w", w.sub.Topics, err)
	}
	return nil
}

// topicsFair refills one topic as fast as it is worked off.
func topicsFair(tr *trial) error {
	busy, calm := tr.Topic("orders"), tr.Topic("refunds")
	most := 300
	if !tr.Virtual {
		most = 100
	}
	w, err := tr.open(busy, calm)
	if err != nil {
		return err
	}
	if err := tr.publish(busy, text(numbered("backlog", 30)...)...); err != nil {
		return err
	}
	if err := tr.publish(calm, text("the calm one")...); err != nil {
		return err
	}
	for n := range most {
		a, err := w.next(deadline(tr.patience))
		if err != nil {
			return err
		}
		if a == nil {
			return fmt.Errorf("nothing came from %q within %v although messages are waiting", w.sub.Topics, tr.patience)
		}
		if err := w.ack(a); err != nil || a.Message.Topic == calm {
			return err
		}
		if err := tr.publish(busy, text(fmt.Sprintf("more %d", n))...); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d messages came from %q, and none from %q, where one was waiting from the start", most, busy, calm)
}

// shareOnce works off one topic with two sources at the same time.
func shareOnce(tr *trial) error {
	topic := tr.Topic("orders")
	bodies := numbered("message", 30)
	var ws [2]*worker
	for i := range ws {
		var err error
		if ws[i], err = tr.open(topic); err != nil {
			return err
		}
		ws[i].max = 2
	}
	if err := tr.publish(topic, text(bodies...)...); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var errs [2]error
	var mu sync.Mutex
	counts := make(map[string]int)
	count := func(a *arrival) (more bool) {
		mu.Lock()
		defer mu.Unlock()
		counts[a.body()]++
		return len(counts) < len(bodies)
	}
	for i, w := range ws {
		wg.Go(func() {
			errs[i] = w.work(count)
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	for _, body := range bodies {
		if n := counts[body]; n == 0 || n > 1 && tr.Virtual {
			return fmt.Errorf("two sources of %q: message %q was received %d times by both together", topic, body, n)
		}
	}
	return nil
}

// shareIdle takes one of several messages with a source, so that it may have
// fetched the others, and goes on with another one.
func shareIdle(tr *trial) error {
	idle, got, err := tr.leased("first")
	if err != nil {
		return err
	}
	bodies := numbered("message", 6)
	if err := tr.publish(idle.sub.Topics[0], text(bodies...)...); err != nil {
		return err
	}
	idle.max = 1
	one, err := idle.some()
	if err != nil {
		return err
	}
	if err := errors.Join(idle.ack(got...), idle.ack(one)); err != nil {
		return err
	}
	bodies = slices.DeleteFunc(bodies, func(body string) bool { return body == one.body() })
	other, err := tr.open(idle.sub.Topics...)
	if err != nil {
		return err
	}
	if _, err := other.consume(idle.caps.Lease+tr.patience, bodies...); err != nil {
		return fmt.Errorf("while another source of the group is open, of which nothing is asked: %w", err)
	}
	return nil
}

// work acks what comes, tells count, and ends when count says so or when
// nothing has come for a while.
func (w *worker) work(count func(*arrival) bool) error {
	for {
		a, err := w.next(deadline(4 * w.tr.Unit))
		if a == nil || err != nil {
			return err
		}
		more := count(a)
		if err := w.ack(a); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
