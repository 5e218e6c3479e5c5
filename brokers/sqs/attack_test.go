package sqs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// attack is a scene with a worker on the default configuration, and somebody else who
// may send to its queue.
type attack struct {
	*scene
	options Options
	random  func() float64 // of the worker; nil is its own
	dead    string
	began   time.Time // the last work

	mu      sync.Mutex
	runs    map[string]int           // by body, or its first bytes
	done    map[string]time.Duration // when it was handled, after the start
	letters []dlq.Entry              // as the worker tells of them
}

// under runs an attack in virtual time. The queues have a policy as Create makes it,
// unless attributes say otherwise.
func under(t *testing.T, topic string, options Options, run func(a *attack)) {
	t.Helper()
	play(t, topic, options, func(s *scene) {
		a := &attack{scene: s, options: options, dead: "dead", runs: make(map[string]int), done: make(map[string]time.Duration)}
		if isFIFO(topic) {
			a.dead += fifoSuffix
		}
		a.options.Config, a.options.Create = s.server.Config(), true
		run(a)
	})
}

// limited makes the queues, for messages up to a size, before the worker could.
func (a *attack) limited(size int) {
	a.Helper()
	for _, name := range []string{a.dead, a.topic} {
		a.create(name, map[string]string{"MaximumMessageSize": fmt.Sprint(size), nameRetention: "345600"})
	}
}

// send sends a message as anybody can. Attributes that are no text are binary.
func (a *attack) send(group, body string, attributes map[string]string) {
	a.Helper()
	in := &awssqs.SendMessageInput{QueueUrl: aws.String(a.server.Queue(a.topic).URL), MessageBody: &body}
	if len(attributes) > 0 {
		in.MessageAttributes = make(map[string]types.MessageAttributeValue)
	}
	for name, value := range attributes {
		if utf8.ValidString(value) {
			in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
		} else {
			in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("Binary"), BinaryValue: []byte(value)}
		}
	}
	if isFIFO(a.topic) {
		in.MessageGroupId, in.MessageDeduplicationId = &group, aws.String(rand.Text())
	}
	if _, err := a.broker.client.sends.SendMessage(a.Context(), in); err != nil {
		a.Fatalf("send %.40q: %v", body, err)
	}
}

// setUp has the queues made as the worker makes them.
func (a *attack) setUp() {
	a.Helper()
	a.work(time.Nanosecond, func(string, int) error { return nil })
}

// work runs a worker for a time. Handle is told the body, and which run it is.
func (a *attack) work(d time.Duration, handle func(body string, run int) error) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), d)
	defer cancel()
	a.mu.Lock()
	a.began = time.Now()
	a.mu.Unlock()
	if err := a.run(ctx, a.options, handle); err != nil {
		a.Errorf("Run: %v", err)
	}
}

func (a *attack) run(ctx context.Context, options Options, handle func(body string, run int) error) error {
	b, err := New(options)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(a.Context()))
	c, err := consumer.New(b, consumer.Config{
		DeadLetter: a.dead, Logger: slog.New(slog.DiscardHandler), Observers: []consumer.Observer{a}, Random: a.random,
	})
	if err != nil {
		return err
	}
	c.Handle(a.topic, func(_ context.Context, m *brokers.Message) error {
		body := string(m.Body[:min(len(m.Body), 20)])
		a.mu.Lock()
		a.runs[body]++
		run := a.runs[body]
		a.mu.Unlock()
		err := handle(body, run)
		if err == nil {
			a.mu.Lock()
			a.done[body] = time.Since(a.began)
			a.mu.Unlock()
		}
		return err
	})
	return c.Run(ctx)
}

// killed runs a worker until it is killed: by handle, or after d. From then on its
// network is cut, also for a poll that goes on at the server. It reports whether
// handle killed it.
func (a *attack) killed(d time.Duration, handle func(body string, kill func()) error) bool {
	a.Helper()
	alive, kill := context.WithCancel(a.Context())
	defer kill()
	options := a.options
	next := options.Config.HTTPClient
	options.Config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
		if err := alive.Err(); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(r.Context())
		context.AfterFunc(alive, cancel)
		return next.Do(r.WithContext(ctx))
	})
	go func() {
		err := a.run(alive, options, func(body string, _ int) error {
			return cmp.Or(handle(body, kill), alive.Err()) // nothing is done after the death
		})
		if err != nil && alive.Err() == nil {
			a.Errorf("Run: %v", err)
		}
	}()
	select {
	case <-alive.Done():
		return true
	case <-time.After(d):
		return false
	}
}

