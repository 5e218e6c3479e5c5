package proof

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/retries"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/redisschedule"
)

// The queue of what is due is a heap, or a sorted set of Redis.
var _ = []service.Schedule{(*service.Heap)(nil), (*redisschedule.Schedule)(nil)}

// office is a service of which every word is asked for.
type office struct {
	*testing.T
	address string
	broker  *memory.Broker // with dead letters
	target  string         // answers with the status of its path
	hang    chan struct{}  // until it is closed, the path /hang does

	mu   sync.Mutex
	seen map[string][]string // bodies, by idempotency key
}

func newOffice(t *testing.T) *office {
	o := &office{T: t, broker: memory.New(memory.Options{}), hang: make(chan struct{}), seen: map[string][]string{}}
	server := onFile(t)
	server.Letters = &retries.Letters{Broker: o.broker, Topic: "retry-tasks-dead", Origin: "retry-tasks", Worker: "words"}
	o.address = here(t, server)
	o.target = serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		o.mu.Lock()
		key := r.Header.Get("Idempotency-Key")
		o.seen[key] = append(o.seen[key], string(body))
		o.mu.Unlock()
		if status := 0; r.URL.Path == "/hang" {
			<-o.hang
		} else if _, err := fmt.Sscanf(r.URL.Path, "/%d", &status); err == nil {
			w.WriteHeader(status)
		}
	})
	return o
}

// calls are the bodies of those of a key.
func (o *office) calls(key string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[key]
}

type doc = map[string]any

// policy registers one that is "words" but for some fields.
func (o *office) policy(name string, change doc) (p doc) {
	o.Helper()
	body := doc{
		"policyId": name, "maxAttempts": 3, "initialDelayMs": 10, "multiplier": 2, "maxDelayMs": 1000,
		"totalBudgetMs": 2_500_000_000, "jitterType": "FULL", "retryableStatusCodes": []int{503},
	}
	for field, value := range change {
		body[field] = value
	}
	must(o.T, http.MethodPost, o.address+"/retry-policies", body, &p, http.StatusOK)
	return p
}

// task sends one whose key is the path and the policy, with some fields more.
func (o *office) task(path, policy string, more doc) (url string, t doc) {
	o.Helper()
	body := doc{"targetUrl": o.target + path, "policyId": policy, "idempotencyKey": path + policy, "headers": doc{"X-A": "1"}}
	for field, value := range more {
		body[field] = value
	}
	must(o.T, http.MethodPost, o.address+"/retry-tasks", body, &t, http.StatusAccepted)
	return o.address + "/retry-tasks/" + t["taskId"].(string), t
}

// becomes waits until a task is in a state, after so many attempts.
func (o *office) becomes(url, status string, attempts int) doc {
	o.Helper()
	return await(o.T, url, func(t doc) bool { return t["status"] == status && t["attemptNumber"] == float64(attempts) })
}

// has fails unless an object has fields whose JSON is so.
func (o *office) has(what string, object doc, fields map[string]string) {
	o.Helper()
	for field, pattern := range fields {
		text, err := json.Marshal(object[field])
		if err != nil || !regexp.MustCompile("^(?:"+pattern+")$").Match(text) {
			o.Errorf("%s: %s is %s, want %s", what, field, text, pattern)
		}
	}
}

const (
	uuids   = `"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"`
	instant = `1\d{12}` // in milliseconds
)

