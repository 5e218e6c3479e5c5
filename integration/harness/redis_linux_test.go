package harness

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newTestRedis returns an engine that shares nothing with the machine but its
// package, and a Redis at an address of its own.
func newTestRedis(t *testing.T) (*Harness, *local, Broker) {
	t.Helper()
	h, err := newHarness(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	b, err := find("redis7")
	if err != nil {
		t.Fatal(err)
	}
	b.Port = freePort(t)
	l := &local{temporary: t.TempDir(), cache: h.cache, log: t.Output()}
	if r := (redis{l}); !r.installed(t.Context(), "/", b) && !(os.Getuid() == 0 && r.installed(t.Context(), filepath.Join(h.cache, b.suite+"-redis"), b)) {
		t.Skip("redis-server is neither on the machine nor in the cache: make up fetches it where no Docker engine runs")
	}
	h.engine = l
	t.Cleanup(func() {
		if err := l.down(context.Background(), []Broker{b}); err != nil {
			t.Error(err)
		}
	})
	return h, l, b
}

// askRedis sends one command and returns the first line of the answer.
func askRedis(t *testing.T, b Broker, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 256)
	n, err := conn.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer[:n])
}

// TestRedisLivesAndDies takes a Redis of its own through its life: neither a
// crash nor an end in good order leaves a key.
func TestRedisLivesAndDies(t *testing.T) {
	h, l, b := newTestRedis(t)
	for _, end := range []func(context.Context, Broker) error{l.kill, l.stop} {
		if started, err := h.start(t.Context(), []Broker{b}); err != nil || len(started) != 1 {
			t.Fatalf("start = %q, %v; want it started", names(started), err)
		}
		if started, err := h.start(t.Context(), []Broker{b}); err != nil || len(started) != 0 {
			t.Fatalf("start of a running one = %q, %v; want none started", names(started), err)
		}
		if got := askRedis(t, b, "DBSIZE"); got != ":0\r\n" {
			t.Errorf("a started Redis has %q keys, want none", got)
		}
		askRedis(t, b, "SET lost 1")
		if got := askRedis(t, b, "CONFIG GET maxmemory-policy"); !strings.Contains(got, "noeviction") {
			t.Errorf("its settings are not those of the harness: %q", got)
		}
		p := readProcess(l.path(b, ".pid"))
		if err := end(t.Context(), b); err != nil || p.alive() {
			t.Fatalf("end: %v, alive %v", err, p.alive())
		}
	}
	if err := l.down(t.Context(), []Broker{b}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(l.temporary); err != nil || len(left) != 0 {
		t.Errorf("down left %v, %v", left, err)
	}
}

// TestRedisAsInContainers: a process has the settings that a container mounts,
// but listens on loopback only.
func TestRedisAsInContainers(t *testing.T) {
	l := newTestLocal(t)
	b, err := find("redis7")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.prepare(t.Context(), b, ""); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.path(b, ""), "redis.conf")
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := os.ReadFile("redis/redis.conf"); !bytes.Equal(got, want) {
		t.Error("redis.conf differs from the one that the container mounts")
	}
	for _, root := range []string{"/", "/srv/debian"} {
		cmd := l.host(b).command(b, root)
		if !strings.HasSuffix(strings.Join(cmd.Args, " "), " - --bind 127.0.0.1 --port 25678") {
			t.Errorf("it listens elsewhere: %q", cmd.Args)
		}
		for _, want := range []string{"ROOT=" + root, "SETTINGS=" + file} {
			if !slices.Contains(cmd.Env, want) {
				t.Errorf("its environment has no %s", want)
			}
		}
	}
}
