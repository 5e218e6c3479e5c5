package sqstest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

const fullDay = 24 * time.Hour

func TestChangedVisibilityCountsFromTheCallAndIsNotRemembered(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "VisibilityTimeout", "7")
		w.send(url, "a")
		m := w.one(url)
		pass(6 * time.Second)
		w.wantCode(w.change(url, m, 10), "")
		w.takes(10*time.Second, func() { w.wantBodies(w.receive(url, 1, 20, 0), "a") })
		w.takes(7*time.Second, func() { w.wantBodies(w.receive(url, 1, 20, 0), "a") })
	})
}

func TestOneReceiveHidesFor12HoursInAll(t *testing.T) {
	const hours12 = 43200
	for _, c := range []struct {
		name    string
		elapsed time.Duration
		seconds int32
		want    string
	}{
		{"all at once", 0, hours12, ""},
		{"all that is left", time.Hour, hours12 - 3600, ""},
		{"a second too many", time.Hour, hours12 - 3599, "InvalidParameterValue"},
		{"a moment too late", time.Millisecond, hours12, "InvalidParameterValue"},
		{"more than ever", 0, hours12 + 1, "InvalidParameterValue"},
		{"less than nothing", 0, -1, "InvalidParameterValue"},
		{"shorter near the end", 12*time.Hour - time.Second, 1, ""},
		{"longer near the end", 12*time.Hour - time.Second, 2, "InvalidParameterValue"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOrders(t, func(w *world, url string) {
				w.send(url, "a")
				m := w.receive(url, 1, 0, hours12)[0]
				pass(c.elapsed)
				w.wantCode(w.change(url, m, c.seconds), c.want)
				w.wantCounts("orders", 0, 1, 0)
			})
		})
	}
}

func TestTwelveHoursBeginAnewWithEveryReceive(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		w.send(url, "a")
		m := w.receive(url, 1, 0, 43200)[0]
		pass(11 * time.Hour)
		w.wantCode(w.change(url, m, 0), "")
		w.wantCode(w.change(url, w.one(url), 43200), "")
	})
}

func TestReceiptHandles(t *testing.T) {
	const gone, stale, expired = "deleted", "received again", "timeout over"
	for _, c := range []struct {
		state            string
		fifo             bool
		delete, change   string
		left, wrongCalls int
	}{
		{gone, false, "", "InvalidParameterValue", 0, 1},
		{gone, true, "", "InvalidParameterValue", 0, 1},
		{stale, false, "", "InvalidParameterValue", 1, 2},
		{stale, true, "InvalidParameterValue", "InvalidParameterValue", 1, 2},
		{expired, false, "", "AWS.SimpleQueueService.MessageNotInflight", 0, 2},
		{expired, true, "InvalidParameterValue", "InvalidParameterValue", 1, 2},
	} {
		name, attributes := "orders", []string(nil)
		if c.fifo {
			name, attributes = "orders.fifo", []string{"FifoQueue", "true"}
		}
		t.Run(name+"/"+c.state, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				url := w.queue(name, attributes...)
				if c.fifo {
					w.sendGroup(url, "g", "a")
				} else {
					w.send(url, "a")
				}
				m := w.receive(url, 1, 0, 10)[0]
				switch c.state {
				case gone:
					w.wantCode(w.delete(url, m), "")
				case stale:
					w.wantCode(w.change(url, m, 0), "")
					w.one(url)
				case expired:
					pass(10 * time.Second)
				}
				w.wantCode(w.change(url, m, 30), c.change)
				w.wantCode(w.delete(url, m), c.delete)
				q := w.server.Queue(name)
				if left := q.Visible + q.InFlight; left != c.left || q.Stale != c.wrongCalls {
					w.Errorf("%d messages left and %d stale calls, want %d and %d", left, q.Stale, c.left, c.wrongCalls)
				}
			})
		})
	}
}

func TestReceiptHandleThatIsNone(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, other := w.queue("orders"), w.queue("others")
		w.send(other, "a")
		m := w.one(other)
		for name, handle := range map[string]*string{"garbage": new("garbage"), "another queue's": m.ReceiptHandle} {
			m.ReceiptHandle = handle
			err := w.delete(url, m)
			if !typed[*types.ReceiptHandleIsInvalid](err) {
				w.Errorf("DeleteMessage with %s handle: %v, want ReceiptHandleIsInvalid", name, err)
			}
			w.wantCode(w.change(url, m, 1), "ReceiptHandleIsInvalid")
		}
		m.ReceiptHandle = new("")
		w.wantCode(w.delete(url, m), "MissingParameter")
	})
}

func TestReceiveParameters(t *testing.T) {
	const bad = "InvalidParameterValue"
	for _, c := range []struct {
		name             string
		most, wait, hide int32
		attempt          *string
		want             string
	}{
		{"most", 10, 20, 43200, nil, ""},
		{"too many", 11, 0, 0, nil, bad},
		{"fewer than one", -1, 0, 0, nil, bad},
		{"long wait", 1, 21, 0, nil, bad},
		{"negative wait", 1, -1, 0, nil, bad},
		{"long visibility", 1, 0, 43201, nil, bad},
		{"negative visibility", 1, 0, -1, nil, bad},
		{"an attempt", 1, 0, 0, new("1"), bad},
		{"an attempt that is none", 1, 0, 0, new("a b"), bad},
		{"an attempt, FIFO", 1, 0, 0, new("1"), ""},
		{"an attempt that is none, FIFO", 1, 0, 0, new("a b"), bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				url := w.queue("orders")
				if strings.HasSuffix(c.name, "FIFO") {
					url = w.fifo("orders.fifo")
					w.sendGroup(url, "g", "a")
				} else {
					w.send(url, "a")
				}
				in := receiveInput(url, c.most, c.wait, c.hide)
				in.ReceiveRequestAttemptId = c.attempt
				_, err := w.client.ReceiveMessage(w.Context(), in)
				w.wantCode(err, c.want)
			})
		})
	}
}

func TestRetentionEndsMessagesInEveryState(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "MessageRetentionPeriod", "600")
		w.send(url, "in flight", "visible")
		w.receive(url, 1, 0, 3600)
		w.delayed(url, "delayed", 900)
		pass(600*time.Second - 1)
		w.wantCounts("orders", 1, 1, 1)
		pass(time.Nanosecond)
		w.wantCounts("orders", 0, 0, 0)
		if got := w.server.Queue("orders").Expired; got != 3 {
			w.Errorf("Expired = %d, want 3", got)
		}
		w.send(url, "later")
		w.wantCode(w.set(url, "MessageRetentionPeriod", "1209600"), "")
		pass(14*fullDay - time.Second)
		w.wantCounts("orders", 1, 0, 0)
		w.wantCode(w.set(url, "MessageRetentionPeriod", "60"), "")
		w.wantCounts("orders", 0, 0, 0)
	})
}
