package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// answering is a server of SQS's protocol that says one thing.
type answering struct {
	status int
	body   io.Reader
	err    error
}

func (a answering) Do(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Status: http.StatusText(a.status), Body: io.NopCloser(a.body)}, nil
}

func requestOf(t *testing.T, operation string, in *intent) *http.Request {
	t.Helper()
	ctx := t.Context()
	if in != nil {
		ctx = context.WithValue(ctx, intentKey{}, in)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sqs.example", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Amz-Target", targetPrefix+operation)
	return req
}

func TestSQSTapStopsAtItsPoints(t *testing.T) {
	const send, change, remove = "SendMessageBatch", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"
	none := func() *intent { return nil }
	plain := func() *intent { return &intent{} }
	burying := func() *intent { return &intent{buries: true} }
	retrying := func() *intent { return &intent{retries: true} }
	copied := func() *intent {
		in := &intent{}
		in.copied.Store(true)
		return in
	}
	for _, tt := range []struct {
		name      string
		operation string
		intent    func() *intent
		status    int
		want      point
	}{
		{"a copy is confirmed", send, retrying, 200, beforeConfirm},
		{"a copy is refused", send, retrying, 400, ""},
		{"a dead letter is confirmed", send, burying, 200, inBurial},
		{"a dead letter meets trouble", send, burying, 503, ""},
		{"a message is sent", send, none, 200, ""},
		{"a retry waits in place", change, retrying, 200, beforeConfirm},
		{"a message is given back", change, plain, 200, ""},
		{"a lease is extended", change, none, 200, ""},
		{"an ack of what is copied", remove, copied, 200, beforeAck},
		{"an ack", remove, plain, 200, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var reached point
			tap := &sqsTap{next: answering{status: tt.status, body: strings.NewReader("{}")}}
			for _, p := range points {
				tap.trap = &trap{armed: p, tell: func(p point) {
					reached = p
					runtime.Goexit() // where a process would wait for its death
				}}
				go tap.Do(requestOf(t, tt.operation, tt.intent()))
				synctest.Wait()
			}
			if reached != tt.want {
				t.Errorf("%s: stopped at %q, want %q", tt.name, reached, tt.want)
			}
		})
	}
}

// After a copy the next deletion of the same settlement is the original's, and
// of no other.
func TestSQSTapTellsTheAckOfACopiedMessage(t *testing.T) {
	in := &intent{retries: true}
	tap := &sqsTap{next: answering{status: 200, body: strings.NewReader("{}")}}
	if _, err := tap.Do(requestOf(t, "SendMessageBatch", in)); err != nil || !in.copied.Load() {
		t.Errorf("a copy is confirmed: %v, noted %v; want no error, and true", err, in.copied.Load())
	}
	if _, err := tap.Do(requestOf(t, "DeleteMessageBatch", in)); err != nil || in.copied.Load() {
		t.Errorf("the original is deleted: %v, noted %v; want no error, and false", err, in.copied.Load())
	}
}

// torn is an answer that ends too soon.
type torn struct{}

func (torn) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestSQSTapTellsOfPolls(t *testing.T) {
	const two = `{"Messages":[{"MessageAttributes":{"redrive-meta":{"DataType":"String","StringValue":"{\"id\":\"m1\"}"}}},` +
		`{"MessageAttributes":{"redrive-meta":{"DataType":"String","StringValue":"{\"id\":\"m2\",\"attempt\":\"3\"}"}}}]}`
	for _, tt := range []struct {
		name   string
		server answering
		ids    string
		deaf   int
		text   string
	}{
		{"two messages", answering{200, strings.NewReader(two), nil}, "m1 m2", 0, two},
		{"none", answering{200, strings.NewReader("{}"), nil}, "", 0, "{}"},
		{"an error", answering{500, strings.NewReader("oh"), nil}, "", 1, "oh"},
		{"no answer", answering{err: errors.New("reset")}, "", 1, ""},
		{"half an answer", answering{200, io.MultiReader(strings.NewReader(`{"Mess`), torn{}), nil}, "", 1, `{"Mess`},
		{"something else", answering{200, strings.NewReader("<html>"), nil}, "", 1, "<html>"},
		{"a stranger", answering{200, strings.NewReader(`{"Messages":[{}]}`), nil}, "", 1, `{"Messages":[{}]}`},
	} {
		var ids []string
		deaf := 0
		tap := &sqsTap{next: tt.server, polled: func(id string, err error) {
			if err != nil {
				deaf++
				return
			}
			ids = append(ids, id)
		}}
		resp, err := tap.Do(requestOf(t, "ReceiveMessage", nil))
		if got := strings.Join(ids, " "); got != tt.ids || deaf != tt.deaf {
			t.Errorf("%s: brought %q, %d of unknown content; want %q, %d", tt.name, got, deaf, tt.ids, tt.deaf)
		}
		if tt.server.err != nil {
			if !errors.Is(err, tt.server.err) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.server.err)
			}
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		if string(body) != tt.text {
			t.Errorf("%s: the worker reads %q, want %q", tt.name, body, tt.text)
		}
	}
}

