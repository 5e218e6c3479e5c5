package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/integration/freeport"
)

// newTestBroker returns an engine that shares nothing but the cached programs
// with the brokers of the machine, and a broker at addresses of its own.
func newTestBroker(t *testing.T, name string) (*Harness, *local, Broker) {
	t.Helper()
	h, err := newHarness(t.Output())
	must(t, err)
	b, err := find(name)
	must(t, err)
	l := &local{temporary: t.TempDir(), cache: h.cache, log: t.Output()}
	if _, err := exec.LookPath("java"); b.Product != Redis && b.Product != Valkey && err != nil || !l.present(t.Context(), b) {
		t.Skip("the programs of " + name + " are not there: make up fetches them where no Docker engine runs")
	}
	ports, err := freeport.Ports(2)
	must(t, err)
	h.engine = l
	b.Port, _ = strconv.Atoi(ports[0])
	b.Controller, _ = strconv.Atoi(ports[1])
	t.Cleanup(func() {
		if err := l.down(context.Background(), []Broker{b}); err != nil {
			t.Error(err)
		}
	})
	return h, l, b
}

// TestBrokersLiveAndDie takes brokers of its own through their lives: what they
// have is kept by a crash and by an end in good order or not, a frozen one answers
// nothing, and nothing is left in the end. The faults do it with a RabbitMQ.
func TestBrokersLiveAndDie(t *testing.T) {
	for _, tt := range []struct {
		name  string
		put   func(t *testing.T, b Broker) (existed bool) // puts something there
		keeps bool
	}{{"kafka43", createTopic, true}, {"redis7", setKey, false}, {"valkey8", setKey, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, l, b := newTestBroker(t, tt.name)
			up := func(want int) {
				t.Helper()
				if started, err := h.start(t.Context(), []Broker{b}); err != nil || len(started) != want {
					t.Fatalf("start = %q, %v; want %d started", names(started), err, want)
				}
			}
			for i, end := range []func(context.Context, Broker) error{l.kill, l.stop} {
				up(1)
				if existed := tt.put(t, b); existed != (i > 0 && tt.keeps) {
					t.Errorf("after %d ends, what was put there exists: %v", i, existed)
				}
				if !tt.put(t, b) {
					t.Error("what was put there does not exist")
				}
				freeze(t, l, b)
				up(0) // which thaws it
				freeze(t, l, b)
				p := readProcess(l.path(b, ".pid"))
				if err := end(t.Context(), b); err != nil || p.alive() {
					t.Fatalf("end of a frozen one: %v, alive %v", err, p.alive())
				}
				if err := l.check(t.Context(), b); err == nil || !strings.Contains(err.Error(), "has ended") {
					t.Errorf("check of an ended broker = %v", err)
				}
				if err := l.freeze(t.Context(), b); err == nil {
					t.Error("froze a broker that had ended")
				}
			}
			up(1)
			if existed := tt.put(t, b); existed != tt.keeps {
				t.Errorf("after an end in good order, what was put there exists: %v", existed)
			}
			last := readProcess(l.path(b, ".pid"))
			for range 2 {
				if err := l.down(t.Context(), []Broker{b}); err != nil || last.alive() {
					t.Fatalf("down: %v, alive %v", err, last.alive())
				}
			}
			if left, err := os.ReadDir(l.temporary); err != nil || len(left) != 0 {
				t.Errorf("down left %v, %v", left, err)
			}
		})
	}
}

func freeze(t *testing.T, l *local, b Broker) {
	t.Helper()
	must(t, l.freeze(t.Context(), b))
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := Probe(short, b.Product, b.URL()); err == nil {
		t.Errorf("a frozen broker answered %+v", got)
	}
}

func createTopic(t *testing.T, b Broker) (existed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	conn, err := dial(ctx, b.Address())
	must(t, err)
	defer conn.Close()
	answer, err := ask(conn, &kmsg.CreateTopicsRequest{Version: 2, TimeoutMillis: 30_000, Topics: []kmsg.CreateTopicsRequestTopic{
		{Topic: "kept", NumPartitions: 1, ReplicationFactor: 1},
	}})
	must(t, err)
	const topicExists = 36
	code := answer.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode
	if code != 0 && code != topicExists {
		t.Fatalf("the topic was not created: error code %d", code)
	}
	return code == topicExists
}

func setKey(t *testing.T, b Broker) (existed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
	defer cancel()
	conn, err := dial(ctx, b.Address())
	must(t, err)
	defer conn.Close()
	answer := make([]byte, len("+OK"))
	if _, err := fmt.Fprint(conn, "SET lost 1 NX\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil {
		t.Fatal(err)
	}
	return string(answer) != "+OK" // but no value
}

// TestStartThatFails: the error says why, from what the broker's program said.
func TestStartThatFails(t *testing.T) {
	_, l, b := newTestBroker(t, "kafka43")
	b.Controller = -1
	if _, err := l.start(t.Context(), []Broker{b}); err == nil || !strings.Contains(err.Error(), "start kafka43: java: exit status") {
		t.Errorf("start with a port that is none = %v, want what Java said", err)
	}
	occupied, err := net.Listen("tcp", b.Address())
	must(t, err)
	defer occupied.Close()
	if _, err := l.start(t.Context(), []Broker{b}); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("start at an address in use = %v", err)
	}
}

// TestArtifactsAreWholeOrMissing: what an interrupted Maven left is no broker,
// and a machine without Maven or Java is told what to install.
func TestArtifactsAreWholeOrMissing(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[2]
	bin, path := t.TempDir(), os.Getenv("PATH")
	program := func(name, script string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	wantError := func(want string) {
		t.Helper()
		if _, err := l.host(b).install(t.Context(), b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("install = %v, want %q", err, want)
		}
	}
	t.Setenv("PATH", bin)
	wantError("no java: apt-get install default-jre-headless, or")
	program("java", "")
	wantError("no mvn: apt-get install maven, or")
	t.Setenv("PATH", bin+":"+path)
	program("mvn", "echo no such artifact; exit 1\n")
	wantError("no such artifact")
	program("mvn", "for last; do :; done\ntouch \"${last#-DoutputDirectory=}/kafka.jar\"\n")
	for range 2 { // the second time from the cache
		root, err := l.host(b).install(t.Context(), b)
		must(t, err)
		if _, err := os.Stat(filepath.Join(root, "kafka.jar")); err != nil {
			t.Error(err)
		}
		program("mvn", "exit 1\n")
	}
}