var (
	errBusy     = classify.Transient(errors.New("busy"))
	errUnwanted = classify.Permanent(errors.New("not wanted"))
)

// failing has the runs of which bad is true fail with err.
func failing(err error, bad func(body string, run int) bool) func(string, int) error {
	return func(body string, run int) error {
		if bad(body, run) {
			return err
		}
		return nil
	}
}

// eighth demands that the eighth run of each message that begins so has succeeded.
func (a *attack) eighth(prefix string) {
	a.Helper()
	for body, runs := range a.runs {
		if strings.HasPrefix(body, prefix) && (runs != 8 || a.done[body] == 0) {
			a.Errorf("%q had %d runs, done: %v; want its eighth to succeed", body, runs, a.done[body])
		}
	}
}

// ended demands that nothing is left in the queue, and so many dead letters are stored.
func (a *attack) ended(letters int) {
	a.Helper()
	if left, dead := len(a.server.Messages(a.topic)), len(a.server.Messages(a.dead)); left != 0 || dead != letters {
		a.Errorf("%d messages are left, and %d are dead letters, want none and %d", left, dead, letters)
	}
}

// Observe implements consumer.Observer.
func (a *attack) Observe(_ context.Context, e consumer.Event) {
	if e.Kind != consumer.EventDeadLettered {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.letters = append(a.letters, *e.DeadLetter)
}

// handled demands that messages were handled in time, in one run, and that nothing
// of them is in the dead-letter queue.
func (a *attack) handled(within time.Duration, bodies ...string) {
	a.Helper()
	harmed := 0
	defer func() { a.Attr("innocents_harmed", strconv.Itoa(harmed)) }()
	for _, body := range bodies {
		if after, ok := a.done[body]; !ok || after > within || a.runs[body] != 1 {
			harmed++
			a.Errorf("%q was handled: %t, after %v and %d runs; want one run within %v", body, ok, after, a.runs[body], within)
		}
	}
	for _, m := range a.server.Messages(a.dead) {
		if slices.Contains(bodies, m.Body) {
			harmed++
			a.Errorf("%q is a dead letter", m.Body)
		}
	}
	if q := a.server.Queue(a.topic); q.Expired+q.Moved > 0 {
		a.Errorf("SQS itself ended messages: %d by age, %d by receives", q.Expired, q.Moved)
	}
}

// read returns the dead letters as a reader of them gets them.
func (a *attack) read(n int) []brokers.Message {
	a.Helper()
	b, err := New(a.options)
	if err != nil {
		a.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(a.Context()))
	src, err := b.Open(a.Context(), brokers.Subscription{Topics: []string{a.dead}, InFlight: 50, MaxDelay: time.Hour, MaxAge: time.Hour, MaxAttempts: 1})
	if err != nil {
		a.Fatal(err)
	}
	var all []brokers.Message
	ctx, cancel := context.WithTimeout(a.Context(), 2*time.Minute)
	defer cancel()
	for len(all) < n {
		ds, err := src.Receive(ctx, 50)
		if err != nil {
			a.Fatalf("%d of %d dead letters are there: %v", len(all), n, err)
		}
		for _, d := range ds {
			all = append(all, d.Message)
		}
	}
	return all
}

// TestAttackFullSizeBody sends poison that leaves no room for the story of its
// death, and has its letters at once, beside good traffic.
func TestAttackFullSizeBody(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1 << 20, 256 << 10} {
		for _, topic := range []string{"jobs", "jobs.fifo"} {
			t.Run(fmt.Sprintf("%s, %d", topic, limit), func(t *testing.T) {
				t.Parallel()
				under(t, topic, Options{}, func(a *attack) {
					a.limited(limit)
					a.attackWithFullSize(limit)
				})
			})
		}
	}
}

