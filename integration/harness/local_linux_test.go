package harness

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func newTestLocal(t *testing.T) *local {
	t.Helper()
	return &local{temporary: t.TempDir(), cache: t.TempDir(), log: t.Output()}
}

func TestPrepareWritesTheSettings(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[0]
	if err := l.prepare(t.Context(), b, ""); err != nil {
		t.Fatal(err)
	}
	for file, source := range map[string]string{
		"conf.d/20-redrive.conf": "rabbitmq/20-redrive.conf",
		"enabled_plugins":        "rabbitmq/enabled_plugins",
	} {
		got, err := os.ReadFile(filepath.Join(l.path(b, ""), file))
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := os.ReadFile(source); !bytes.Equal(got, want) {
			t.Errorf("%s differs from %s, which the containers mount", file, source)
		}
	}
	addresses, err := os.ReadFile(filepath.Join(l.path(b, ""), "conf.d/30-addresses.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(addresses)) {
		if !strings.Contains(line, "127.0.0.1") && !strings.HasPrefix(line, "management.tcp.port") {
			t.Errorf("an address that is not on loopback: %q", line)
		}
	}
}

// TestPrepareKeepsData: what a broker was ready with once stays for its next
// start, what an interrupted first start left does not.
func TestPrepareKeepsData(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[0]
	if err := l.prepare(t.Context(), b, ""); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(l.path(b, ""), "data")
	for _, tt := range []struct {
		name        string
		ready, kept bool
	}{{"never ready", false, false}, {"was ready", true, true}} {
		if err := os.WriteFile(data, []byte("messages"), 0o600); err != nil {
			t.Fatal(err)
		}
		if tt.ready {
			if err := os.WriteFile(l.path(b, ".ready"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.prepare(t.Context(), b, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(data); (err == nil) != tt.kept {
			t.Errorf("%s: data kept %v, want %v", tt.name, err == nil, tt.kept)
		}
	}
}

// TestEnterWaitsForTheRecord: a broker whose starter died before it wrote the
// PID down must not start, because nobody could find it to stop it.
func TestEnterWaitsForTheRecord(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", enter, "sh")
	cmd.Env = []string{"PATH=/nowhere", "STATE=/nowhere", "ROOT=/nowhere"} // nothing to mount with
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if err == nil || len(out) != 0 {
		t.Errorf("without the line it ended with %v and %q, want a failure before the first command", err, out)
	}
	cmd = exec.CommandContext(t.Context(), "/bin/sh", "-ec", enter, "sh")
	cmd.Env = []string{"PATH=/nowhere", "STATE=/nowhere", "ROOT=/nowhere"}
	cmd.Stdin = strings.NewReader("recorded\n")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "mount") {
		t.Errorf("with the line it ended with %v and %q, want that it came to the first mount", err, out)
	}
}

func TestDownRemovesEverything(t *testing.T) {
	l := newTestLocal(t)
	for _, b := range Brokers() {
		if err := claim(l.state(b.Product)); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", ".pid", ".log", ".ready"} {
			if err := os.Mkdir(l.path(b, suffix), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	half, whole := filepath.Join(l.cache, "trixie"+partial), filepath.Join(l.cache, "trixie")
	for _, dir := range []string{half, whole} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		down []string
		left map[Product]bool
	}{
		{[]string{"kafka39"}, map[Product]bool{RabbitMQ: true, Kafka: true, SQS: true}},
		{[]string{"sqs"}, map[Product]bool{RabbitMQ: true, Kafka: true, SQS: false, Redis: true}},
		{[]string{"redis7"}, map[Product]bool{RabbitMQ: true, Kafka: true, Redis: false}},
		{[]string{"kafka"}, map[Product]bool{RabbitMQ: true, Kafka: false}},
		{nil, map[Product]bool{RabbitMQ: false, Kafka: false}},
		{nil, map[Product]bool{RabbitMQ: false, Kafka: false}},
	} {
		brokers, err := Select(step.down...)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.down(t.Context(), brokers); err != nil {
			t.Fatal(err)
		}
		for _, b := range brokers {
			if left, _ := filepath.Glob(l.path(b, "*")); len(left) != 0 {
				t.Errorf("down %q left %q", step.down, left)
			}
		}
		for product, kept := range step.left {
			if _, err := os.Stat(l.state(product)); (err == nil) != kept {
				t.Errorf("down %q: folder of %s kept %v, want %v", step.down, product, err == nil, kept)
			}
		}
	}
	for dir, kept := range map[string]bool{half: false, whole: true} {
		if _, err := os.Stat(dir); (err == nil) != kept {
			t.Errorf("%s kept %v, want %v", dir, err == nil, kept)
		}
	}
}

func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for range 2 {
		if err := claim(dir); err != nil {
			t.Errorf("claim of one's own folder: %v", err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := claim(file); err == nil {
		t.Error("claimed a folder that is a file")
	}
}
