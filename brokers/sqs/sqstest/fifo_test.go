package sqstest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// fifo creates a FIFO queue.
func (w *world) fifo(name string, attributes ...string) string {
	w.Helper()
	return w.queue(name, append(attributes, "FifoQueue", "true")...)
}

func TestGroupIsLockedBehindWhatIsInvisible(t *testing.T) {
	type timeouts [][2]int32 // of the message with this index, in seconds
	for _, c := range []struct {
		name    string
		changed timeouts // of g1, g2, g3, when all are received
		deleted []int    // of them, afterwards
		wait    time.Duration
		want    []string
	}{
		{name: "nothing"},
		{name: "first visible", changed: timeouts{{0, 0}}, want: []string{"g1"}},
		{name: "second visible", changed: timeouts{{1, 0}}},
		{name: "last two visible", changed: timeouts{{2, 0}, {1, 0}}},
		{name: "first deleted", deleted: []int{0}},
		{name: "first deleted, second visible", changed: timeouts{{1, 0}}, deleted: []int{0}, want: []string{"g2"}},
		{name: "all deleted", deleted: []int{0, 1, 2}, want: []string{"g4"}},
		{name: "all expired", wait: 30 * time.Second, want: numbered("g", 4)},
		{name: "first longer", changed: timeouts{{0, 60}}, wait: 30 * time.Second},
		{name: "second longer", changed: timeouts{{1, 60}}, wait: 30 * time.Second, want: []string{"g1"}},
		{name: "third longer", changed: timeouts{{2, 60}}, wait: 30 * time.Second, want: []string{"g1", "g2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFIFO(t, func(w *world, url string) {
				w.sendGroup(url, "g", numbered("g", 3)...)
				got := w.receive(url, 10, 0, 30)
				w.wantBodies(got, numbered("g", 3)...)
				w.sendGroup(url, "g", "g4")
				w.wantBodies(w.receive(url, 10, 0, 30)) // locked
				for _, change := range c.changed {
					w.wantCode(w.change(url, got[change[0]], change[1]), "")
				}
				for _, i := range c.deleted {
					w.wantCode(w.delete(url, got[i]), "")
				}
				pass(c.wait)
				w.wantBodies(w.receive(url, 10, 0, 30), c.want...)
			})
		})
	}
}

func TestGroupsAreReceivedOneAfterTheOther(t *testing.T) {
	onFIFO(t, func(w *world, url string) {
		w.sendGroup(url, "a", "a1")
		w.sendGroup(url, "b", "b1", "b2")
		w.sendGroup(url, "c", "c1")
		w.sendGroup(url, "a", "a2")
		w.wantBodies(w.receive(url, 3, 0, 1), "a1", "a2", "b1")
		w.wantBodies(w.receive(url, 10, 0, 1), "c1")
		pass(time.Second)
		w.wantBodies(w.receive(url, 10, 0, 1), "a1", "a2", "b1", "b2", "c1")
		pass(time.Second)
		w.sendGroup(url, "d", "d1")
		w.wantBodies(w.receive(url, 1, 0, 30), "a1")
		w.wantBodies(w.receive(url, 10, 0, 30), "b1", "b2", "c1", "d1")
	})
}

func TestDeletionOpensTheGroupForAPoll(t *testing.T) {
	onFIFO(t, func(w *world, url string) {
		w.sendGroup(url, "g", "a", "b")
		m := w.one(url)
		var poll sync.WaitGroup
		poll.Go(func() { w.takes(time.Second, func() { w.wantBodies(w.receive(url, 10, 20, 0), "b") }) })
		pass(time.Second)
		w.wantCode(w.delete(url, m), "")
		poll.Wait()
	})
}

// sendFIFO sends one message, without an ID where the text is empty, and
// returns its answer.
func (w *world) sendFIFO(url, group, id, body string) *sqs.SendMessageOutput {
	w.Helper()
	in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageGroupId: &group}
	if id != "" {
		in.MessageDeduplicationId = &id
	}
	out, err := w.client.SendMessage(w.Context(), in)
	if err != nil {
		w.Fatalf("SendMessage %q: %v", body, err)
	}
	return out
}

