package service_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service"
)

// TestServiceOnSQLite is the way of two tasks through all parts, in real time: one
// fails three times and succeeds, the other becomes a dead letter, and comes back.
func TestServiceOnSQLite(t *testing.T) {
	ctx := t.Context()
	store, err := service.Open(ctx, filepath.Join(t.TempDir(), "tasks.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var mu sync.Mutex
	calls := map[string]int{}
	mended := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		calls[key]++
		switch {
		case string(body) != "hello "+key:
			w.WriteHeader(http.StatusUnprocessableEntity)
		case key == "flaky" && calls[key] <= 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case key == "bad" && !mended:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	p, err := store.PutPolicy(ctx, service.Policy{Tenant: "shop", ID: "quick", InitialDelayMs: 5}.WithDefaults())
	if err != nil {
		t.Fatal(err)
	}
	guard, err := service.NewGuard(service.Targets{Networks: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	buried := make(chan service.Task, 10)
	s, err := service.New(service.Config{Store: store, Guard: guard, Metrics: service.NewMetrics(), Bury: func(_ context.Context, task service.Task) error {
		buried <- task
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(running) }()
	defer func() { stop(); <-ended }()
	create := func(id, key string) {
		t.Helper()
		now := time.Now()
		task, created, err := store.Create(ctx, service.Task{
			ID: id, Tenant: "shop", IdempotencyKey: key, TargetURL: server.URL, Method: http.MethodPost, Body: []byte("hello " + key),
			PolicyID: p.ID, PolicyVersion: p.Version, CreatedAt: now, NextAttemptAt: now, VisibilityTimeout: time.Minute,
		})
		if err != nil || !created {
			t.Fatal(created, err)
		}
		if err := s.Scheduled(ctx, service.Due{Row: task.Row, Tenant: task.Tenant, At: task.NextAttemptAt}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(id string) service.Task {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
			task, err := store.Task(ctx, "shop", id)
			if err != nil {
				t.Fatal(err)
			}
			if task.Status == service.Succeeded {
				return task
			}
			if time.Now().After(end) {
				t.Fatalf("it has not succeeded within a minute: %+v", task)
			}
		}
	}
	create("11111111-1111-4111-8111-111111111111", "flaky")
	create("22222222-2222-4222-8222-222222222222", "bad")
	if task := await("11111111-1111-4111-8111-111111111111"); task.AttemptNumber != 4 || task.LastStatus != 200 || task.LastError != "" {
		t.Errorf("%+v", task)
	}
	log, err := store.Attempts(ctx, "shop", "11111111-1111-4111-8111-111111111111", 0, 10)
	if err != nil || len(log) != 4 || log[0].Number != 1 || log[0].ResponseStatus != 503 || log[3].ResponseStatus != 200 {
		t.Errorf("the log is %+v, %v", log, err)
	}
	letter := <-buried
	if letter.IdempotencyKey != "bad" || !strings.HasPrefix(letter.LastError, "poison: ") || letter.AttemptNumber != 1 {
		t.Errorf("the letter is %+v", letter)
	}
	mu.Lock()
	mended = true
	mu.Unlock()
	back, err := store.Revive(ctx, "shop", letter.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Scheduled(ctx, service.Due{Row: back.Row, Tenant: back.Tenant, At: back.NextAttemptAt}); err != nil {
		t.Fatal(err)
	}
	await(letter.ID)
	log, err = store.Attempts(ctx, "shop", letter.ID, 0, 10)
	if err != nil || len(log) != 2 || log[1].Number != 2 {
		t.Errorf("the log is %+v, %v", log, err)
	}
	if len(buried) > 0 {
		t.Error("there is another letter")
	}
}
