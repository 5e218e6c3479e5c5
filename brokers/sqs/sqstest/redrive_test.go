package sqstest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func arn(name string) string { return "arn:aws:sqs:us-east-1:123456789012:" + name }

func TestRedrivePolicyMovesWithTheReceiveThatIsOneTooMany(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, dead := w.pair(2, "VisibilityTimeout", "1")
		w.send(url, "poison", "good")
		sent := time.Now()
		id := *w.one(url).MessageId
		w.wantCode(w.delete(url, w.one(url)), "") // good
		pass(time.Second)
		w.one(url)
		pass(time.Hour)
		w.wantCounts("orders", 1, 0, 0) // no timer moves it
		w.send(url, "next")
		w.wantBodies(w.receive(url, 1, 0, 0), "next") // it does not stand in the way
		w.wantCounts("orders", 0, 1, 0)
		m := w.one(dead)
		if *m.MessageId != id || *m.Body != "poison" {
			w.Errorf("dead letter %s %q, want the message ID %s kept", *m.MessageId, *m.Body, id)
		}
		w.wantAttributes(m, map[string]string{
			"DeadLetterQueueSourceArn": arn("orders"),
			"SentTimestamp":            milliseconds(sent),
			"ApproximateReceiveCount":  "3",
		})
		if got := w.server.Queue("orders").Moved; got != 1 {
			w.Errorf("Moved = %d, want 1", got)
		}
	})
}

func TestDeadLetterWakesAPollOfItsQueue(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, dead := w.pair(1)
		w.send(url, "poison")
		w.receive(url, 1, 0, 5)
		var poll sync.WaitGroup
		poll.Go(func() {
			w.takes(5*time.Second, func() { w.wantBodies(w.receive(dead, 1, 20, 0), "poison") })
		})
		w.wantBodies(w.receive(url, 1, 10, 0)) // this poll moves it
		poll.Wait()
	})
}

func TestDeadLetterOfAFIFOQueueStartsAnew(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		dead := w.fifo("dead.fifo")
		url := w.fifo("orders.fifo", "RedrivePolicy", redrivePolicy(arn("dead.fifo"), 1), "VisibilityTimeout", "0")
		w.sendGroup(url, "g", "a", "b")
		first := w.receive(url, 1, 0, 0)[0]
		pass(time.Hour)
		moved := time.Now()
		w.wantBodies(w.receive(url, 10, 0, 0), "b") // a is moved on the way
		m := w.one(dead)
		w.wantBodies([]types.Message{m}, "a")
		w.wantAttributes(m, map[string]string{
			"MessageGroupId":         "g",
			"MessageDeduplicationId": *first.MessageId,
			"SentTimestamp":          milliseconds(moved),
		})
	})
}

func TestRetentionOfDeadLettersCountsFromTheFirstSend(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, dead := w.pair(1, "VisibilityTimeout", "0")
		w.wantCode(w.set(dead, "MessageRetentionPeriod", "3600"), "")
		w.send(url, "a")
		w.one(url)
		pass(time.Hour - time.Second)
		w.receive(url, 1, 0, 0)
		w.wantCounts("dead", 1, 0, 0)
		pass(time.Second)
		w.wantCounts("dead", 0, 0, 0)
	})
}

func TestMessageStaysWithoutItsDeadLetterQueue(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, dead := w.pair(1, "VisibilityTimeout", "0")
		w.send(url, "a")
		w.wantCode(w.deleteQueue(dead), "")
		for range 3 {
			w.one(url)
		}
	})
}

func TestRedrivePolicies(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.queue("dead")
		w.fifo("dead.fifo")
		url := w.queue("orders")
		const bad = "InvalidParameterValue"
		for _, c := range []struct{ policy, want string }{
			{redrivePolicy(arn("dead"), 1), ""},
			{redrivePolicy(arn("dead"), 1000), ""},
			{fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":5}`, arn("dead")), ""},
			{redrivePolicy(arn("dead"), 0), bad},
			{redrivePolicy(arn("dead"), 1001), bad},
			{redrivePolicy(arn("nowhere"), 5), bad},
			{redrivePolicy("dead", 5), bad},
			{redrivePolicy(arn("orders"), 5), bad},
			{redrivePolicy(arn("dead.fifo"), 5), bad},
			{`{"maxReceiveCount":5}`, bad},
			{fmt.Sprintf(`{"deadLetterTargetArn":%q}`, arn("dead")), bad},
			{`{`, bad},
			{"", ""},
		} {
			w.wantCode(w.set(url, "RedrivePolicy", c.policy), c.want)
		}
		if got := w.attribute(url, "RedrivePolicy"); got != "" {
			w.Errorf("RedrivePolicy = %s after it was cleared", got)
		}
	})
}
