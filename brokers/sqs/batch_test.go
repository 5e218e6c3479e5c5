package sqs

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// failed returns the indices of errs that are of a kind; nil is any error.
func failed(errs []error, kind error) []int {
	var out []int
	for i, err := range errs {
		if err != nil && (kind == nil || errors.Is(err, kind)) {
			out = append(out, i)
		}
	}
	return out
}

func TestPartialFailures(t *testing.T) {
	for _, test := range []struct {
		code string
		want error
	}{
		{"InternalError", nil},
		{"ReceiptHandleIsInvalid", brokers.ErrLeaseLost},
		{"AWS.SimpleQueueService.MessageNotInflight", brokers.ErrLeaseLost},
	} {
		t.Run(test.code, func(t *testing.T) {
			inBubble(t, false, func(t *testing.T, b *bench) {
				b.publish(12)
				records := b.receive(12)
				b.server.Inject(sqstest.Fault{Operation: "ChangeMessageVisibilityBatch", Code: test.code, Entries: []int{1}})
				b.server.Inject(sqstest.Fault{Operation: "DeleteMessageBatch", Code: test.code, Entries: []int{1}})
				var changes []change
				for _, r := range records {
					changes = append(changes, change{handle: r.handle, seconds: 60})
				}
				for _, errs := range [][]error{
					b.hide(t.Context(), b.queue.url, changes),
					b.hideInOrder(t.Context(), b.queue.url, changes),
					b.remove(t.Context(), b.queue.url, handles(records)),
				} {
					if got := failed(errs, nil); !reflect.DeepEqual(got, []int{1, 11}) || test.want != nil && len(failed(errs, test.want)) != 2 {
						t.Errorf("%v fail, want 1 and 11: %v", got, errs)
					}
				}
				if q := b.server.Queue("orders"); q.Deleted != 10 {
					t.Errorf("%d are deleted, want 10", q.Deleted)
				}
			})
		})
	}
}

func TestHide(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		b.publish(3)
		records := b.receive(3)
		begun := time.Now()
		errs := b.hide(t.Context(), b.queue.url, []change{{records[0].handle, 0}, {records[1].handle, 100}, {"nonsense", 5}})
		if !reflect.DeepEqual(failed(errs, brokers.ErrLeaseLost), []int{2}) || len(failed(errs, nil)) != 1 {
			t.Errorf("hide = %v, want the third to be lost", errs)
		}
		if again := b.receive(1)[0]; again.id != records[0].id || again.receives != 2 || time.Since(begun) != 0 {
			t.Errorf("got %+v after %v, want the released message at once", again, time.Since(begun))
		}
		errs = b.hide(t.Context(), b.queue.url, []change{{records[1].handle, 43_200}})
		if time.Sleep(time.Minute); errs != nil {
			t.Errorf("12 h at once: %v", errs)
		}
		errs = b.hide(t.Context(), b.queue.url, []change{{records[1].handle, 43_200}})
		if !reflect.DeepEqual(failed(errs, errPastTotal), []int{0}) {
			t.Errorf("12 h after a minute: %v, want errPastTotal", errs)
		}
	})
}

func TestRemoveAfterTheLease(t *testing.T) {
	inBubble(t, true, func(t *testing.T, b *bench) {
		b.publish(1)
		records := b.receive(1)
		time.Sleep(31 * time.Second)
		errs := b.remove(t.Context(), b.queue.url, handles(records))
		if !reflect.DeepEqual(failed(errs, brokers.ErrLeaseLost), []int{0}) || b.server.Queue("orders.fifo").Visible != 1 {
			t.Errorf("remove = %v, want ErrLeaseLost and the message kept", errs)
		}
	})
}

