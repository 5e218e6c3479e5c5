package harness

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newTestElasticMQ returns an engine that shares nothing but the cached
// artifacts with the brokers of the machine, and an ElasticMQ at an address of
// its own.
func newTestElasticMQ(t *testing.T) (*Harness, *local, Broker) {
	t.Helper()
	h, err := newHarness(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	b, err := find("elasticmq")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.cache, artifactsOf(b).folder)); err != nil {
		t.Skip("the artifacts of ElasticMQ are not in the cache: make up fetches them where no Docker engine runs")
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("there is no Java")
	}
	b.Port = freePort(t)
	l := &local{temporary: t.TempDir(), cache: h.cache, log: t.Output()}
	h.engine = l
	t.Cleanup(func() {
		if err := l.down(context.Background(), []Broker{b}); err != nil {
			t.Error(err)
		}
	})
	return h, l, b
}

// TestElasticMQLivesAndDies takes an ElasticMQ of its own through its life: its
// queues are at its own address, and neither a crash nor an end in good order
// leaves any.
func TestElasticMQLivesAndDies(t *testing.T) {
	h, l, b := newTestElasticMQ(t)
	for _, end := range []func(context.Context, Broker) error{l.kill, l.stop} {
		if started, err := h.start(t.Context(), []Broker{b}); err != nil || len(started) != 1 {
			t.Fatalf("start = %q, %v; want it started", names(started), err)
		}
		if started, err := h.start(t.Context(), []Broker{b}); err != nil || len(started) != 0 {
			t.Fatalf("start of a running one = %q, %v; want none started", names(started), err)
		}
		if got := queues(t, b); got != `{"QueueUrls":[]}` {
			t.Errorf("a started ElasticMQ has %s, want no queues", got)
		}
		call(t, b, "CreateQueue", `{"QueueName":"lost"}`)
		call(t, b, "GetQueueUrl", `{"QueueName":"lost"}`)
		if said, err := os.ReadFile(l.path(b, ".log")); err != nil || strings.Contains(string(said), "INFO") {
			t.Errorf("each call waits for what it says, and it said:\n%s%v", said, err)
		}
		if got, want := queues(t, b), fmt.Sprintf(`{"QueueUrls":["%s/000000000000/lost"]}`, b.URL()); got != want {
			t.Errorf("queues are %s, want %s", got, want)
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

func queues(t *testing.T, b Broker) string {
	t.Helper()
	return call(t, b, "ListQueues", "{}")
}

// call returns the body of an answer to one request of SQS.
func call(t *testing.T, b Broker, operation, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.URL(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	r.Header.Set("X-Amz-Target", "AmazonSQS."+operation)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s, %v", operation, answer.Status, &text, err)
	}
	return text.String()
}

// TestElasticMQAsInContainers: a process has the settings that a container
// mounts, but listens on loopback only.
func TestElasticMQAsInContainers(t *testing.T) {
	l := newTestLocal(t)
	b, err := find("elasticmq")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.prepare(t.Context(), b, ""); err != nil {
		t.Fatal(err)
	}
	args := strings.Join(l.host(b).command(b, "").Args, " ")
	file := func(name, property string) string {
		path := filepath.Join(l.path(b, ""), name)
		if !strings.Contains(args, fmt.Sprintf(" -D%s=%s ", property, path)) {
			t.Errorf("it is not told of %s: %s", path, args)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := os.ReadFile("sqs/" + name); !bytes.Equal(got, want) {
			t.Errorf("%s differs from the one that the container mounts", name)
		}
		return string(got)
	}
	file("logback.xml", "logback.configurationFile")
	conf := file("elasticmq.conf", "config.file")
	for _, setting := range []string{fmt.Sprintf("bind-port = %d", b.Port), fmt.Sprintf("port = %d\n", b.Port), `host = "127.0.0.1"`} {
		if !strings.Contains(conf, setting) {
			t.Errorf("elasticmq.conf has no %q", setting)
		}
	}
	if !strings.Contains(args, " -Drest-sqs.bind-hostname=127.0.0.1 ") {
		t.Errorf("it listens everywhere: %q", args)
	}
}

func TestArtifactsOf(t *testing.T) {
	folders := map[string]string{"kafka43": "kafka-4.3.0", "kafka39": "kafka-3.9.1", "elasticmq": "elasticmq-1.7.1"}
	for name, want := range folders {
		b, err := find(name)
		if err != nil {
			t.Fatal(err)
		}
		a := artifactsOf(b)
		if a.folder != want {
			t.Errorf("%s: folder %q, want %q", name, a.folder, want)
		}
		model, err := settings.ReadFile(a.model)
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range a.versions {
			key, _, _ := strings.Cut(strings.TrimPrefix(version, "-D"), "=")
			if !strings.Contains(string(model), "${"+key+"}") {
				t.Errorf("%s does not use %s", a.model, key)
			}
		}
	}
}