func TestDeduplication(t *testing.T) {
	const group = "DeduplicationScope"
	for _, c := range []struct {
		name                   string
		attributes             []string
		group, id, body        string // of the second message; the first is g, 1, a
		wait                   time.Duration
		deleted, purged, twice bool
	}{
		{name: "same ID", group: "g", id: "1", body: "b"},
		{name: "other ID", group: "g", id: "2", body: "a", twice: true},
		{name: "other group", group: "h", id: "1", body: "a"},
		{name: "other group in group scope", attributes: []string{group, "messageGroup"}, group: "h", id: "1", body: "a", twice: true},
		{name: "same group in group scope", attributes: []string{group, "messageGroup"}, group: "g", id: "1", body: "a"},
		{name: "after a deletion", group: "g", id: "1", body: "a", deleted: true},
		{name: "after a purge", group: "g", id: "1", body: "a", purged: true, twice: true},
		{name: "at the end of the window", group: "g", id: "1", body: "a", wait: 5*time.Minute - 1},
		{name: "after the window", group: "g", id: "1", body: "a", wait: 5 * time.Minute, twice: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				url := w.fifo("orders.fifo", c.attributes...)
				first := w.sendFIFO(url, "g", "1", "a")
				if c.deleted {
					w.wantCode(w.delete(url, w.one(url)), "")
				}
				if c.purged {
					w.wantCode(w.purge(url), "")
				}
				pass(c.wait)
				second := w.sendFIFO(url, c.group, c.id, c.body)
				same := *first.MessageId == *second.MessageId && *first.SequenceNumber == *second.SequenceNumber
				if same == c.twice || !same && *second.SequenceNumber <= *first.SequenceNumber {
					w.Errorf("first %s %s, second %s %s; want two messages: %t",
						*first.MessageId, *first.SequenceNumber, *second.MessageId, *second.SequenceNumber, c.twice)
				}
				want := 1
				if c.twice {
					want = 0
				}
				if got := w.server.Queue("orders.fifo").Deduplicated; got != want {
					w.Errorf("Deduplicated = %d, want %d", got, want)
				}
			})
		})
	}
}

func TestContentBasedDeduplicationComparesBodiesOnly(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.fifo("orders.fifo", "ContentBasedDeduplication", "true")
		for _, value := range []string{"1", "2"} {
			_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: new("a"), MessageGroupId: new("g"),
				MessageAttributes: map[string]types.MessageAttributeValue{"n": stringAttribute(value)},
			})
			w.wantCode(err, "")
		}
		w.sendFIFO(url, "g", "own", "a")
		got := w.receive(url, 10, 0, 0)
		w.wantBodies(got, "a", "a")
		const sum = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" // SHA-256 of a
		w.wantAttributes(got[0], map[string]string{"MessageDeduplicationId": sum})
		w.wantAttributes(got[1], map[string]string{"MessageDeduplicationId": "own"})
	})
}

func TestDelayOfAFIFOQueueAppliesToWhatIsThere(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.fifo("orders.fifo", "DelaySeconds", "60")
		w.sendGroup(url, "g", "a", "b")
		w.wantCounts("orders.fifo", 0, 0, 2)
		w.wantBodies(w.receive(url, 10, 20, 0))
		w.wantCode(w.set(url, "DelaySeconds", "30"), "")
		w.takes(10*time.Second, func() { w.wantBodies(w.receive(url, 10, 20, 0), "a", "b") })
	})
}

func TestReceiveAttempts(t *testing.T) {
	attempt := func(w *world, url, id string, hide int32) []types.Message {
		in := receiveInput(url, 10, 0, hide)
		in.ReceiveRequestAttemptId = &id
		out, err := w.client.ReceiveMessage(w.Context(), in)
		if err != nil {
			w.Fatalf("ReceiveMessage: %v", err)
		}
		return out.Messages
	}
	for _, c := range []struct {
		name                   string
		wait                   time.Duration
		deleted, changed, kept bool     // one of the messages; kept is asked for again each minute
		want                   []string // of an attempt with the same ID
		same                   bool     // receipt handles
	}{
		{name: "at once", want: []string{"a", "b"}, same: true},
		{name: "near the end", wait: 59 * time.Second, want: []string{"a", "b"}, same: true},
		{name: "expired", wait: 60 * time.Second, want: []string{"a", "b"}},
		{name: "one deleted", deleted: true},
		{name: "one extended", changed: true},
		{name: "after five minutes", kept: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFIFO(t, func(w *world, url string) {
				w.sendGroup(url, "g", "a", "b")
				first := attempt(w, url, "1", 60)
				w.wantBodies(attempt(w, url, "2", 60))
				pass(c.wait)
				if c.deleted {
					w.wantCode(w.delete(url, first[0]), "")
				}
				if c.changed {
					w.wantCode(w.change(url, first[1], 60), "")
				}
				for n := 0; c.kept && n < 5; n++ {
					attempt(w, url, "1", 300)
					pass(time.Minute)
				}
				second := attempt(w, url, "1", 60)
				w.wantBodies(second, c.want...)
				if len(second) == 2 && (*second[0].ReceiptHandle == *first[0].ReceiptHandle) != c.same {
					w.Errorf("receipt handles are the same: %t, want %t", !c.same, c.same)
				}
				if c.same {
					pass(59 * time.Second)
					w.wantCode(w.delete(url, first[0]), "") // its visibility began anew
				}
			})
		})
	}
}
