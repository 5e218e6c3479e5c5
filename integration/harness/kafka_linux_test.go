package harness

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newTestKafka returns an engine that shares nothing but the cached artifacts
// with the brokers of the machine, and a Kafka at addresses of its own.
func newTestKafka(t *testing.T) (*Harness, *local, Broker) {
	t.Helper()
	h, err := newHarness(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	b, err := find("kafka43")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.cache, "kafka-"+b.release())); err != nil {
		t.Skip("the artifacts of Kafka are not in the cache: make up fetches them where no Docker engine runs")
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("there is no Java")
	}
	b.Port, b.Controller = freePort(t), freePort(t)
	l := &local{temporary: t.TempDir(), cache: h.cache, log: t.Output()}
	h.engine = l
	t.Cleanup(func() {
		if err := l.down(context.Background(), []Broker{b}); err != nil {
			t.Error(err)
		}
	})
	return h, l, b
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// TestKafkaLivesAndDies takes a Kafka of its own through its life: data
// survives a crash and an end in good order, a frozen broker answers nothing,
// and nothing is left in the end.
func TestKafkaLivesAndDies(t *testing.T) {
	h, l, b := newTestKafka(t)
	brokers := []Broker{b}
	up := func(want int) {
		t.Helper()
		if started, err := h.start(t.Context(), brokers); err != nil || len(started) != want {
			t.Fatalf("start = %q, %v; want %d started", names(started), err, want)
		}
	}
	up(1)
	up(0)
	if code := createTopic(t, b, "kept"); code != 0 {
		t.Fatalf("the topic was not created: error code %d", code)
	}

	first := readProcess(l.path(b, ".pid"))
	if err := l.kill(t.Context(), b); err != nil || first.alive() {
		t.Fatalf("kill: %v, alive %v", err, first.alive())
	}
	if err := l.check(t.Context(), b); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("check of a killed broker = %v", err)
	}
	if err := l.freeze(t.Context(), b); err == nil {
		t.Error("froze a broker that had been killed")
	}
	up(1)
	const topicExists = 36
	if code := createTopic(t, b, "kept"); code != topicExists {
		t.Errorf("after a crash, creating the topic again gave error code %d, want %d", code, topicExists)
	}

	if err := l.freeze(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if got, err := Probe(short, Kafka, b.Address()); err == nil {
		t.Errorf("a frozen broker answered %+v", got)
	}
	up(0)
	if err := l.freeze(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := l.stop(t.Context(), b); err != nil {
		t.Fatalf("stop of a frozen broker: %v", err)
	}
	up(1)
	if code := createTopic(t, b, "kept"); code != topicExists {
		t.Errorf("after a stop, creating the topic again gave error code %d, want %d", code, topicExists)
	}

	last := readProcess(l.path(b, ".pid"))
	for range 2 {
		if err := l.down(t.Context(), brokers); err != nil {
			t.Fatal(err)
		}
	}
	if last.alive() {
		t.Error("alive after down")
	}
	if left, err := os.ReadDir(l.temporary); err != nil || len(left) != 0 {
		t.Errorf("down left %v, %v", left, err)
	}
}

// createTopic returns the broker's error code for the topic.
func createTopic(t *testing.T, b Broker, topic string) uint16 {
	t.Helper()
	conn, err := net.DialTimeout("tcp", b.Address(), probeTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		t.Fatal(err)
	}
	text := func(s string) string { return string(binary.BigEndian.AppendUint16(nil, uint16(len(s)))) + s }
	// CreateTopics 2: one topic of one partition on one broker, 30 seconds.
	answer, err := ask(conn, "\x00\x13\x00\x02\x00\x00\x00\x07\xff\xff\x00\x00\x00\x01"+text(topic)+
		"\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"+"\x00\x00\x75\x30\x00")
	if err != nil {
		t.Fatal(err)
	}
	r := reader{rest: answer}
	r.skip(4 + 4 + 2 + uint64(len(topic))) // throttle time, one topic, its name
	code := r.uint16()
	if r.failed {
		t.Fatalf("a malformed answer: %x", answer)
	}
	return code
}

// TestKafkaThatCannotStart: the error says why, from the broker's own log.
func TestKafkaThatCannotStart(t *testing.T) {
	_, l, b := newTestKafka(t)
	b.Controller = -1
	if _, err := l.start(t.Context(), []Broker{b}); err == nil || !strings.Contains(err.Error(), "start kafka43: java: exit status") {
		t.Errorf("start with a port that is none = %v, want what Java said", err)
	}
	occupied, err := net.Listen("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	if _, err := l.start(t.Context(), []Broker{b}); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("start at an address in use = %v", err)
	}
}

// putPrograms makes the path a folder that has only programs of these names.
func putPrograms(t *testing.T, names ...string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	return bin
}

func TestKafkaWithoutJavaOrMaven(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[2]
	for _, tt := range []struct {
		there []string
		want  string
	}{
		{nil, "no java: apt-get install default-jre-headless, or"},
		{[]string{"java"}, "no mvn: apt-get install maven, or"},
	} {
		putPrograms(t, tt.there...)
		if _, err := (kafka{java{l}}).install(t.Context(), b); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("install with %q = %v, want %q", tt.there, err, tt.want)
		}
	}
}

// TestArtifactsAreWholeOrMissing: what an interrupted Maven left is no broker.
func TestArtifactsAreWholeOrMissing(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[2]
	path := os.Getenv("PATH")
	bin := putPrograms(t, "java")
	t.Setenv("PATH", bin+":"+path)
	maven := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	maven("echo no such artifact; exit 1\n")
	if _, err := (kafka{java{l}}).install(t.Context(), b); err == nil || !strings.Contains(err.Error(), "no such artifact") {
		t.Errorf("install = %v, want what Maven said", err)
	}
	maven("for last; do :; done\ntouch \"${last#-DoutputDirectory=}/kafka.jar\"\n")
	for range 2 { // the second time from the cache
		root, err := (kafka{java{l}}).install(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(root, "kafka.jar")); err != nil {
			t.Error(err)
		}
		maven("exit 1\n")
	}
}

func TestKafkaListensOnLoopback(t *testing.T) {
	for _, b := range Brokers() {
		if b.Product != Kafka {
			continue
		}
		for line := range strings.Lines(strings.TrimSpace(addresses(b))) {
			if strings.Count(line, "://")+strings.Count(line, "@") != strings.Count(line, "127.0.0.1:") {
				t.Errorf("%s: an address that is not on loopback: %q", b.Name, line)
			}
		}
	}
}
