package sqstest_test

import (
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
	for _, c := range []struct {
		name  string
		after func(w *world, url string, got []types.Message) // of g1, g2, g3 all received
		want  []string
	}{
		{"nothing", func(*world, string, []types.Message) {}, nil},
		{"first visible", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[0], 0), "")
		}, []string{"g1"}},
		{"second visible", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[1], 0), "")
		}, nil},
		{"last two visible", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[2], 0), "")
			w.wantCode(w.change(url, got[1], 0), "")
		}, nil},
		{"first deleted", func(w *world, url string, got []types.Message) {
			w.wantCode(w.delete(url, got[0]), "")
		}, nil},
		{"first deleted, second visible", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[1], 0), "")
			w.wantCode(w.delete(url, got[0]), "")
		}, []string{"g2"}},
		{"all deleted", func(w *world, url string, got []types.Message) {
			for _, m := range got {
				w.wantCode(w.delete(url, m), "")
			}
		}, []string{"g4"}},
		{"all expired", func(w *world, url string, got []types.Message) {
			pass(30 * time.Second)
		}, []string{"g1", "g2", "g3", "g4"}},
		{"first longer", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[0], 60), "")
			pass(30 * time.Second)
		}, nil},
		{"second longer", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[1], 60), "")
			pass(30 * time.Second)
		}, []string{"g1"}},
		{"third longer", func(w *world, url string, got []types.Message) {
			w.wantCode(w.change(url, got[2], 60), "")
			pass(30 * time.Second)
		}, []string{"g1", "g2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFIFO(t, func(w *world, url string) {
				w.sendGroup(url, "g", numbered("g", 3)...)
				got := w.receive(url, 10, 0, 30)
				w.wantBodies(got, numbered("g", 3)...)
				w.sendGroup(url, "g", "g4")
				w.wantBodies(w.receive(url, 10, 0, 30)) // locked
				c.after(w, url, got)
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
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.wantBodies(w.receive(url, 10, 20, 0), "b")
		}()
		pass(time.Second)
		w.takes(0, func() {
			w.wantCode(w.delete(url, m), "")
			<-done
		})
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
	const content, group = "ContentBasedDeduplication", "DeduplicationScope"
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
		{name: "ID of a content", attributes: []string{content, "true"}, group: "g", body: "1"}, // see below
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				url := w.fifo("orders.fifo", c.attributes...)
				first := w.sendFIFO(url, "g", "1", "a")
				if c.deleted {
					w.wantCode(w.delete(url, w.one(url)), "")
				}
				if c.purged {
					_, err := w.client.PurgeQueue(w.Context(), &sqs.PurgeQueueInput{QueueUrl: &url})
					w.wantCode(err, "")
				}
				pass(c.wait)
				if c.id == "" {
					first = w.sendFIFO(url, "g", "", c.body)
				}
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
		if id := got[0].Attributes["MessageDeduplicationId"]; id != sum {
			w.Errorf("MessageDeduplicationId = %s, want %s", id, sum)
		}
		if id := got[1].Attributes["MessageDeduplicationId"]; id != "own" {
			w.Errorf("MessageDeduplicationId = %s, want own", id)
		}
	})
}

func TestFIFOSendIsRefused(t *testing.T) {
	id, group := new("1"), new("g")
	for name, c := range map[string]struct {
		in   sqs.SendMessageInput
		want string
	}{
		"good":        {sqs.SendMessageInput{MessageGroupId: group, MessageDeduplicationId: id}, ""},
		"no group":    {sqs.SendMessageInput{MessageDeduplicationId: id}, "MissingParameter"},
		"no ID":       {sqs.SendMessageInput{MessageGroupId: group}, "InvalidParameterValue"},
		"empty ID":    {sqs.SendMessageInput{MessageGroupId: group, MessageDeduplicationId: new("")}, "InvalidParameterValue"},
		"delay":       {sqs.SendMessageInput{MessageGroupId: group, MessageDeduplicationId: id, DelaySeconds: 1}, "InvalidParameterValue"},
		"group space": {sqs.SendMessageInput{MessageGroupId: new("a b"), MessageDeduplicationId: id}, "InvalidParameterValue"},
	} {
		t.Run(name, func(t *testing.T) {
			onFIFO(t, func(w *world, url string) {
				c.in.QueueUrl, c.in.MessageBody = &url, new("a")
				_, err := w.client.SendMessage(w.Context(), &c.in)
				w.wantCode(err, c.want)
			})
		})
	}
}

func TestFIFOBatchWithoutGroupFailsAsAWhole(t *testing.T) {
	onFIFO(t, func(w *world, url string) {
		_, err := w.client.SendMessageBatch(w.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: new("a"), MessageBody: new("a"), MessageGroupId: new("g"), MessageDeduplicationId: new("1")},
			{Id: new("b"), MessageBody: new("b"), MessageDeduplicationId: new("2")},
		}})
		w.wantCode(err, "InvalidParameterValue")
		w.wantCounts("orders.fifo", 0, 0, 0)
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
		name    string
		between func(w *world, url string, first []types.Message)
		want    []string // of an attempt with the same ID
		same    bool     // receipt handles
	}{
		{"at once", func(*world, string, []types.Message) {}, []string{"a", "b"}, true},
		{"near the end", func(*world, string, []types.Message) { pass(59 * time.Second) }, []string{"a", "b"}, true},
		{"expired", func(*world, string, []types.Message) { pass(60 * time.Second) }, []string{"a", "b"}, false},
		{"one deleted", func(w *world, url string, first []types.Message) {
			w.wantCode(w.delete(url, first[0]), "")
		}, nil, false},
		{"one extended", func(w *world, url string, first []types.Message) {
			w.wantCode(w.change(url, first[1], 60), "")
		}, nil, false},
		{"after five minutes", func(w *world, url string, first []types.Message) {
			for range 5 {
				attempt(w, url, "1", 300)
				pass(time.Minute)
			}
		}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFIFO(t, func(w *world, url string) {
				w.sendGroup(url, "g", "a", "b")
				first := attempt(w, url, "1", 60)
				w.wantBodies(attempt(w, url, "2", 60))
				c.between(w, url, first)
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

func TestReceiveAttemptIDIsChecked(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		for url, id := range map[string]string{w.queue("orders"): "1", w.fifo("orders.fifo"): "a b"} {
			in := receiveInput(url, 1, 0, 0)
			in.ReceiveRequestAttemptId = &id
			_, err := w.client.ReceiveMessage(w.Context(), in)
			w.wantCode(err, "InvalidParameterValue")
		}
	})
}
