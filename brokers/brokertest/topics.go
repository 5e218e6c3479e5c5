package brokertest

import (
	"fmt"
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
		{
			name: "topic-deleted",
			rule: "A topic that is deleted while a source receives from it must stop no other topic: Receive must name it with a *brokers.TopicError, " +
				"and must receive from it again when it is created again. The same holds for the only topic of a source.",
			long:  true,
			needs: append(needs, "topics-all", "topics-own", "topics-fair", "share-once"),
			check: topicDeleted,
		},
	}
}

func topicsAll(tr *trial) {
	topics := []string{tr.Topic("orders"), tr.Topic("refunds"), tr.Topic("invoices")}
	w := tr.open(topics...)
	for _, topic := range topics {
		tr.publish(topic, text("to "+topic)...)
	}
	for retries := range 2 {
		bodies := []string{"to " + topics[0], "to " + topics[1], "to " + topics[2]}
		got := w.expect(tr.patience, bodies...)
		for i, a := range got {
			if a.Message.Topic != topics[i] {
				tr.failf("after %d retries: %s was published to %q", retries, a, topics[i])
			}
			w.retry(a, tr.Unit)
		}
	}
}

// topicsOwn looks for a fresh and for a retried message of another topic.
func topicsOwn(tr *trial) {
	other := tr.open(tr.Topic("refunds"))
	tr.publish(tr.Topic("refunds"), text("retried", "fresh")...)
	got := other.expect(tr.patience, "retried", "fresh")
	other.retry(got[0], tr.Unit)
	other.release(got[1])
	other.close()
	w := tr.open(tr.Topic("orders"))
	tr.note("from a source of %q", w.sub.Topics)
	w.quiet(2 * tr.Unit)
}

// topicsFair refills one topic as fast as it is worked off.
func topicsFair(tr *trial) {
	busy, calm := tr.Topic("orders"), tr.Topic("refunds")
	most := 300
	if !tr.Virtual {
		most = 100
	}
	w := tr.open(busy, calm)
	tr.publish(busy, text(numbered("backlog", 30)...)...)
	tr.publish(calm, text("the calm one")...)
	for n := range most {
		a := w.some()
		w.ack(a)
		if a.Message.Topic == calm {
			return
		}
		tr.publish(busy, text(fmt.Sprintf("more %d", n))...)
	}
	tr.failf("%d messages came from %q, and none from %q, where one was waiting from the start", most, busy, calm)
}

// topicDeleted deletes one of two topics, and the only topic of another source.
func topicDeleted(tr *trial) {
	if tr.Delete == nil {
		tr.skip("the harness cannot delete a topic (Harness.Delete)")
	}
	gone, other, only := tr.Topic("orders"), tr.Topic("refunds"), tr.Topic("invoices")
	both, alone := tr.open(gone, other), tr.open(only)
	for w, topic := range map[*worker]string{both: gone, alone: only} {
		tr.publish(topic, text("before, to "+topic)...)
		w.consume(tr.patience, "before, to "+topic)
		w.quiet(tr.Unit)
	}
	restore, restoreOnly := tr.Delete(tr.broker, gone), tr.Delete(tr.broker, only)
	tr.note("after %q and %q were deleted", gone, only)
	tr.publish(other, text("beside")...)
	both.consume(tr.patience, "beside")
	tr.together(func() { both.loses(gone) }, func() { alone.loses(only) })
	tr.publish(other, text("still beside")...)
	both.consume(tr.patience, "still beside")
	restore()
	restoreOnly()
	tr.note("after %q and %q were deleted and created again", gone, only)
	tr.publish(gone, text("again")...)
	tr.publish(only, text("again alone")...)
	tr.together(func() { both.consume(tr.patience, "again") }, func() { alone.consume(tr.patience, "again alone") })
}

// shareOnce works off one topic with two sources at the same time.
func shareOnce(tr *trial) {
	topic := tr.Topic("orders")
	bodies := numbered("message", 30)
	var ws [2]*worker
	for i := range ws {
		ws[i] = tr.open(topic)
		ws[i].max = 2
	}
	tr.publish(topic, text(bodies...)...)
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
			tr.failf("two sources of %q: message %q was received %d times by both together", topic, body, n)
		}
	}
}

// shareIdle takes one of several messages with a source, so that it may have
// fetched the others, and goes on with another one.
func shareIdle(tr *trial) {
	idle, got := tr.leased("first")
	bodies := numbered("message", 6)
	tr.publish(idle.sub.Topics[0], text(bodies...)...)
	idle.max = 1
	one := idle.some()
	idle.ack(append(got, one)...)
	bodies = without(bodies, one)
	other := tr.open(idle.sub.Topics...)
	tr.note("while another source of the group is open, of which nothing is asked")
	other.consume(idle.caps.Lease+tr.patience, bodies...)
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
