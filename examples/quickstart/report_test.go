package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

var update = flag.Bool("update", false, "write what tests compare with anew")

func TestBalance(t *testing.T) {
	moved := func(orders ...string) map[string]charge {
		charges := map[string]charge{}
		for i, id := range orders {
			charges[strings.Repeat("k", i+1)] = charge{order: id}
		}
		return charges
	}
	one := map[string]int{"line-1": 1}
	tests := []struct {
		name         string
		input        string
		charges      map[string]charge
		dead, queued map[string]int
		want         report
	}{
		{"charged", `{"id":"a"}`, moved("a"), nil, nil, report{Handled: 1}},
		{"charged twice", `{"id":"a"}`, moved("a", "a"), nil, nil, report{Handled: 1, Duplicates: 1}},
		{"read twice, charged twice", "{\"id\":\"a\"}\n{\"id\":\"a\"}", moved("a", "a"), nil, nil, report{Handled: 2}},
		{"read twice, charged once", "{\"id\":\"a\"}\n{\"id\":\"a\"}", moved("a"), nil, nil, report{Handled: 1, Lost: 1, LostLines: []int{2}}},
		{"lost", `{"id":"a"}`, nil, nil, nil, report{Lost: 1, LostLines: []int{1}}},
		{"declined is not charged", `{"id":"a"}`, map[string]charge{"k": {"a", "no money"}}, nil, nil, report{Lost: 1, LostLines: []int{1}}},
		{"broken and gone", `{"id":`, nil, nil, nil, report{Lost: 1, LostLines: []int{1}}},
		{"dead", `{"id":`, nil, one, nil, report{DeadLettered: 1}},
		{"dead twice", `{"id":`, nil, map[string]int{"line-1": 2}, nil, report{DeadLettered: 1, Duplicates: 1}},
		{"dead and charged", `{"id":"a"}`, moved("a"), one, nil, report{DeadLettered: 1, ChargedDead: 1}},
		{"queued", `{"id":"a"}`, nil, nil, one, report{Unfinished: 1}},
		{"charged and still queued", `{"id":"a"}`, moved("a"), nil, one, report{Handled: 1}},
		{"charged though never read", `{"id":"a"}`, moved("a", "z"), nil, nil, report{Handled: 1, Duplicates: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got report
			got.balance(parseLines(t, tt.input), tt.charges, tt.dead, tt.queued)
			if got.Handled != tt.want.Handled || got.DeadLettered != tt.want.DeadLettered || got.Unfinished != tt.want.Unfinished ||
				got.Lost != tt.want.Lost || got.Duplicates != tt.want.Duplicates || got.ChargedDead != tt.want.ChargedDead ||
				!slices.Equal(got.LostLines, tt.want.LostLines) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLedgerSeesEarlyRuns(t *testing.T) {
	l := newLedger()
	now := time.Now()
	l.ran("a", time.Time{}, now) // not a retry
	l.ran("a", now, now)
	l.ran("a", now.Add(time.Nanosecond), now)
	if l.early != 1 || l.runs["a"] != 3 {
		t.Errorf("early %d of %d runs, want 1 of 3", l.early, l.runs["a"])
	}
}

// openTestBank returns a bank that is in one mood all day.
func openTestBank(t *testing.T, m mood) *bank {
	t.Helper()
	listener, err := bankPort()
	if err != nil {
		t.Fatal(err)
	}
	b := openBank(day{second: 20 * time.Millisecond, patience: 50 * time.Millisecond, scenes: []scene{{0, m}}}, listener)
	t.Cleanup(b.close)
	return b
}

// TestBankMoods asks twice for the same charge, in each mood.
func TestBankMoods(t *testing.T) {
	t.Parallel()
	for m, want := range map[mood]tally{
		healthy:   {Requests: 2, Charged: 1, Repeated: 1},
		outage:    {Requests: 2, Unavailable: 2},
		limiting:  {Requests: 2, Limited: 2},
		resetting: {Requests: 2, Reset: 2, AnswersLost: 1},
		slow:      {Requests: 2, Slow: 2, AnswersLost: 1},
	} {
		b := openTestBank(t, m)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // or it would repeat what was reset
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/charges", strings.NewReader(`{"id":"o","cents":5}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Idempotency-Key", "k")
			start := time.Now()
			resp, err := client.Do(req)
			if reset := errors.Is(err, syscall.ECONNRESET); reset != (m == resetting) {
				t.Errorf("in the mood %v: %v, want a reset %v", m, err, m == resetting)
			}
			if took := time.Since(start); m == slow && took < b.day.patience {
				t.Errorf("slow, and answered in %v, within the client's patience of %v", took, b.day.patience)
			}
			if err == nil {
				resp.Body.Close()
			}
		}
		b.mu.Lock()
		if b.count != want {
			t.Errorf("in the mood %v the tally is %+v, want %+v", m, b.count, want)
		}
		b.mu.Unlock()
	}
}

// TestTapSeesImpatience sends three requests at once to a server that asks to
// wait.
func TestTapSeesImpatience(t *testing.T) {
	t.Parallel()
	b := openTestBank(t, limiting)
	l := newLedger()
	client := &http.Client{Transport: l.tap(http.DefaultTransport)}
	for n, key := range []string{"k", "k", "other"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/charges", strings.NewReader(`{"cents":5}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := retryAfter(resp.Header); n < 2 && got != time.Second { // the third is answered
			t.Errorf("answer %d asks to wait %v by %q, want 1 s", n+1, got, resp.Header.Get("Retry-After"))
		}
		if _, err := strconv.Atoi(resp.Header.Get("Retry-After")); n < 2 && (err == nil) != (n == 1) {
			t.Errorf("answer %d asks by %q, want a date first, and then seconds", n+1, resp.Header.Get("Retry-After"))
		}
	}
	if l.early != 1 {
		t.Errorf("%d requests were too early, want the second one alone", l.early)
	}
}

func TestGroupedKeepsWhatIsNoDeadLetter(t *testing.T) {
	groups := grouped([]brokers.Message{{ID: "line-1", Body: []byte("x")}}, parseLines(t, "x"))
	if len(groups) != 1 || groups[0].Reason != "unknown" || groups[0].Example.Line != 1 || !strings.Contains(groups[0].Error, "is not a dead letter of redrive") {
		t.Errorf("groups = %+v, want one that says that its story is missing", groups)
	}
}

// TestReportText compares the report of a small day with testdata.
func TestReportText(t *testing.T) {
	at := time.Date(2026, 11, 21, 14, 3, 7, 412e6, time.Local)
	r := report{
		OK: true, Read: 1234, Handled: 1230, DeadLettered: 4, Retried: 34, Seconds: 23.04,
		Attempts: map[int]int{0: 1, 1: 1199, 2: 30, 11: 4},
		Groups: []group{
			{"00000000000000aa", 3, "poison", "poison", "POST http://127.0.0.1:8080/charges: http status 402 Payment Required: insufficient funds",
				example{12, "ord-0012", `{"id":"ord-0012"}`, 2, at, at.Add(1500 * time.Millisecond)}},
			{"00000000000000bb", 1, "oversize", "", "the body of 70000 bytes is over the limit of 65536 bytes",
				example{Line: 99, Body: strings.Repeat("x", 100)}},
		},
		Server: tally{Requests: 1300, Charged: 1229, Repeated: 1, Declined: 3, Unavailable: 66, Reset: 1, AnswersLost: 1},
	}
	golden(t, "report.txt", r.text())
	r.OK, r.Lost, r.LostLines = false, 1, []int{7}
	if want := "BROKEN: 1 order lost in 23.0 s: lines [7]"; r.headline() != want {
		t.Errorf("headline = %q, want %q", r.headline(), want)
	}
	r.Lost, r.Duplicates = 0, 1
	if !strings.HasPrefix(r.headline(), "BROKEN: no order is lost") {
		t.Errorf("headline = %q", r.headline())
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s (rewrite it with -update):\n%s", file, got)
	}
}

// TestNextSteps keeps the report from naming files that do not exist.
func TestNextSteps(t *testing.T) {
	for line := range strings.Lines(nextSteps) {
		for word := range strings.FieldsSeq(line) {
			word = strings.TrimPrefix(word, "./")
			if strings.HasPrefix(word, "examples/") || strings.HasPrefix(word, "docs/") || strings.HasSuffix(word, ".md") {
				if _, err := os.Stat(filepath.Join("..", "..", word)); err != nil {
					t.Errorf("the report sends the reader to %s: %v", word, err)
				}
			}
		}
	}
}

func TestView(t *testing.T) {
	v := newView(&bytes.Buffer{}, false, newLimiter())
	now := time.Now()
	observe := func(id string, e consumer.Event) {
		e.Message = &brokers.Message{ID: id}
		v.Observe(context.Background(), e)
	}
	fail := func(id string, due time.Time) {
		observe(id, consumer.Event{Kind: consumer.EventFailed, Err: errors.New("no"), Meta: brokers.Meta{DueAt: due},
			Decision: retry.Decision{Retry: true}})
	}
	v.Observe(context.Background(), consumer.Event{Kind: consumer.EventError}) // of no message
	observe("a", consumer.Event{Kind: consumer.EventSucceeded})
	observe("b", consumer.Event{Kind: consumer.EventDeadLettered})
	fail("c", now.Add(time.Hour))
	observe("c", consumer.Event{Kind: consumer.EventHeld})
	fail("d", now.Add(time.Minute))
	observe("d", consumer.Event{Kind: consumer.EventHeld})
	fail("e", now.Add(-time.Second)) // due, and waits for a slot
	observe("e", consumer.Event{Kind: consumer.EventHeld})
	fail("f", now.Add(time.Second))
	observe("f", consumer.Event{Kind: consumer.EventStarted})
	f := v.frame(2*time.Second, healthy, 10, 3)
	if f.handled != 1 || f.dead != 1 || f.retries != 4 || f.held != 2 || f.inBroker != 3 {
		t.Errorf("frame = %+v, want 1 handled, 1 dead, 4 retries, 2 held, 3 in the broker", f)
	}
	if f.nextDue <= 0 || f.nextDue > time.Minute {
		t.Errorf("next due in %v, want that of d, within a minute", f.nextDue)
	}
}

func newLimiter() *flow.Limiter { return flow.New(concurrency, func() float64 { return 0.5 }) }

// TestViewOfTheLimit reads what a frame says of the limit as it starts, as all
// runs fail, and as an order is put aside.
func TestViewOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter()
		var out bytes.Buffer
		v := newView(&out, false, limiter)
		says := func(want string) {
			t.Helper()
			if got := v.frame(0, healthy, 1000, 0).limit; got != want {
				t.Errorf("the view says %q, want %q", got, want)
			}
		}
		says("5 of 10")
		fail(limiter, 20)
		says("one in 1.0 s")
		for range 2 {
			v.Observe(t.Context(), consumer.Event{Kind: consumer.EventDeferred, Message: &brokers.Message{}, Err: errors.New("all is poison"), Decision: retry.Decision{Reason: "poison"}})
		}
		if want := "         orders are put aside: all is poison\n"; out.String() != want {
			t.Errorf("the view writes %q, want %q", &out, want)
		}
	})
}

