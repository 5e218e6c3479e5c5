package sqstest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
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
		w.queue("closed", "RedriveAllowPolicy", `{"redrivePermission":"denyAll"}`)
		w.queue("picky", "RedriveAllowPolicy", fmt.Sprintf(`{"redrivePermission":"byQueue","sourceQueueArns":[%q]}`, arn("orders")))
		url, other := w.queue("orders"), w.queue("other")
		const bad = "InvalidParameterValue"
		for _, c := range []struct{ url, policy, want string }{
			{url, redrivePolicy(arn("dead"), 1), ""},
			{url, redrivePolicy(arn("dead"), 1000), ""},
			{url, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":5}`, arn("dead")), ""},
			{url, redrivePolicy(arn("dead"), 0), bad},
			{url, redrivePolicy(arn("dead"), 1001), bad},
			{url, redrivePolicy(arn("nowhere"), 5), bad},
			{url, redrivePolicy("dead", 5), bad},
			{url, redrivePolicy(arn("orders"), 5), bad},
			{url, redrivePolicy(arn("dead.fifo"), 5), bad},
			{url, redrivePolicy(arn("closed"), 5), bad},
			{url, redrivePolicy(arn("picky"), 5), ""},
			{other, redrivePolicy(arn("picky"), 5), bad},
			{url, `{"maxReceiveCount":5}`, bad},
			{url, fmt.Sprintf(`{"deadLetterTargetArn":%q}`, arn("dead")), bad},
			{url, `{`, bad},
			{url, "", ""},
		} {
			w.wantCode(w.set(c.url, "RedrivePolicy", c.policy), c.want)
		}
		if got := w.attribute(url, "RedrivePolicy"); got != "" {
			w.Errorf("RedrivePolicy = %s after it was cleared", got)
		}
		for policy, want := range map[string]string{
			`{"redrivePermission":"allowAll"}`:                        "",
			`{"redrivePermission":"sometimes"}`:                       bad,
			`{"redrivePermission":"byQueue"}`:                         bad,
			`{"redrivePermission":"denyAll","sourceQueueArns":["a"]}`: bad,
			`{`: bad,
		} {
			w.wantCode(w.set(url, "RedriveAllowPolicy", policy), want)
		}
	})
}

// deadLetters creates a queue and its dead-letter queue with n messages.
func (w *world) deadLetters(n int) (url, dead string) {
	w.Helper()
	url, dead = w.pair(1, "VisibilityTimeout", "0")
	w.send(url, numbered("m", n)...)
	for range 2 * n {
		w.receive(url, 10, 0, 0)
	}
	w.wantCounts("dead", n, 0, 0)
	return url, dead
}

func (w *world) startMove(destination *string, rate *int32) string {
	w.Helper()
	out, err := w.client.StartMessageMoveTask(w.Context(), &sqs.StartMessageMoveTaskInput{
		SourceArn: new(arn("dead")), DestinationArn: destination, MaxNumberOfMessagesPerSecond: rate,
	})
	if err != nil {
		w.Fatalf("StartMessageMoveTask: %v", err)
	}
	return *out.TaskHandle
}

func (w *world) moveTask() types.ListMessageMoveTasksResultEntry {
	w.Helper()
	out, err := w.client.ListMessageMoveTasks(w.Context(), &sqs.ListMessageMoveTasksInput{SourceArn: new(arn("dead"))})
	if err != nil || len(out.Results) != 1 {
		w.Fatalf("ListMessageMoveTasks: %v, %v", out, err)
	}
	return out.Results[0]
}

func TestMoveTaskReturnsMessagesToTheirSource(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, _ := w.deadLetters(3)
		before := w.server.Messages("dead")[0].ID
		w.startMove(nil, nil)
		start := time.Now()
		got := w.receive(url, 1, 20, 30)
		w.wantBodies(got, "m1")
		w.wantAttributes(got[0], map[string]string{"ApproximateReceiveCount": "1", "SentTimestamp": milliseconds(start)})
		if *got[0].MessageId == before {
			w.Error("the message is moved with its ID, want a new one")
		}
		pass(time.Second)
		if task := w.moveTask(); *task.Status != "COMPLETED" || task.ApproximateNumberOfMessagesMoved != 3 || task.TaskHandle != nil {
			w.Errorf("task %s, %d moved, want COMPLETED and 3", *task.Status, task.ApproximateNumberOfMessagesMoved)
		}
		w.wantCounts("dead", 0, 0, 0)
	})
}