// estimating is a checker of a run on SQS with one topic of four attempts.
func estimating(copies bool) *checker {
	s := &scenario{broker: "sqs", copies: copies, served: true, topics: []topic{{policy: retry.Policy{MaxAttempts: 4}}}, messages: []message{{}}, pace: served}
	return &checker{record: &record{scenario: s}}
}

func TestWhatEstimatesMayBe(t *testing.T) {
	stored := token{attempt: 1, due: 5 * time.Second, least: 1}
	for _, tt := range []struct {
		name   string
		got    token
		strays int
		copies bool
		want   bool

		fifo            bool
		throttled, held int
	}{
		{name: "without what cannot be stored", got: token{attempt: 1}, want: true},
		{name: "too low", got: token{attempt: 0}},
		{name: "too high without a reason", got: token{attempt: 2}},
		{name: "too high by a stray receive", got: token{attempt: 2}, strays: 1, want: true},
		{name: "the last attempt", got: token{attempt: 3}, strays: 9, want: true},
		{name: "the end of the message", got: token{attempt: 4}, strays: 9},
		{name: "with throttles from nowhere", got: token{attempt: 1, throttles: 1}, strays: 9},
		{name: "due some other time", got: token{attempt: 1, due: time.Minute}, strays: 9},
		{name: "where all of it is stored", got: token{attempt: 1}, strays: 9, copies: true},
		{name: "FIFO: too high by a throttled run", got: token{attempt: 2}, fifo: true, throttled: 1, want: true},
		{name: "too high by a throttled run, which was copied", got: token{attempt: 2}, throttled: 1},
		{name: "FIFO: too low by what was held", got: token{attempt: 0}, fifo: true, held: 1, want: true},
		{name: "FIFO: too low without a reason", got: token{attempt: 0}, fifo: true},
		{name: "too low by what was held, which was copied", got: token{attempt: 0}, held: 1},
	} {
		c := estimating(tt.copies)
		c.scenario.fifo = tt.fifo
		f := &fate{id: "m0", polled: 1, released: tt.strays, free: tt.throttled, deliveries: []*delivery{{runs: 1 + tt.held}}, tokens: []token{stored}, seen: []token{{}, stored}}
		if got := c.estimated(f, stored, tt.got); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestEstimateMeansWhatIsDue(t *testing.T) {
	at := func(due time.Duration) token { return token{attempt: 1, due: due, least: 1} }
	for _, tt := range []struct {
		now  time.Duration
		want int
	}{{500, 0}, {1500, 0}, {2500, 2}, {9000, 1}} {
		c := estimating(false)
		c.now = tt.now
		f := &fate{id: "m0", tokens: []token{at(1000), at(3000), at(2000)}, seen: []token{{}}}
		if got := c.closestEstimate(f, token{attempt: 1}); got != tt.want {
			t.Errorf("at %d: token %d, want %d", tt.now, got, tt.want)
		}
	}
}

func TestUnseenFailures(t *testing.T) {
	for _, tt := range []struct {
		reason string
		first  time.Time
		copies bool
		want   bool
	}{
		{"oversize", time.Time{}, false, true},
		{"crash-loop", time.Time{}, false, true},
		{"exhausted", time.Time{}, false, false},
		{"oversize", time.Unix(1, 0), false, false},
		{"oversize", time.Time{}, true, false},
	} {
		letter := dlq.Entry{Reason: tt.reason}
		letter.Meta.FirstFailedAt = tt.first
		if got := estimating(tt.copies).unseen(letter); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