// fail has so many runs of a second each fail.
func fail(l *flow.Limiter, n int) {
	now := time.Now()
	for who := range uint64(n) {
		l.Start(now)
		now = now.Add(time.Second)
		l.Done(now, flow.End{Began: now.Add(-time.Second), Who: who, Outcome: flow.Overload})
	}
}

// TestTranscript holds what the README shows of a run to what a run shows: lines
// of the view, numbers aside, and of the report that TestBadDay wants.
func TestTranscript(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, transcript, _ := strings.Cut(string(readme), "```text transcript\n")
	transcript, _, _ = strings.Cut(transcript, "```")
	if n := strings.Count(transcript, "\n"); n < 5 {
		t.Fatalf("the README shows %d lines of a run", n)
	}
	number := regexp.MustCompile(`\d([\d,.]*\d)?`)
	blank := func(line string) string { return number.ReplaceAllString(line, "0") }

	limiter := newLimiter()
	var out bytes.Buffer
	v := newView(&out, false, limiter)
	v.due["waits"] = time.Now().Add(time.Minute)
	fail(limiter, 20)
	v.show(v.frame(time.Second, outage, 1000, 1))
	r := report{OK: true, Read: 1000, Handled: 982, DeadLettered: 18, Attempts: map[int]int{1: 1000}}
	shown := strings.Split(blank(out.String()+r.headline()), "\n")
	reported := strings.Split(r.text(), "\n")
	for line := range strings.Lines(transcript) {
		line = strings.TrimSuffix(line, "\n")
		if !slices.Contains(reported, line) && !slices.ContainsFunc(shown, func(s string) bool { return strings.TrimSpace(s) == strings.TrimSpace(blank(line)) }) {
			t.Errorf("the README shows %q, which is neither in the report nor in\n%s", line, &out)
		}
	}
}

