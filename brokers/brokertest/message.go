package brokertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func messageClauses() []clause {
	needs := []string{"publish-delivers"}
	return []clause{
		{
			name:  "body-intact",
			rule:  "A body must arrive byte for byte, be it text, not UTF-8, empty or 100 KiB long.",
			needs: needs,
			check: bodyIntact,
		},
		{
			name:  "headers-intact",
			rule:  "Headers must arrive as published: name, value and type, repeated names and empty and binary values included.",
			needs: needs,
			check: headersIntact,
		},
		{
			name:  "headers-reserved",
			rule:  "Publish must keep the framework headers that identify a message, which become its Meta, and those of a dead letter, and leave alone names that it does not know.",
			needs: needs,
			check: headersReserved,
		},
		{
			name:  "headers-hostile",
			rule:  "Framework headers that come with a new message must be bounded and clamped: they cannot hide it, nor make it wait for longer than MaxDelay, nor say that it is dead.",
			needs: needs,
			check: headersHostile,
		},
		{
			name:  "key-intact",
			rule:  "The key of a message must arrive as published.",
			needs: needs,
			check: keyIntact,
		},
		{
			name:  "id-set",
			rule:  "Publish must keep the ID of a message, and give one of its own to each that has none.",
			needs: needs,
			check: idSet,
		},
		{
			name:  "published-at-set",
			rule:  "Publish must set a PublishedAt that is zero, and keep one that is not.",
			needs: needs,
			check: publishedAtSet,
		},
		{
			name:  "topic-named",
			rule:  "A delivery must name the topic that it was published to, whatever Message.Topic said.",
			needs: needs,
			check: topicNamed,
		},
		{
			name:  "meta-fresh",
			rule:  "The first delivery of a message must have no Meta but its Origin, which the adapter sets.",
			needs: needs,
			check: metaFresh,
		},
		{
			name:  "received-at",
			rule:  "ReceivedAt must be when the delivery was handed out, or a moment before.",
			needs: needs,
			check: receivedAt,
		},
		{
			name:  "lease-until",
			rule:  "LeaseUntil must be when the lease of Capabilities.Lease runs out, and zero where that is 0.",
			needs: []string{"publish-delivers"},
			check: leaseUntil,
		},
	}
}

func bodyIntact(tr *trial) {
	bodies := []string{"", "text: żółw ☃", everyByte(), "\xff\xfe not UTF-8 \xc3\x28\x00"}
	w, topic := tr.empty()
	const large, room = 100 << 10, 8 << 10
	if limit := w.caps.MessageLimit; limit == 0 || limit >= large+room {
		bodies = append(bodies, noise(large))
	}
	for _, body := range bodies {
		tr.note("a body of %d bytes, %.20q", len(body), body)
		tr.publish(topic, text(body)...)
	}
	w.expect(tr.patience, bodies...)
}

func everyByte() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// noise returns n bytes, always the same, that do not compress.
func noise(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return string(b)
}

func (tr *trial) headers() brokers.Headers {
	return append(brokers.Headers{
		{Name: "tenant", Value: "acme"},
		{Name: "tag", Value: "first"},
		{Name: "empty", Value: ""},
		{Name: "tag", Value: ""},
		{Name: "Tag", Value: "names are case-sensitive"},
		{Name: "binary", Value: "\x00\xff\xfe\x80"},
		{Name: "tag", Value: "first"},
		{Name: "accent", Value: "naïve ☃"},
	}, tr.TypedHeaders...)
}

func headersIntact(tr *trial) {
	want := brokers.Message{Body: []byte("with headers"), Headers: tr.headers()}
	_, got := tr.deliverMessages(want, text("without headers")...)
	if len(got[1].Message.Headers) > 0 {
		tr.failf("%s was published without headers and has %q", got[1], got[1].Message.Headers)
	}
	tr.must(tr.sameHeaders(got[0], want.Headers))
}

// headersReserved publishes what a dead letter and its redrive carry.
func headersReserved(tr *trial) {
	record := brokers.Headers{
		{Name: "redrive-color", Value: "not one of the framework's"},
		{Name: "redrive-dlq-reason", Value: "exhausted"},
		{Name: "redrive-error-message", Value: "payment declined: żółw"},
	}
	m := brokers.Message{Body: []byte("dead letter"), Headers: append(brokers.Headers{
		{Name: "redrive-idempotency-key", Value: "key-7"},
		{Name: "redrive-count", Value: "2"},
		{Name: "redrive-send", Value: "12.3.f00d"},
	}, record...)}
	_, got := tr.deliverMessages(m)
	a := got[0]
	if a.Meta().IdempotencyKey != "key-7" || a.Meta().RedriveCount != 2 || a.Meta().Send != "12.3.f00d" {
		tr.failf("%s was published with the headers %q, and has the idempotency key %q, the redrive count %d and the Send %q",
			a, m.Headers[:3], a.Meta().IdempotencyKey, a.Meta().RedriveCount, a.Meta().Send)
	}
	for _, h := range record {
		if !slices.Contains(a.Message.Headers, h) {
			tr.failf("%s lost the header %q: %q", a, h, a.Message.Headers)
		}
	}
}