func TestMoveTaskKeepsItsRate(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.deadLetters(5)
		to := w.queue("archive")
		handle := w.startMove(new(arn("archive")), new(int32(1)))
		start := time.Now()
		for i := range 3 {
			w.wantBodies(w.receive(to, 10, 20, 30), fmt.Sprint("m", i+1))
			if got, want := time.Since(start), time.Duration(i)*time.Second; got != want {
				w.Errorf("message %d came after %v, want %v", i+1, got, want)
			}
		}
		task := w.moveTask()
		if *task.Status != "RUNNING" || *task.TaskHandle != handle || *task.ApproximateNumberOfMessagesToMove != 5 {
			w.Errorf("task %s %v to move %d, want RUNNING with handle and 5", *task.Status, task.TaskHandle, *task.ApproximateNumberOfMessagesToMove)
		}
		out, err := w.client.CancelMessageMoveTask(w.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: &handle})
		w.wantCode(err, "")
		if out.ApproximateNumberOfMessagesMoved != 3 {
			w.Errorf("cancelled after %d messages, want 3", out.ApproximateNumberOfMessagesMoved)
		}
		pass(time.Minute)
		w.wantCounts("dead", 2, 0, 0)
		if got := *w.moveTask().Status; got != "CANCELLED" {
			w.Errorf("status %s, want CANCELLED", got)
		}
		_, err = w.client.CancelMessageMoveTask(w.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: &handle})
		w.wantCode(err, "AWS.SimpleQueueService.UnsupportedOperation")
	})
}

func TestMoveTaskPassesOverWhatIsInFlightOrGone(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		_, dead := w.deadLetters(4)
		w.queue("archive")
		w.startMove(new(arn("archive")), new(int32(1))) // moves m1 at once
		got := w.receive(dead, 2, 0, 60)
		w.wantBodies(got, "m2", "m3")
		w.wantCode(w.delete(dead, got[0]), "")
		pass(10 * time.Second)
		w.wantCounts("dead", 0, 1, 0)
		w.wantCounts("archive", 2, 0, 0)
	})
}

func TestMoveTaskFailsWithItsDestination(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.deadLetters(3)
		to := w.queue("archive")
		w.startMove(new(arn("archive")), new(int32(1)))
		w.wantCode(w.deleteQueue(to), "")
		pass(time.Second)
		task := w.moveTask()
		if *task.Status != "FAILED" || *task.FailureReason != "AWS.SimpleQueueService.NonExistentQueue" {
			w.Errorf("task %s because %v, want FAILED because of NonExistentQueue", *task.Status, task.FailureReason)
		}
		w.wantCounts("dead", 2, 0, 0)
	})
}

func TestMoveTaskIsRefused(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.deadLetters(1)
		w.fifo("archive.fifo")
		for _, c := range []struct {
			source, destination string
			rate                *int32
			want                string
		}{
			{arn("orders"), "", nil, "InvalidParameterValue"},
			{arn("nowhere"), "", nil, "ResourceNotFoundException"},
			{"nowhere", "", nil, "ResourceNotFoundException"},
			{arn("dead"), arn("nowhere"), nil, "ResourceNotFoundException"},
			{arn("dead"), arn("dead"), nil, "InvalidParameterValue"},
			{arn("dead"), arn("archive.fifo"), nil, "InvalidParameterValue"},
			{arn("dead"), "", new(int32(501)), "InvalidParameterValue"},
			{"", "", nil, "MissingParameter"},
		} {
			in := &sqs.StartMessageMoveTaskInput{SourceArn: &c.source, MaxNumberOfMessagesPerSecond: c.rate}
			if c.destination != "" {
				in.DestinationArn = &c.destination
			}
			_, err := w.client.StartMessageMoveTask(w.Context(), in)
			w.wantCode(err, c.want)
		}
		w.startMove(new(arn("orders")), new(int32(1)))
		_, err := w.client.StartMessageMoveTask(w.Context(), &sqs.StartMessageMoveTaskInput{SourceArn: new(arn("dead"))})
		w.wantCode(err, "InvalidParameterValue")
		_, err = w.client.CancelMessageMoveTask(w.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: new("none")})
		if !typed[*types.ResourceNotFoundException](err) {
			w.Errorf("cancelling no task: %v, want ResourceNotFoundException", err)
		}
		_, err = w.client.ListMessageMoveTasks(w.Context(), &sqs.ListMessageMoveTasksInput{SourceArn: new(arn("nowhere"))})
		w.wantCode(err, "ResourceNotFoundException")
		_, err = w.client.ListMessageMoveTasks(w.Context(), &sqs.ListMessageMoveTasksInput{SourceArn: new(arn("dead")), MaxResults: new(int32(11))})
		w.wantCode(err, "InvalidParameterValue")
	})
}
