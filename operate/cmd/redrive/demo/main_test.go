package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/demo"
)

// TestWatched looks where the demonstration says that there is something to see.
func TestWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "redrive-demo")
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- demo.Run(ctx, demo.Options{
			Dir: dir, Bank: "127.0.0.1:0", Listen: "127.0.0.1:0", Watch: "127.0.0.1:0", Out: &out, Logger: slog.New(slog.DiscardHandler), Traces: traces,
			Ready: func(bank string) { ready <- bank },
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		stop()
		t.Fatalf("the demonstration: %v", err)
	}
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the demonstration: %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the demonstration has left %s", dir)
		}
	}()
	if lines := strings.Count(out.String(), "\n"); lines > 40 {
		t.Errorf("it says what to try in %d lines, want one screen", lines)
	}
	places := regexp.MustCompile(`(?m)^  (?:curl -[si]|tail -f) (?:(http://\S+)|'([^']+)')  `).FindAllStringSubmatch(out.String(), -1)
	want := map[string]string{
		"/statusz": "mails: ", "/livez": "ok", "/metrics": "# TYPE redrive_", "worker.log": `msg="message dead-lettered"`, "traces.txt": "dead-letter orders",
	}
	for _, place := range places {
		for end, text := range want {
			if strings.HasSuffix(place[1]+place[2], end) {
				look(t, place[1], place[2], text)
				place[0] = ""
			}
		}
		if place[0] != "" {
			t.Errorf("nothing is known of %s", place[0])
		}
	}
	if len(places) != 6 {
		t.Errorf("%d places to look at, want 6:\n%s", len(places), out.String())
	}
}

// look waits until a place has a text.
func look(t *testing.T, url, file, text string) {
	t.Helper()
	var last []byte
	for range 100 {
		var err error
		if file != "" {
			last, err = os.ReadFile(file)
		} else {
			last, err = get(url)
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(last, []byte(text)) {
			return
		}
		time.Sleep(100 * time.Millisecond) // another process writes it
	}
	t.Errorf("%s%s lacks %q: %.300s", url, file, text, last)
}

func get(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