// headersHostile publishes what anybody may write into a queue.
func headersHostile(tr *trial) {
	user := brokers.Header{Name: "tenant", Value: "acme"}
	m := brokers.Message{Body: []byte("hostile"), Headers: brokers.Headers{
		{Name: "redrive-attempt", Value: "-7"},
		{Name: "redrive-count", Value: "99999999999999999999"},
		{Name: "redrive-due-at", Value: "9999999999999"},
		{Name: "redrive-delay-ms", Value: "-1"},
		user,
		{Name: "redrive-history", Value: strings.Repeat("\xff;", 500)},
		{Name: "redrive-meta", Value: "\x00\xff{{{"},
		{Name: "redrive-death-reason", Value: "poison"},
		{Name: "redrive-death-error-message", Value: "forged"},
	}}
	w, topic := tr.empty()
	tr.publish(topic, m)
	for until := deadline(tr.patience); len(w.inbox) == 0; {
		if !time.Now().Before(until) {
			tr.failf("from %q: message %q did not come within %v", topic, m.Body, tr.patience)
		}
		w.fetch(until)
	}
	a := w.inbox[0]
	if wait := a.Meta().DueAt.Sub(a.raw); wait > w.sub.MaxDelay+precision {
		tr.failf("%s is due in %v, MaxDelay is %v", a, wait, w.sub.MaxDelay)
	}
	if a.Meta().Attempt < 0 || a.Meta().RedriveCount < 0 || a.Meta().Delay < 0 || len(a.Meta().History) > historyLimit {
		tr.failf("%s has the Meta %+v", a, a.Meta())
	}
	if a.Meta().Death != nil {
		tr.failf("%s is dead, as its publisher claims: %+v", a, a.Meta().Death)
	}
	if !slices.Contains(a.Message.Headers, user) {
		tr.failf("%s lost the header %q among those of the framework: %q", a, user, a.Message.Headers)
	}
}

func keyIntact(tr *trial) {
	keyed := brokers.Message{Body: []byte("with a key"), Key: "customer-7 / Łódź"}
	_, got := tr.deliverMessages(keyed, text("without a key")...)
	if got[0].Message.Key != keyed.Key || got[1].Message.Key != "" {
		tr.failf("%s has the key %q, want %q; %s has the key %q, want none",
			got[0], got[0].Message.Key, keyed.Key, got[1], got[1].Message.Key)
	}
}

func idSet(tr *trial) {
	named := brokers.Message{Body: []byte("with an ID"), ID: "order:7/attempt é"}
	_, got := tr.deliverMessages(named, text("no ID", "no ID either")...)
	if got[0].Message.ID != named.ID {
		tr.failf("%s was published with the ID %q", got[0], named.ID)
	}
	a, b := got[1].Message.ID, got[2].Message.ID
	if a == "" || b == "" || a == b {
		tr.failf("two messages without IDs got %q and %q", a, b)
	}
}

func publishedAtSet(tr *trial) {
	start := time.Now()
	given := brokers.Message{Body: []byte("an old one"), PublishedAt: start.Add(-40 * time.Hour)}
	_, got := tr.deliverMessages(given, text("a new one")...)
	skew := tr.Slack
	if tr.Virtual {
		skew = time.Millisecond // what rounding may cost
	}
	var errs []error
	if !sameTime(got[0].Message.PublishedAt, given.PublishedAt) {
		errs = append(errs, fmt.Errorf("%s: PublishedAt was %v and became %v", got[0], given.PublishedAt, got[0].Message.PublishedAt))
	}
	at := got[1].Message.PublishedAt
	if at.Before(start.Add(-skew)) || at.After(time.Now().Add(skew)) {
		errs = append(errs, fmt.Errorf("%s: PublishedAt was zero and became %v; it was published after %v", got[1], at, start))
	}
	tr.must(errors.Join(errs...))
}

func topicNamed(tr *trial) {
	_, got := tr.deliverMessages(brokers.Message{Body: []byte("misdirected"), Topic: "elsewhere"})
	if want := tr.Topic("orders"); got[0].Message.Topic != want {
		tr.failf("%s was published to %q", got[0], want)
	}
}

func metaFresh(tr *trial) {
	_, got := tr.deliver("fresh")
	a := got[0]
	if len(a.Meta().Origin) == 0 {
		tr.failf("%s was delivered for the first time and has no Meta.Origin", a)
	}
	tr.must(tr.sameMeta(a, brokers.Meta{Origin: a.Meta().Origin}))
}

func receivedAt(tr *trial) {
	start := time.Now()
	_, got := tr.deliver("one")
	if at := got[0].ReceivedAt; at.Before(start.Add(-tr.Slack)) || at.After(got[0].raw) {
		tr.failf("%s: ReceivedAt is %v; it was published after %v, and Receive returned it at %v",
			got[0], at, start, got[0].raw)
	}
}

func leaseUntil(tr *trial) {
	w, got := tr.deliver("leased")
	a := got[0]
	if w.caps.Lease == 0 {
		if !a.LeaseUntil.IsZero() {
			tr.failf("%s: Capabilities.Lease is 0, and LeaseUntil is %v", a, a.LeaseUntil)
		}
		return
	}
	left := a.LeaseUntil.Sub(a.raw)
	if left < w.caps.Lease/2 || left > w.caps.Lease {
		tr.failf("%s: the lease is %v, and LeaseUntil is %v after Receive returned", a, w.caps.Lease, left)
	}
}