func TestSendFailures(t *testing.T) {
	for _, test := range []struct {
		name    string
		fault   sqstest.Fault
		want    error
		failed  []int
		unknown bool
	}{
		{name: "entries", fault: sqstest.Fault{Entries: []int{0, 4}}, want: brokers.ErrUnknownOutcome, failed: []int{0, 4}},
		{name: "contents", fault: sqstest.Fault{Entries: []int{3}, Code: "InvalidMessageContents"}, want: brokers.ErrRefused, failed: []int{3}},
		{name: "throttled", fault: sqstest.Fault{Code: "RequestThrottled"}, failed: []int{0, 1, 2, 3, 4}},
		{name: "denied", fault: sqstest.Fault{Code: "AccessDenied"}, want: brokers.ErrMisconfigured, failed: []int{0, 1, 2, 3, 4}},
		{name: "cut", fault: sqstest.Fault{Cut: true, AfterEffect: true}, want: brokers.ErrUnknownOutcome, failed: []int{0, 1, 2, 3, 4}},
		{name: "500", fault: sqstest.Fault{Status: 500}, want: brokers.ErrUnknownOutcome, failed: []int{0, 1, 2, 3, 4}},
		{name: "slow", fault: sqstest.Fault{Latency: time.Hour}, want: brokers.ErrUnknownOutcome, failed: []int{0, 1, 2, 3, 4}},
		{name: "damaged", fault: sqstest.Fault{Corrupt: true, Entries: []int{2}}, want: errChecksum, failed: []int{2}},
		{name: "once too much for the batch", fault: sqstest.Fault{Code: "BatchRequestTooLong", Times: 2}},
		{name: "too much", fault: sqstest.Fault{Code: "BatchRequestTooLong"}, want: brokers.ErrRefused, failed: []int{0, 1, 2, 3, 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, false, func(t *testing.T, b *bench) {
				test.fault.Operation = "SendMessageBatch"
				b.server.Inject(test.fault)
				errs := b.send(t.Context(), b.queue.url, messages(5, 10))
				if got := failed(errs, test.want); !reflect.DeepEqual(got, test.failed) || len(failed(errs, nil)) != len(test.failed) {
					t.Errorf("%v fail with %v, want %v: %v", got, test.want, test.failed, errs)
				}
				if (errs == nil) != (test.failed == nil) {
					t.Errorf("errs = %v", errs)
				}
			})
		})
	}
}

func messages(n, size int) []outgoing {
	var out []outgoing
	for i := range n {
		one, err := compose(brokers.Message{ID: fmt.Sprint(i), Body: bytes.Repeat([]byte("x"), size)}, nil, false, 0, 0)
		if err != nil {
			panic(err)
		}
		out = append(out, one)
	}
	return out
}

func TestFIFOSendRepeatedIsOneMessage(t *testing.T) {
	inBubble(t, true, func(t *testing.T, b *bench) {
		one, err := compose(brokers.Message{ID: "a", Body: []byte("x")}, nil, true, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Cut: true, AfterEffect: true, Times: 4})
		if errs := b.send(t.Context(), b.queue.url, []outgoing{one}); len(failed(errs, brokers.ErrUnknownOutcome)) != 1 {
			t.Errorf("the answer got lost three times: %v", errs)
		}
		if errs := b.send(t.Context(), b.queue.url, []outgoing{one}); errs != nil {
			t.Errorf("sent again: %v", errs)
		}
		if q := b.server.Queue("orders.fifo"); q.Visible != 1 || q.Deduplicated == 0 {
			t.Errorf("the queue has %+v, want one message", q)
		}
	})
}

func TestSendSplitsBySize(t *testing.T) {
	t.Parallel()
	inBubble(t, false, func(t *testing.T, b *bench) {
		if errs := b.send(t.Context(), b.queue.url, messages(7, 300<<10)); errs != nil {
			t.Fatal(errs)
		}
		if got := b.server.Count("SendMessageBatch"); got != 3 {
			t.Errorf("%d calls for 7 messages of 300 KiB, want 3", got)
		}
		largestFitting := 1<<20 - messages(1, 0)[0].size // an envelope is more than what it seals
		if errs := b.send(t.Context(), b.queue.url, messages(2, largestFitting)); errs != nil {
			t.Error(errs)
		}
	})
}

func TestSilentAnswers(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		b.publish(1)
		records := b.receive(1)
		b.server.Inject(sqstest.Fault{Status: 200})
		errs := b.remove(t.Context(), b.queue.url, handles(records))
		if len(errs) != 1 || errs[0] == nil || len(failed(errs, brokers.ErrLeaseLost)) != 0 {
			t.Errorf("remove, answered by nothing: %v, want a temporary error", errs)
		}
		errs = b.send(t.Context(), b.queue.url, messages(2, 10))
		if len(failed(errs, brokers.ErrUnknownOutcome)) != 2 {
			t.Errorf("send, answered by nothing: %v, want ErrUnknownOutcome", errs)
		}
	})
}

func TestParcels(t *testing.T) {
	sized := func(sizes ...int) []outgoing {
		var out []outgoing
		for _, size := range sizes {
			out = append(out, outgoing{size: size})
		}
		return out
	}
	eleven := make([]int, 11)
	for _, test := range []struct {
		sizes []int
		want  []span
	}{
		{nil, nil},
		{[]int{5}, []span{{0, 1}}},
		{eleven, []span{{0, 10}, {10, 11}}},
		{[]int{largest, largest, 1}, []span{{0, 1}, {1, 2}, {2, 3}}},
		{[]int{largest - 1, 1, 1}, []span{{0, 2}, {2, 3}}},
		{[]int{2 * largest, 1}, []span{{0, 1}, {1, 2}}},
	} {
		if got := parcels(sized(test.sizes...)); !reflect.DeepEqual(got, test.want) {
			t.Errorf("parcels of %v = %v, want %v", test.sizes, got, test.want)
		}
	}
	if got := tens(21); !reflect.DeepEqual(got, []span{{0, 10}, {10, 20}, {20, 21}}) {
		t.Errorf("tens(21) = %v", got)
	}
}

