package main

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// openTestBank returns a bank that is in one mood all day.
func openTestBank(t *testing.T, m mood) *bank {
	t.Helper()
	b, err := openBank(day{second: 20 * time.Millisecond, patience: 50 * time.Millisecond, scenes: []scene{{0, m}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// post asks for a charge on a connection of its own.
func post(t *testing.T, b *bank, key, body string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/charges", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return classify.FromResponse(resp)
}

// books returns what the bank has counted, and how many charges it knows.
func (b *bank) books() (tally, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count, len(b.charges)
}

func status(err error) int {
	if e, ok := errors.AsType[*classify.HTTPError](err); ok {
		return e.Status
	}
	return 0
}

func TestBankKeepsBooksByKey(t *testing.T) {
	t.Parallel()
	b := openTestBank(t, healthy)
	for _, key := range []string{"k1", "k1", "k2"} {
		if err := post(t, b, key, `{"id":"o","cents":5}`); err != nil {
			t.Fatalf("charge with key %s: %v", key, err)
		}
	}
	for range 2 {
		if err := post(t, b, "k3", `{"id":"p","cents":5,"card":"tok_declined_lost_card"}`); status(err) != http.StatusPaymentRequired || !strings.Contains(err.Error(), "lost card") {
			t.Errorf("declined card: %v, want a 402 that says why", err)
		}
	}
	for _, bad := range []struct{ key, body string }{{"k4", "no"}, {"", `{"id":"o","cents":5}`}, {"k5", `{"id":"o"}`}} {
		if err := post(t, b, bad.key, bad.body); status(err) != http.StatusUnprocessableEntity {
			t.Errorf("key %q, body %s: %v, want a 422", bad.key, bad.body, err)
		}
	}
	want := tally{Requests: 8, Charged: 2, Repeated: 1, Declined: 2, Rejected: 3}
	if got, _ := b.books(); got != want {
		t.Errorf("tally = %+v, want %+v", got, want)
	}
}

func TestBankOutage(t *testing.T) {
	t.Parallel()
	if err := post(t, openTestBank(t, outage), "k", `{"cents":5}`); status(err) != http.StatusServiceUnavailable || classify.Of(err).Class != classify.ClassTransient {
		t.Errorf("outage: %v, want a transient 503", err)
	}
}

func TestBankLimitsInBothForms(t *testing.T) {
	t.Parallel()
	b := openTestBank(t, limiting)
	for n := range 2 { // an odd request and an even one
		err := post(t, b, "k", `{"cents":5}`)
		if v := classify.Of(err); v.Class != classify.ClassThrottled || v.RetryAfter != time.Second {
			t.Errorf("request %d: %v, verdict %+v; want throttled with a hint of 1 s", n+1, err, v)
		}
	}
}

func TestBankResets(t *testing.T) {
	t.Parallel()
	b := openTestBank(t, resetting)
	for n := range 2 {
		if err := post(t, b, "k", `{"id":"o","cents":5}`); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("request %d: %v, want a connection reset", n+1, err)
		}
	}
	want := tally{Requests: 2, Reset: 2, AnswersLost: 1}
	if got, charges := b.books(); got != want || charges != 1 {
		t.Errorf("tally = %+v with %d charges, want %+v with 1", got, charges, want)
	}
}

func TestBankIsSlow(t *testing.T) {
	t.Parallel()
	b := openTestBank(t, slow)
	start := time.Now()
	if err := post(t, b, "k", `{"id":"o","cents":5}`); err != nil {
		t.Fatalf("a client with patience got %v", err)
	}
	if took := time.Since(start); took < b.day.patience {
		t.Errorf("answered after %v, want more than the client's timeout of %v", took, b.day.patience)
	}
	want := tally{Requests: 1, Slow: 1, AnswersLost: 1}
	if got, _ := b.books(); got != want {
		t.Errorf("tally = %+v, want %+v", got, want)
	}
}

func TestDay(t *testing.T) {
	d := badDay()
	seen := map[mood]bool{}
	for at := time.Duration(0); at < time.Minute; at += 100 * time.Millisecond {
		seen[d.mood(at)] = true
	}
	if len(seen) != len(moods) {
		t.Errorf("the day shows moods %v, want all %d", seen, len(moods))
	}
	if d.mood(30*time.Second) != healthy {
		t.Errorf("after 30 s the server is in a %v, want it healthy for the rest", d.mood(30*time.Second))
	}
}
