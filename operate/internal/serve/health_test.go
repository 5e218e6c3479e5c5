//go:build !race

package serve_test

import (
	"context"
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

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// TestAttackHealth lets 64 callers without a token request /healthz as fast as
// they can. The letters in the store name 20,000 topics. /healthz and /metrics
// must answer every request, and a scrape waits for its store 5 s at most: with the race
// detector that would measure the detector.
func TestAttackHealth(t *testing.T) {
	c, err := config.Parse("redrive.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	letters, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	var batch []store.Collected
	for n := range 20_000 {
		e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprint(n), Topic: fmt.Sprint("topic-", n)}, Reason: "poison", DeadAt: time.Now()}
		batch = append(batch, store.Collected{Broker: "shop", Source: "orders-dead", Format: "redrive", Raw: e.Encode(0), Entry: e})
	}
	if _, err := letters.Collect(t.Context(), time.Now(), batch); err != nil {
		t.Fatal(err)
	}
	s := &serve.Server{Config: c, Store: letters, Logger: slog.New(slog.DiscardHandler)}
	server := httptest.NewServer(s.Front("the token of metrics").Handler())
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	ask := func(ctx context.Context, path string) (int, string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		if err != nil {
			return 0, "", err
		}
		r.Header.Set("Authorization", "Bearer the token of metrics")
		answer, err := client.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body), err
	}
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range 64 {
		asking.Go(func() {
			for ctx.Err() == nil {
				if code, body, err := ask(ctx, "/healthz"); code != http.StatusOK && ctx.Err() == nil {
					t.Errorf("/healthz is answered with %d %s, %v", code, body, err)
					return
				}
			}
		})
	}
	for range 5 {
		if code, body, err := ask(t.Context(), "/metrics"); code != http.StatusOK || !strings.Contains(body, "redrive_store_up 1\n") {
			t.Errorf("/metrics is answered with %d %s, %v", code, body, err)
		}
	}
	stop()
	asking.Wait()
}