func TestFrame(t *testing.T) {
	f := frame{elapsed: 4200 * time.Millisecond, mood: outage, total: 1000, handled: 480, dead: 20, retries: 1234,
		held: 30, inBroker: 12, nextDue: 250 * time.Millisecond, rate: 85.4, limit: "one in 1.2 s"}
	empty := frame{total: 1, limit: "10 of 10"}
	golden(t, "line.txt", f.line()+"\n"+empty.line()+"\n")
	plain := func(_ int, s string) string { return s }
	lines := append(f.lines(plain), empty.lines(plain)...)
	golden(t, "frame.txt", strings.Join(lines, "\n")+"\n")
}

func TestShowRedrawsInPlace(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, true, newLimiter())
	v.show(frame{total: 2})
	first := out.String()
	v.show(frame{total: 2, handled: 1})
	if strings.Contains(first, "A\x1b[?7l") || !strings.Contains(out.String()[len(first):], "\x1b[9A") {
		t.Errorf("want the second frame, and only that, to begin 9 lines further up:\n%q", out.String())
	}
}

func TestNoColor(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	if newView(&bytes.Buffer{}, true, newLimiter()).color {
		t.Error("NO_COLOR is not honoured")
	}
}

func TestSmallThings(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
	if got := safe("a\x1b[31m\nb\u202ec€", 8); got != "a·[31m·b…" {
		t.Errorf("safe = %q", got)
	}
	if got := source("/some/\x1bwhere/my\nfile"); got != "my·file" {
		t.Errorf("source = %q", got)
	}
}
