package spans

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/tracing"
)

var _ service.Tracer = (*tracing.Tracer)(nil)

// house is a retry service with its API, and a target that it calls.
type house struct {
	*testing.T
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	store    *service.Store
	api      string
	target   string
	log      lines

	mu      sync.Mutex
	answers []int // of the target, one after the other; then 200
	got     []http.Header
}

// lines is a log that may be written to at the same time.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newHouse starts a service. It is traced if it has a Tracer.
func newHouse(t *testing.T, traced bool, answers ...int) *house {
	h := &house{T: t, spans: tracetest.NewInMemoryExporter(), answers: answers}
	h.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(h.spans))
	store, err := service.Open(t.Context(), filepath.Join(t.TempDir(), "tasks.db"))
	h.must(err)
	h.store = store
	t.Cleanup(func() { h.must(store.Close()) })
	target := httptest.NewServer(h)
	t.Cleanup(target.Close)
	h.target = target.URL

	guard, err := service.NewGuard(service.Targets{Networks: []string{"127.0.0.0/8"}})
	h.must(err)
	logger := slog.New(tracing.LogHandler(slog.NewTextHandler(&h.log, nil)))
	cfg := service.Config{Store: store, Guard: guard, Logger: logger}
	if traced {
		cfg.Tracer = tracing.New(h.provider)
	}
	runner, err := service.New(cfg)
	h.must(err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); runner.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	front := httptest.NewServer((&service.API{Store: store, Scheduled: runner.Scheduled, Logger: logger}).Handler())
	t.Cleanup(front.Close)
	h.api = front.URL
	h.send("POST", "/retry-policies", nil, `{"policyId": "quick", "backoff": "FIXED", "maxAttempts": 3, "initialDelayMs": 20, "jitterType": "NONE"}`)
	return h
}

func (h *house) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// ServeHTTP is the target.
func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, r.Header)
	status := http.StatusOK
	if len(h.answers) > 0 {
		status, h.answers = h.answers[0], h.answers[1:]
	}
	if status >= 300 && status < 400 {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(status)
}

// send calls the API and returns what it answers.
func (h *house) send(method, path string, header http.Header, body string) (doc map[string]any) {
	h.Helper()
	req, err := http.NewRequestWithContext(h.Context(), method, h.api+path, strings.NewReader(body))
	h.must(err)
	req.Header = http.Header{"Content-Type": {"application/json"}}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	h.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	h.must(err)
	if resp.StatusCode >= 300 {
		h.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
	}
	if len(text) > 0 {
		h.must(json.Unmarshal(text, &doc))
	}
	return doc
}