// TestWords goes through what a retry service is said to have, word by word.
func TestWords(t *testing.T) {
	o := newOffice(t)
	for _, word := range []struct {
		name  string
		holds func()
	}{
		{"RetryPolicy", func() {
			p := o.policy("words", nil)
			o.has("policy", p, map[string]string{
				"policyId": `"words"`, "maxAttempts": `3`, "initialDelayMs": `10`, "multiplier": `2`, "maxDelayMs": `1000`, "totalBudgetMs": `2500000000`,
				"jitterType": `"FULL"`, "retryableStatusCodes": `\[503\]`, "backoff": `"EXPONENTIAL"`, "visibilityTimeoutMs": `60000`,
			})
			if again := o.policy("words", nil); fmt.Sprint(again) != fmt.Sprint(p) {
				o.Errorf("the same policy again is %v", again)
			}
		}},
		{"RetryTask", func() {
			url, task := o.task("/200", "words", doc{"delayMs": 3_600_000, "method": "PUT"})
			want := map[string]string{
				"taskId": uuids, "idempotencyKey": `"/200words"`, "targetUrl": `"` + o.target + `/200"`, "method": `"PUT"`, "headers": `{"X-A":"1"}`, "policyId": `"words"`,
				"attemptNumber": `0`, "nextAttemptAt": instant, "createdAt": instant, "status": `"PENDING"`,
			}
			o.has("task", task, want)
			o.has("task", o.becomes(url, "PENDING", 0), want)
			must(o.T, http.MethodDelete, url, nil, nil, http.StatusOK)
			o.becomes(url, "CANCELLED", 0)
		}},
		{"AttemptLog", func() {
			url, task := o.task("/503", "words", nil)
			o.becomes(url, "EXHAUSTED", 3)
			var page, rest struct {
				Attempts   []doc
				NextCursor string
			}
			must(o.T, http.MethodGet, url+"/attempts?limit=2", nil, &page, http.StatusOK)
			must(o.T, http.MethodGet, url+"/attempts?limit=2&cursor="+page.NextCursor, nil, &rest, http.StatusOK)
			all := append(page.Attempts, rest.Attempts...)
			if len(page.Attempts) != 2 || len(all) != 3 || rest.NextCursor != "" {
				o.Fatalf("pages %v and %v", page, rest)
			}
			for n, a := range all {
				o.has("attempt", a, map[string]string{
					"taskId": fmt.Sprintf("%q", task["taskId"]), "attemptNumber": fmt.Sprint(n + 1), "startedAt": instant, "durationMs": `\d+`,
					"responseStatus": `503`, "errorMessage": `".*503.*"`,
				})
			}
		}},
		{"Idempotency-Key", func() {
			if calls := o.calls("/503words"); len(calls) != 3 {
				o.Errorf("%d calls have the key, want 3", len(calls))
			}
			var again doc
			body := doc{"targetUrl": o.target + "/503", "policyId": "words", "idempotencyKey": "/503words", "headers": doc{"X-A": "1"}}
			must(o.T, http.MethodPost, o.address+"/retry-tasks", body, &again, http.StatusOK)
			o.has("the same task", again, map[string]string{"status": `"EXHAUSTED"`})
		}},
		{"IN_FLIGHT, SUCCEEDED", func() {
			url, _ := o.task("/hang", "words", nil)
			o.becomes(url, "IN_FLIGHT", 0)
			close(o.hang)
			o.becomes(url, "SUCCEEDED", 1)
			url, _ = o.task("/204", "words", nil)
			o.becomes(url, "SUCCEEDED", 1)
		}},
		{"retryableStatusCodes", func() {
			for _, path := range []string{"/400", "/500"} {
				url, _ := o.task(path, "words", nil)
				o.becomes(url, "EXHAUSTED", 1)
			}
		}},
		{"backoff, jitterType", func() {
			const ms = 10_000_000
			for _, tt := range []struct {
				backoff, jitter string
				attempts        int
				initial         float64
				least, most     float64
			}{
				{"EXPONENTIAL", "FULL", 1, ms, 0, ms},
				{"EXPONENTIAL", "EQUAL", 1, ms, ms / 2, ms},
				{"EXPONENTIAL", "DECORRELATED", 1, ms, ms, 3 * ms},
				{"EXPONENTIAL", "NONE", 3, 5, 50_000, 50_000}, // after 5 and 500
				{"LINEAR", "NONE", 1, ms, ms, ms},
				{"FIXED", "NONE", 1, ms, ms, ms},
			} {
				name := tt.backoff + "-" + tt.jitter
				change := doc{"backoff": tt.backoff, "jitterType": tt.jitter, "initialDelayMs": tt.initial, "maxDelayMs": 5 * ms, "maxAttempts": 9, "multiplier": 100}
				if tt.backoff != "EXPONENTIAL" {
					change["multiplier"] = 0
				}
				o.policy(name, change)
				url, _ := o.task("/503", name, nil)
				task := o.becomes(url, "PENDING", tt.attempts)
				// Rounded up, and the decision is a moment after the attempt.
				if delay := task["nextAttemptAt"].(float64) - task["updatedAt"].(float64); delay < tt.least || delay > tt.most+1 {
					o.Errorf("%s: the delay is %v, want %v to %v", name, delay, tt.least, tt.most)
				}
			}
		}},
		{"totalBudgetMs", func() {
			o.policy("hasty", doc{"jitterType": "NONE", "initialDelayMs": 99_999, "maxDelayMs": 99_999, "totalBudgetMs": 100_000})
			slow := serve(o.T, func(w http.ResponseWriter, r *http.Request) {
				pause(r.Context(), 50*time.Millisecond)
				w.WriteHeader(503)
			})
			url, _ := o.task("/", "hasty", doc{"targetUrl": slow})
			o.has("the task", o.becomes(url, "EXHAUSTED", 1), map[string]string{"lastError": `"expired: .*"`})
		}},
		{"bodyRef", func() {
			body := strings.Repeat("large", 30_000)
			url, task := o.task("/200", "words", doc{"idempotencyKey": "large", "body": body})
			o.has("the task", task, map[string]string{"bodyRef": `"default/[0-9a-f]{64}"`})
			o.becomes(url, "SUCCEEDED", 1)
			if calls := o.calls("large"); len(calls) != 1 || calls[0] != body {
				o.Errorf("%d calls, with another body", len(calls))
			}
		}},
		{"dead letters", func() {
			letters := map[string]bool{}
			in(o.T, func() bool {
				for _, m := range o.broker.Messages("retry-tasks-dead") {
					e, err := dlq.Decode(m)
					letters[fmt.Sprint(e.Meta.IdempotencyKey, " ", e.Reason, " ", err)] = true
				}
				return letters["/503words exhausted <nil>"] && letters["/400words poison <nil>"]
			}, "the letters are", letters)
		}},
		{"metrics", func() {
			answer, err := http.Get(o.address + "/metrics")
			if err != nil {
				o.Fatal(err)
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			for _, line := range []string{`retry_attempts_total{outcome="retry",policy="words"} 2`, `retry_attempts_total{outcome="success",policy="words"} 3`, `retry_task_age_seconds_bucket{policy="words",le="1"}`} {
				if err != nil || !strings.Contains(string(text), line) {
					o.Errorf("%s is not there, error %v:\n%s", line, err, text)
				}
			}
		}},
	} {
		t.Run(word.name, func(t *testing.T) {
			o.T = t
			word.holds()
		})
	}
}
