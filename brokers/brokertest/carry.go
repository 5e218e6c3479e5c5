package brokertest

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// historyLimit bounds the failures in a Meta.
const historyLimit = 10

func carryClauses() []clause {
	return []clause{
		{
			name:  "retry-keeps-meta",
			rule:  "A retried message must carry exactly the Meta of its Settlement, times and delays to the millisecond, and nothing of an older one.",
			needs: []string{"retry-returns", "meta-fresh"},
			check: retryKeepsMeta,
		},
		{
			name:  "retry-keeps-id",
			rule:  "The ID of a message must stay the same over all of its hops.",
			long:  true,
			needs: []string{"retry-returns", "id-set"},
			check: retryKeepsID,
		},
		{
			name:  "retry-keeps-message",
			rule:  "Body, headers, key, topic and PublishedAt must be the same after any number of retries that the subscription allows.",
			needs: []string{"retry-returns", "body-intact", "headers-intact", "key-intact", "topic-named", "published-at-set"},
			check: retryKeepsMessage,
		},
	}
}

// story is a Meta with every field in use.
func (tr *trial) story(w *worker, d *brokers.Delivery) brokers.Meta {
	const failure, rest = 160, 1024 // bytes, about
	room := w.caps.HeaderLimit
	if room == 0 {
		room = 16 << 10
	}
	now := time.Now()
	meta := brokers.Meta{
		Attempt:        tr.attempt(d, 7),
		Throttles:      2,
		Excused:        time.Hour,
		Crashes:        2,
		FirstFailedAt:  now.Add(-90 * time.Minute),
		LastFailedAt:   now.Add(-123456 * time.Microsecond),
		DueAt:          now.Add(tr.Unit),
		Delay:          1234567 * time.Microsecond,
		Class:          "throttled",
		IdempotencyKey: "clé of order 7, \"quoted\"",
		RedriveCount:   3,
		Send:           "7.2.c0ffee",
		Origin:         d.Meta().Origin,
	}
	for n := range max(0, min(historyLimit, (room-rest)/failure)) {
		meta.History = append(meta.History, brokers.Failure{
			Attempt:     n + 1,
			At:          now.Add(time.Duration(n-20) * time.Minute),
			Class:       "transient",
			Ambiguous:   n%3 == 0,
			TimedOut:    n%2 == 0,
			Fingerprint: fmt.Sprintf("%016x", n*n),
			Delay:       time.Duration(n) * 1500 * time.Millisecond,
		})
	}
	return meta
}

// attempt is want, or what a counter can know of after one more Retry.
func (tr *trial) attempt(d *brokers.Delivery, want int) int {
	if tr.EstimatesMeta {
		return d.Meta().Attempt + 1
	}
	return want
}

// retryKeepsMeta carries a full Meta first and a short one next, in which what
// the first one said must be gone.
func retryKeepsMeta(tr *trial) {
	w, got := tr.deliver("retried")
	for _, short := range []bool{false, true} {
		want := tr.story(w, got[0].Delivery)
		if short {
			want = brokers.Meta{Attempt: tr.attempt(got[0].Delivery, 8), DueAt: time.Now().Add(3 * tr.Unit), Origin: want.Origin}
		}
		w.retryWith(got[0], tr.Unit, want)
		got = w.expect(4*tr.Unit+tr.patience, "retried")
		tr.must(tr.sameMeta(got[0], want))
	}
}

// over sends a message over as many hops as the subscription allows.
func (tr *trial) over(m brokers.Message, check func(hop int, a *arrival)) {
	w, got := tr.deliverMessages(m)
	for hop := range w.sub.MaxAttempts - 1 {
		tr.note("after %d retries", hop)
		check(hop, got[0])
		delay := tr.Unit * time.Duration(hop%2) // with and without
		w.retry(got[0], delay)
		tr.note("after %d retries", hop+1)
		got = w.expect(delay+tr.patience, string(m.Body))
	}
	tr.note("after %d retries", w.sub.MaxAttempts-1)
	check(w.sub.MaxAttempts-1, got[0])
	w.ack(got...)
	w.close()
}

func retryKeepsID(tr *trial) {
	ids := make(map[string]string)
	for _, m := range []brokers.Message{{Body: []byte("with an ID"), ID: "order-7"}, {Body: []byte("without an ID")}} {
		tr.over(m, func(hop int, a *arrival) {
			if hop == 0 {
				ids[a.body()] = a.Message.ID
			}
			if want := ids[a.body()]; a.Message.ID != want {
				tr.failf("%s had the ID %q at first", a, want)
			}
		})
	}
}

func retryKeepsMessage(tr *trial) {
	m := brokers.Message{
		Body:        []byte("not UTF-8: \xff\xfe\x00"),
		Key:         "customer-7",
		Headers:     tr.headers(),
		PublishedAt: time.Now().Add(-time.Hour),
	}
	want := m
	want.Topic = tr.Topic("orders")
	tr.over(m, func(_ int, a *arrival) { tr.must(tr.sameMessage(a, want)) })
}