// traced is the headers of a caller with a span of its own.
func (h *house) traced() http.Header {
	ctx, span := h.provider.Tracer("caller").Start(h.Context(), "order", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	header := http.Header{}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	return header
}

// create creates a task, and waits for its end.
func (h *house) create(header http.Header, status service.Status, more string) (id string) {
	h.Helper()
	target := h.target + "/pay/4711?token=secret"
	doc := h.send("POST", "/retry-tasks", header, fmt.Sprintf(`{"targetUrl": %q, "idempotencyKey": "order-1", "policyId": "quick"%s}`, target, more))
	id, _ = doc["taskId"].(string)
	h.ends(id, status)
	return id
}

func (h *house) ends(id string, status service.Status) {
	h.Helper()
	for range 3000 {
		task, err := h.store.Task(h.Context(), service.DefaultTenant, id)
		h.must(err)
		if task.Status == status {
			return
		}
		time.Sleep(10 * time.Millisecond) // the store tells nobody of a change
	}
	h.Fatalf("task %s is not %s within 30 s", id, status)
}

// TestCalls compares the spans of calls with testdata/calls.txt.
func TestCalls(t *testing.T) {
	var trees strings.Builder
	for _, scene := range []struct {
		name    string
		answers []int
		play    func(h *house)
	}{
		{"success", nil, func(h *house) { h.create(h.traced(), service.Succeeded, "") }},
		{"no caller", []int{503}, func(h *house) { h.create(nil, service.Succeeded, "") }},
		{"retries", []int{503, 429}, func(h *house) { h.create(h.traced(), service.Succeeded, "") }},
		{"redirect", []int{302}, func(h *house) { h.create(h.traced(), service.Succeeded, `, "method": "GET"`) }},
		{"method of the caller's own", nil, func(h *house) { h.create(h.traced(), service.Succeeded, `, "method": "FROB"`) }},
		{"refused by the target", []int{422}, func(h *house) { h.create(h.traced(), service.Exhausted, "") }},
		{"dead, and back", []int{503, 422, 503}, func(h *house) {
			id := h.create(h.traced(), service.Exhausted, "")
			h.send("POST", "/retry-tasks/"+id+"/redrive", nil, "")
			h.ends(id, service.Succeeded)
		}},
		{"forbidden target", nil, func(h *house) {
			h.target = "http://192.0.2.1"
			h.create(h.traced(), service.Exhausted, "")
		}},
	} {
		t.Run(scene.name, func(t *testing.T) {
			h := newHouse(t, true, scene.answers...)
			scene.play(h)
			tree := treeOf(t, h.spans.GetSpans())
			fmt.Fprintf(&trees, "== %s\n%s\n", scene.name, tree)
			if strings.Contains(tree, "secret") || strings.Contains(tree, "4711") {
				t.Error("a span has the path or the query of the target")
			}
			h.passedOn()
		})
	}
	goldentest.File(t, "testdata/calls.txt", trees.String())
}

// TestForgedCaller creates tasks with a traceparent that nobody knows, and with what is
// none. It changes the trace and nothing else.
func TestForgedCaller(t *testing.T) {
	const forged = "00-4bf92f3577b34da6a3ce929d0e0e4736-" + outside + "-01"
	var trees strings.Builder
	for _, scene := range []struct {
		name   string
		header http.Header
		own    string // headers of the task
	}{
		{"forged", http.Header{"Traceparent": {forged}, "Tracestate": {"a=1"}}, ""},
		{"forged by the task", nil, fmt.Sprintf(`, "headers": {"traceparent": %q}`, forged)},
		{"malformed", http.Header{"Traceparent": {"00-" + strings.Repeat("é", 30)}}, ""},
		{"malformed by the task", nil, `, "headers": {"traceparent": "not one", "tracestate": "a=1"}`},
		{"zero", http.Header{"Traceparent": {"00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01"}}, ""},
		{"two", http.Header{"Traceparent": {forged, forged}}, ""},
	} {
		t.Run(scene.name, func(t *testing.T) {
			h := newHouse(t, true, 503)
			h.create(scene.header, service.Succeeded, scene.own)
			fmt.Fprintf(&trees, "== %s\n%s\n", scene.name, treeOf(t, h.spans.GetSpans()))
			h.passedOn()
			h.mu.Lock()
			defer h.mu.Unlock()
			if state := h.got[0].Get("Tracestate"); (state != "") != (scene.name == "forged") {
				t.Errorf("the call has the tracestate %q", state)
			}
		})
	}
	goldentest.File(t, "testdata/forged.txt", trees.String())
}

// TestLogOfCalls demands the IDs of the span in a line about a call that failed; without
// a Tracer, that of the caller's trace.
func TestLogOfCalls(t *testing.T) {
	for _, traced := range []bool{true, false} {
		h := newHouse(t, traced, 422)
		header := h.traced()
		h.create(header, service.Exhausted, "")
		want := "trace_id=" + strings.Split(header.Get("Traceparent"), "-")[1]
		if traced {
			want += " span_id="
		}
		_, line, _ := strings.Cut(h.log.String(), "a call failed")
		if strings.Count(line, want) != 1 || strings.Contains(line, "span_id=") != traced {
			t.Errorf("traced: %v: the log is %s\nwant %s", traced, line, want)
		}
	}
}

// passedOn fails the test unless each call had the context of a span.
func (h *house) passedOn() {
	h.Helper()
	known := map[string]bool{}
	for _, span := range h.spans.GetSpans() {
		known[span.SpanContext.SpanID().String()] = span.SpanKind == trace.SpanKindClient
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, header := range h.got {
		if parts := strings.Split(header.Get("Traceparent"), "-"); len(parts) != 4 || !known[parts[2]] {
			h.Errorf("call %d has the traceparent %q, which is that of no call", n+1, header.Get("Traceparent"))
		}
	}
}
