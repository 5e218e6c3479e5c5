package redisbudget

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/internal/pace"
)

func TestParse(t *testing.T) {
	fine := func() []any {
		return []any{int64(3), int64(2), "4.5", "110", "50", "106", "11", "2000.5", "60"}
	}
	a, err := parse(fine(), 2)
	want := answer{seat: 3, granted: 2, pool: pool{tokens: 4.5, capacity: 110, limit: 50, line: pace.Line{Ceiling: 106, Rate: 11, Waiting: 2000.5, Age: time.Minute}}}
	if err != nil || a != want {
		t.Errorf("parse = %+v, %v, want %+v", a, err, want)
	}
	for name, change := range map[string]func([]any) any{
		"not a list":     func([]any) any { return "OK" },
		"nothing":        func([]any) any { return nil },
		"short":          func(r []any) any { return r[:8] },
		"text":           func(r []any) any { r[3] = "many"; return r },
		"not a number":   func(r []any) any { r[3] = "nan"; return r },
		"endless":        func(r []any) any { r[3] = "inf"; return r },
		"more granted":   func(r []any) any { r[1] = int64(3); return r },
		"taken away":     func(r []any) any { r[1] = int64(-1); return r },
		"no rate":        func(r []any) any { r[6] = "0"; return r },
		"negative line":  func(r []any) any { r[7] = "-1"; return r },
		"since tomorrow": func(r []any) any { r[8] = "-1"; return r },
	} {
		if _, err := parse(change(fine()), 2); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func FuzzParse(f *testing.F) {
	f.Add("3 2 4.5 110 50 106 11 2000.5 60")
	f.Add("-1 0 -1e9 1e-300 1e-300 1e-300 1e-300 1e15 1e15")
	b, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{Name: "fuzz", Budget: budget.Mesh(), Workers: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var reply []any
		for word := range strings.FieldsSeq(text) {
			reply = append(reply, word)
		}
		a, err := parse(reply, 5)
		if err != nil {
			return
		}
		if a.granted < 0 || a.granted > 5 {
			t.Fatalf("%d granted", a.granted)
		}
		b.mu.Lock()
		b.finish(&call{now: noon}, a, nil, 0, "")
		b.fleet, b.nextTry, b.lastCall, b.leased = true, noon.Add(time.Hour), noon, 0
		b.scarceTo = noon.Add(time.Second)
		b.mu.Unlock()
		if wait, ok := b.Withdraw(noon, time.Hour, 0.5); ok || wait <= 0 || wait > pace.Longest {
			t.Fatalf("Withdraw = %v, %v after %q", wait, ok, text)
		}
	})
}