func TestOpenCallsAreBounded(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		open, most := 0, 0
		errs := b.callers.inParallel(1000, tens(1000), func(s span, errs []error) error {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			open--
			if s.from == 20 {
				errs[3] = errors.New("late")
			}
			return nil
		})
		if most != callsAtOnce || !reflect.DeepEqual(failed(errs, nil), []int{23}) {
			t.Errorf("%d calls open at once, want %d; errors %v", most, callsAtOnce, failed(errs, nil))
		}
		if errs := inOrder(0, nil, nil); errs != nil {
			t.Errorf("of nothing: %v", errs)
		}
		if errs := b.remove(t.Context(), b.queue.url, nil); errs != nil || b.server.Count("DeleteMessageBatch") != 0 {
			t.Errorf("remove of nothing: %v", errs)
		}
	})
}

func TestOneBadEntryDoesNotSpoilTheBatch(t *testing.T) {
	for _, kind := range []error{brokers.ErrRefused, brokers.ErrLeaseLost, errPastTotal} {
		var calls []span
		errs := inOrder(10, tens(10), func(s span, errs []error) error {
			calls = append(calls, s)
			if s.from <= 6 && 6 < s.to {
				return fmt.Errorf("the whole batch: %w", kind)
			}
			return nil
		})
		if !reflect.DeepEqual(failed(errs, kind), []int{6}) || len(calls) > 9 {
			t.Errorf("%v: %v fail after the calls %v, want 6 alone", kind, failed(errs, nil), calls)
		}
	}
	errs := inOrder(3, tens(3), func(span, []error) error { return brokers.ErrMisconfigured })
	if len(failed(errs, brokers.ErrMisconfigured)) != 3 || !strings.Contains(errs[0].Error(), "configuration") {
		t.Errorf("errs = %v, want all of them misconfigured, after one call", errs)
	}
}

// TestSendToWhatTakesNothing makes one call, however much there is to send.
func TestSendToWhatTakesNothing(t *testing.T) {
	for _, tt := range []struct {
		code  string
		calls int
	}{
		{"AWS.SimpleQueueService.NonExistentQueue", 1},
		{"AccessDenied", 1},
		{"InvalidMessageContents", 2*25 - 3}, // it may be one message: each half again
	} {
		inBubble(t, false, func(t *testing.T, b *bench) {
			var out []outgoing
			for i := range 25 {
				one, err := compose(brokers.Message{ID: fmt.Sprint(i), Body: []byte("body")}, nil, false, 0, 0)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, one)
			}
			b.server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Code: tt.code})
			errs := b.send(t.Context(), b.queue.url, out)
			if n := len(slices.DeleteFunc(errs, func(err error) bool { return err == nil })); n != len(out) {
				t.Errorf("%s: %d of %d messages have an error", tt.code, n, len(out))
			}
			if got := b.server.Count("SendMessageBatch"); got != tt.calls {
				t.Errorf("%s: %d calls, want %d", tt.code, got, tt.calls)
			}
		})
	}
}

func TestCarefully(t *testing.T) {
	bad, denied := errors.New("bad"), fmt.Errorf("no: %w", brokers.ErrMisconfigured)
	spans := []span{{0, 2}, {2, 4}, {4, 5}}
	calls := new(callers)
	for name, tt := range map[string]struct {
		fails map[int]error // by the beginning of a span
		want  []error
		calls int
	}{
		"all is well":      {nil, nil, 3},
		"the first fails":  {map[int]error{0: bad}, []error{bad, bad, nil, nil, nil}, 3},
		"another fails":    {map[int]error{2: bad}, []error{nil, nil, bad, bad, nil}, 3},
		"both fail":        {map[int]error{0: bad, 4: denied}, []error{bad, bad, nil, nil, denied}, 3},
		"nothing is taken": {map[int]error{0: denied}, []error{denied, denied, denied, denied, denied}, 1},
	} {
		for _, run := range []runner{calls.inParallel, inOrder} {
			var made atomic.Int32
			got := carefully(run, 5, spans, func(s span, _ []error) error {
				made.Add(1)
				return tt.fails[s.from]
			})
			if !slices.Equal(got, tt.want) || int(made.Load()) != tt.calls {
				t.Errorf("%s: %v after %d calls, want %v after %d", name, got, made.Load(), tt.want, tt.calls)
			}
		}
	}
}