func (a *attack) attackWithFullSize(limit int) {
	less := []int{0, 1, 17, 18, 19, 20, 40, 60, 100, 140, 300, 600, 1000}
	want := make(map[string]int)
	for i, n := range less {
		name := fmt.Sprintf("poison %02d ", i)
		body := name + strings.Repeat("x", limit-n-len(name))
		var attributes map[string]string
		if i%3 == 1 { // some of it as an attribute
			attributes = map[string]string{"a": "123456789"}
			body = body[:len(body)-len("aString123456789")]
		}
		want[name] = len(body)
		a.send(fmt.Sprint(i), body, attributes)
		a.send("good", "good "+fmt.Sprint(i), nil)
	}
	// Five that are poison without a good one between them are put aside for an hour.
	a.work(2*time.Hour, failing(errUnwanted, func(body string, _ int) bool { return strings.HasPrefix(body, "poison") }))
	a.handled(10*time.Second, fill("good %d", len(less))...)
	a.ended(len(less))
	told := 0
	for _, m := range a.read(len(less)) {
		name := string(m.Body[:10])
		if size := len(m.Body); want[name] != size {
			a.Errorf("%q is a dead letter of %d bytes, want %d", name, size, want[name])
		}
		delete(want, name)
		entry, err := dlq.Decode(m)
		switch {
		case err == nil && entry.Reason == "poison":
			told++
		case err == nil:
			a.Errorf("%q reads as %v, reason %q; want the reason, or no letter of redrive as one that SQS moved", name, err, entry.Reason)
		}
	}
	if len(want) > 0 || told < 3 || len(a.letters) != len(less) {
		a.Errorf("not dead-lettered: %v; %d tell why, want those with room for it; the worker told of %d, want %d",
			slices.Collect(maps.Keys(want)), told, len(a.letters), len(less))
	}
}

// TestAttackFullSizeRetry has messages fail that are too large for a copy, so that
// they wait in place, and come through in the end.
func TestAttackFullSizeRetry(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]Options{"defaults": {}, "Copies": {Copies: true}, "Secret": {Secret: secret}} {
		t.Run(name, func(t *testing.T) {
			under(t, "jobs", options, func(a *attack) {
				limit := 256 << 10
				a.limited(limit)
				for i, less := range []int{0, 100, 200} {
					body := fmt.Sprintf("large %14d", i)
					a.send("", body+strings.Repeat("x", limit-less-len(body)), nil)
				}
				a.send("", "good", nil)
				a.work(2*time.Hour, failing(errBusy, func(body string, run int) bool { return strings.HasPrefix(body, "large") && run < 8 }))
				a.handled(time.Second, "good")
				a.eighth("large")
				a.ended(0)
			})
		})
	}
}

