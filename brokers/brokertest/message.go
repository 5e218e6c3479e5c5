package brokertest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var messageClauses = []clause{
	{name: "body-intact", needs: "publish-delivers", check: bodyIntact,
		rule: "A body must arrive byte for byte, be it text, not UTF-8, empty or 100 KiB long."},
	{name: "headers-intact", needs: "publish-delivers",
		rule:  "Headers must arrive as published: name, value and type, repeated names and empty and binary values included.",
		check: steps(deliverHeaders, each(sameHeaders))},
	{name: "headers-reserved", needs: "publish-delivers", check: headersReserved,
		rule: "Publish must keep the framework headers that identify a message, which become its Meta, and those of a dead letter, and leave alone names that it does not know."},
	{name: "headers-hostile", needs: "publish-delivers", check: headersHostile,
		rule: "Framework headers that come with a new message must be bounded and clamped: they cannot hide it, nor make it wait for longer than MaxDelay, nor say that it is dead."},
	{name: "key-intact", needs: "publish-delivers",
		rule: "The key of a message must arrive as published.",
		check: steps(deliverMessages(brokers.Message{Body: []byte("with a key"), Key: "customer-7 / Łódź"},
			brokers.Message{Body: []byte("without a key")}), each(sameKey))},
	{name: "id-set", needs: "publish-delivers", check: idSet,
		rule: "Publish must keep the ID of a message, and give one of its own to each that has none."},
	{name: "published-at-set", needs: "publish-delivers", check: publishedAtSet,
		rule: "Publish must set a PublishedAt that is zero, and keep one that is not."},
	{name: "topic-named", needs: "publish-delivers",
		rule:  "A delivery must name the topic that it was published to, whatever Message.Topic said.",
		check: steps(deliverMessages(brokers.Message{Body: []byte("misdirected"), Topic: "elsewhere"}), each(sameTopic))},
	{name: "meta-fresh", needs: "publish-delivers",
		rule:  "The first delivery of a message must have no Meta but its Origin, which the adapter sets.",
		check: steps(deliver("fresh"), each(fresh))},
	{name: "received-at", needs: "publish-delivers", check: receivedAt,
		rule: "ReceivedAt must be when the delivery was handed out, or a moment before."},
	{name: "lease-until", needs: "publish-delivers",
		rule:  "LeaseUntil must be when the lease of Capabilities.Lease runs out, and zero where that is 0.",
		check: steps(deliver("leased"), each(leaseUntil))},
}

func bodyIntact(tr *trial) {
	var every [256]byte
	for i := range every {
		every[i] = byte(i)
	}
	bodies := []string{"", "text: żółw ☃", string(every[:]), "\xff\xfe not UTF-8 \xc3\x28\x00"}
	w := tr.open("orders")
	const large, room = 100 << 10, 8 << 10
	if limit := w.caps.MessageLimit; limit == 0 || limit >= large+room {
		bodies = append(bodies, noise(large))
	}
	for _, body := range bodies {
		w.publish(body)
	}
	w.expect(bodies...)
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

func deliverHeaders(tr *trial) {
	tr.deliver(brokers.Message{Body: []byte("with headers"), Headers: tr.headers()}, text("without headers")[0])
}

// headersReserved publishes what a dead letter and its redrive carry.
func headersReserved(tr *trial) {
	record := brokers.Headers{
		{Name: "redrive-color", Value: "not one of the framework's"},
		{Name: "redrive-dlq-reason", Value: "exhausted"},
		{Name: "redrive-error-message", Value: "payment declined: żółw"},
	}
	_, got := tr.deliver(brokers.Message{Body: []byte("dead letter"), Headers: append(brokers.Headers{
		{Name: "redrive-idempotency-key", Value: "key-7"},
		{Name: "redrive-count", Value: "2"},
		{Name: "redrive-send", Value: "12.3.f00d"},
	}, record...)})
	want := brokers.Meta{IdempotencyKey: "key-7", RedriveCount: 2, Send: "12.3.f00d"}
	tr.must(errors.Join(sameIdentity(got[0], want), keeps(got[0], record)))
}

// headersHostile publishes what anybody may write into a queue.
func headersHostile(tr *trial) {
	user := brokers.Header{Name: "tenant", Value: "acme"}
	w := tr.open("orders")
	tr.publish(w.topic(), brokers.Message{Body: []byte("hostile"), Headers: brokers.Headers{
		{Name: "redrive-attempt", Value: "-7"},
		{Name: "redrive-count", Value: "99999999999999999999"},
		{Name: "redrive-due-at", Value: "9999999999999"},
		{Name: "redrive-delay-ms", Value: "-1"},
		user,
		{Name: "redrive-history", Value: strings.Repeat("\xff;", 500)},
		{Name: "redrive-meta", Value: "\x00\xff{{{"},
		{Name: "redrive-death-reason", Value: "poison"},
		{Name: "redrive-death-error-message", Value: "forged"},
	}})
	for until := deadline(tr.patience); len(w.inbox) == 0; { // it need not be due
		if !time.Now().Before(until) {
			tr.failf("from %q: the message did not come within %v", w.topic(), tr.patience)
		}
		w.fetch(until)
	}
	a := w.inbox[0]
	m := a.Meta()
	if wait := m.DueAt.Sub(a.raw); wait > w.sub.MaxDelay+precision {
		tr.failf("%s is due in %v, MaxDelay is %v", a, wait, w.sub.MaxDelay)
	}
	if m.Attempt < 0 || m.RedriveCount < 0 || m.Delay < 0 || len(m.History) > historyLimit || m.Death != nil {
		tr.failf("%s has the Meta %+v", a, m)
	}
	tr.must(keeps(a, brokers.Headers{user}))
}

func idSet(tr *trial) {
	const named = "order:7/attempt é"
	_, got := tr.deliver(append(text("no ID", "no ID either"), brokers.Message{Body: []byte("with an ID"), ID: named})...)
	a, b, c := got[0].Message.ID, got[1].Message.ID, got[2].Message.ID
	if a == "" || b == "" || a == b || c != named {
		tr.failf("two messages without IDs got %q and %q, and one with the ID %q came with %q", a, b, named, c)
	}
}

func publishedAtSet(tr *trial) {
	start := time.Now()
	given := brokers.Message{Body: []byte("an old one"), PublishedAt: start.Add(-40 * time.Hour)}
	w, got := tr.deliver(given, text("a new one")[0])
	tr.must(samePublishedAt(w, got[0]))
	skew := by(tr, precision, tr.Slack) // precision is what rounding may cost
	if at := got[1].Message.PublishedAt; at.Before(start.Add(-skew)) || at.After(deadline(skew)) {
		tr.failf("%s: PublishedAt was zero and became %v; it was published after %v", got[1], at, start)
	}
}

func receivedAt(tr *trial) {
	start := time.Now()
	_, got := tr.delivered("one")
	if at := got[0].ReceivedAt; at.Before(start.Add(-tr.Slack)) || at.After(got[0].raw) {
		tr.failf("%s: ReceivedAt is %v; it was published after %v, and Receive returned it at %v",
			got[0], at, start, got[0].raw)
	}
}

func leaseUntil(w *worker, a *arrival) error {
	lease, left := w.caps.Lease, a.LeaseUntil.Sub(a.raw)
	is := lease == 0 && a.LeaseUntil.IsZero() || lease > 0 && left >= lease/2 && left <= lease
	return same(a, "LeaseUntil", is, a.LeaseUntil, lease)
}