// TestAttackSwollenEnvelope sends what grows when it is sent again: attributes that
// would go into the envelope, and spellings that redrive would not choose.
func TestAttackSwollenEnvelope(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	open, end := `{"redrive":{"v":1,"body":"`, `"}}`
	flag := map[string]string{wire.Packed: `{"sqs":"envelope"}`}
	room := limit - len(wire.Packed) - len("String") - len(flag[wire.Packed])
	filled := func(before, unit, after string) string {
		n := (room - len(before) - len(after)) / len(unit)
		return before + strings.Repeat(unit, n) + after
	}
	for name, body := range map[string]string{
		"line feeds":      filled(open+`\u0000`, `\n`, end),
		"mixed":           filled(open+`\u0000`, `\nxxxxxxxxxxxxxx`, end),
		"controls":        filled(open, `\u0001`, end),
		"noncharacters":   filled(open, `\uffff`, end),
		"base64":          filled(open+"base64:", "////", end),
		"quotes":          filled(open+`\u0000`, `\"`, end),
		"repeated names":  filled(`{"redrive":{"v":1,"headers":[["a","1"],["a","`, `x`, `"]],"body":"\u0000"}}`),
		"headers of ours": filled(`{"redrive":{"v":1,"headers":[["redrive-error-stack","`, `\u0001`, `"]],"body":"\u0000"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			under(t, "jobs", Options{}, func(a *attack) {
				a.setUp()
				a.send("", body, flag)
				a.send("", "good", nil)
				a.work(time.Minute, failing(errUnwanted, func(body string, _ int) bool { return body != "good" }))
				a.handled(time.Second*2, "good")
				a.ended(1)
			})
		})
	}
	t.Run("a binary attribute", func(t *testing.T) {
		under(t, "jobs", Options{}, func(a *attack) {
			a.setUp()
			body := `{"redrive":{"v":1,"headers":[["a","1"],["a","2"]],"body":"x"}}`
			a.send("", body, map[string]string{wire.Packed: flag[wire.Packed], "b": strings.Repeat("\xff", room-len(body)-len("bBinary"))})
			a.work(time.Minute, func(string, int) error { return errUnwanted })
			letters := a.server.Messages(a.dead)
			if len(letters) != 1 || letters[0].Body != "x" || strings.Contains(letters[0].Attributes[wire.Packed], "stub") {
				a.Errorf("dead letters %+v, want the body alone, and no stub", letters)
			}
		})
	})
}

// newer sends envelopes that no worker can open.
func (a *attack) newer(group string, n int) {
	a.Helper()
	for range n {
		a.send(group, newerEnvelope, map[string]string{wire.Packed: newerNote(a.topic)})
	}
}

// TestAttackNewerEnvelope has no message wait for one that cannot be read, and the
// unreadable one become a dead letter.
func TestAttackNewerEnvelope(t *testing.T) {
	t.Parallel()
	handle := func(string, int) error { return nil }
	for _, tt := range []struct {
		name, topic   string
		policies      []bool
		before, apart int // hostile messages: of the group of the victim, and of others
		within        time.Duration
	}{
		{"one before", "jobs.fifo", []bool{true, false}, 1, 0, 10 * time.Second},
		{"three before", "jobs.fifo", []bool{true, false}, 3, 0, 10 * time.Second},
		{"one in another group", "jobs.fifo", []bool{true, false}, 0, 1, time.Second},
		{"1,000 in other groups", "jobs.fifo", []bool{true, false}, 0, 1000, time.Minute},
		{"1,000 without groups", "jobs", []bool{true}, 1000, 0, 10 * time.Second},
	} {
		for _, policy := range tt.policies {
			t.Run(fmt.Sprintf("%s, policy %t", tt.name, policy), func(t *testing.T) {
				under(t, tt.topic, Options{}, func(a *attack) {
					if !policy {
						a.create(a.topic, map[string]string{nameRetention: "345600"})
					}
					a.setUp()
					a.newer("victims", tt.before)
					for i := range tt.apart {
						a.newer(fmt.Sprintf("g%d", i%100), 1)
					}
					victims := fill("victim %d", 3)
					for _, victim := range victims {
						a.send("victims", victim, nil)
					}
					a.work(5*time.Minute, handle)
					a.handled(tt.within, victims...)
					a.unreadable(tt.before + tt.apart)
				})
			})
		}
	}
	t.Run("without the note", func(t *testing.T) {
		under(t, "jobs.fifo", Options{}, func(a *attack) {
			a.setUp()
			a.send("g", `{"redrive":{"v":2}}`, map[string]string{wire.Packed: `{"sqs":"envelope"}`})
			a.send("g", "victim", nil)
			a.work(time.Minute, handle)
			a.handled(time.Second, "victim", `{"redrive":{"v":2}}`)
		})
	})
}

// unreadable demands dead letters that say so, without a run, and nothing left.
func (a *attack) unreadable(n int) {
	a.Helper()
	if runs := a.runs[newerEnvelope]; runs != 0 || len(a.letters) != n || len(a.server.Messages(a.dead)) != n {
		a.Errorf("%d runs, %d dead letters of which the worker tells %d; want none and %d", runs, len(a.server.Messages(a.dead)), len(a.letters), n)
	}
	for _, entry := range a.letters {
		if entry.Reason != "unreadable" || entry.Meta.Attempt != 0 || !strings.Contains(entry.ErrorText, "newer version") {
			a.Fatalf("a dead letter has the reason %q after %d attempts: %s", entry.Reason, entry.Meta.Attempt, entry.ErrorText)
		}
	}
	for _, m := range a.server.Messages(a.topic) {
		a.Errorf("%.40q is left after %d receives", m.Body, m.Receives)
	}
}

// TestAttackForgedProgress claims progress that no worker has noted. It harms
// nobody but itself; where it is read at all: not on a FIFO queue, and not
// with a secret.
func TestAttackForgedProgress(t *testing.T) {
	t.Parallel()
	future := fmt.Sprint(time.Now().AddDate(5, 0, 0).UnixMilli())
	for name, tt := range map[string]struct {
		topic    string
		options  Options
		believed bool
	}{
		"no secret": {"jobs", Options{}, true},
		"secret":    {"jobs", Options{Secret: secret}, false},
		"fifo":      {"jobs.fifo", Options{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			under(t, tt.topic, tt.options, func(a *attack) {
				a.setUp()
				forge := func(body, notes string) {
					a.send("g", body, map[string]string{wire.Packed: fmt.Sprintf(`{"topic":%q,%s}`, a.topic, notes)})
				}
				forge("spent", `"attempt":"9999"`)
				forge("late", `"attempt":"1","due-at":"`+future+`"`)
				forge("old", `"attempt":"1","first-failed-at":"1","failed-at":"1","history":"1,1,poison,,1"`)
				forge("dead", `"attempt":"9999","death-reason":"poison","death-error-message":"forged","death-attempt":"1"`)
				forge("signed", `"attempt":"9999","signature":"1.`+strings.Repeat("A", 43)+`"`)
				a.send("g", "good", nil)
				a.work(26*time.Hour, failing(errBusy, func(body string, run int) bool { return body == "old" && run < 5 }))
				if !tt.believed {
					a.handled(time.Minute, "spent", "late", "dead", "signed", "good")
					if len(a.letters) > 0 || a.runs["old"] != 5 {
						a.Errorf("%d dead letters, %d runs of the old one; want none, and five", len(a.letters), a.runs["old"])
					}
					return
				}
				a.handled(time.Second, "good")
				if after := a.done["late"]; after == 0 || after > 25*time.Hour {
					a.Errorf("the late one was handled after %v, want a day and the length of some copies at most", after)
				}
				if len(a.server.Messages(a.topic)) > 0 {
					a.Errorf("%d messages are left", len(a.server.Messages(a.topic)))
				}
			})
		})
	}
}

// secret is one for tests.
var secret = [][]byte{bytes.Repeat([]byte{1}, 32)}

// TestAttackNeighboursCount has messages wait behind some that cannot be read: all
// of these are given up together, so that no policy ends the others unheard.
func TestAttackNeighboursCount(t *testing.T) {
	t.Parallel()
	under(t, "jobs.fifo", Options{}, func(a *attack) {
		a.setUp()
		a.newer("g", 4)
		victims := fill("victim %d", 4)
		for _, victim := range victims {
			a.send("g", victim, nil)
		}
		most := 0
		a.work(2*time.Minute, func(body string, _ int) error {
			for _, m := range a.server.Messages(a.topic) {
				most = max(most, m.Receives)
			}
			return nil
		})
		a.handled(time.Minute, victims...)
		a.unreadable(4)
		if most > 3 {
			a.Errorf("a message behind unreadable ones was received %d times, want 3 at most, as those", most)
		}
	})
}

// TestAttackKiller has a message kill each worker a second after it began to run, beside
// good traffic. A worker that is killed loses other messages, too, and its polls go on at
// the server and take more. The good message that comes 0.8 s after the killer takes 0.3 s,
// and comes again as long after it each time. Only the killer ends as a dead letter,
// whether the slots of the workers are busy or free.
func TestAttackKiller(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]time.Duration{"busy": 400 * time.Millisecond, "free": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attackKiller(t, every)
		})
	}
}

// attackKiller has good messages come 0.4 and 0.8 s after the killer, then at an interval.
func attackKiller(t *testing.T, every time.Duration) {
	t.Helper()
	under(t, "jobs", Options{}, func(a *attack) {
		var draws atomic.Uint64
		a.random = func() float64 { // no draw is like one that is near it
			return math.Mod(float64(draws.Add(1))*math.Phi, 1)
		}
		a.setUp()
		handle := func(body string, kill func()) error {
			if body == "killer" {
				a.pass(time.Second)
				kill()
			}
			a.pass(300 * time.Millisecond)
			return nil
		}
		var good []string
		over := make(chan struct{})
		var traffic sync.WaitGroup
		traffic.Go(func() {
			for {
				wait := every
				if len(good) < 2 {
					wait = 400 * time.Millisecond
				}
				select {
				case <-over:
					return
				case <-time.After(wait):
					good = append(good, fmt.Sprint("good ", len(good)))
					a.send("", good[len(good)-1], nil)
				}
			}
		})
		a.send("", "killer", nil)
		kills := 0
		for a.killed(3*time.Minute, handle) {
			kills++
			a.pass(time.Second) // until the next worker runs
		}
		close(over)
		traffic.Wait()
		a.work(3*time.Minute, func(body string, _ int) error { return handle(body, func() {}) })

		if q := a.server.Queue(a.topic); q.Expired+q.Moved > 0 || len(a.server.Messages(a.dead)) != 1 {
			a.Errorf("SQS itself ended messages: %d by age, %d by receives; %d are dead", q.Expired, q.Moved, len(a.server.Messages(a.dead)))
		}
		if len(a.letters) != 1 || a.letters[0].Reason != "crash-loop" || string(a.letters[0].Message.Body) != "killer" || kills != 22 {
			a.Errorf("after %d deaths the dead letters are %+v, want the killer alone after 22", kills, a.letters)
		}
		for _, body := range good {
			if a.done[body] == 0 {
				a.Errorf("%q is not done after %d runs", body, a.runs[body])
			}
		}
	})
}
