package harness

import (
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

// TestPrepareKeepsData: what a broker was ready with once stays for its next
// start, what an interrupted first start left does not.
func TestPrepareKeepsData(t *testing.T) {
	l, b := newTestLocal(t), Brokers()[0]
	must(t, l.prepare(t.Context(), b, ""))
	data := filepath.Join(l.path(b, ""), "data")
	for _, tt := range []struct {
		name        string
		ready, kept bool
	}{{"never ready", false, false}, {"was ready", true, true}} {
		must(t, os.WriteFile(data, []byte("messages"), 0o600))
		if tt.ready {
			must(t, os.WriteFile(l.path(b, ".ready"), nil, 0o600))
		}
		must(t, l.prepare(t.Context(), b, ""))
		if _, err := os.Stat(data); (err == nil) != tt.kept {
			t.Errorf("%s: data kept %v, want %v", tt.name, err == nil, tt.kept)
		}
	}
}

// TestEnterWaitsForTheRecord: a broker whose starter died before it wrote the
// PID down must not start, because nobody could find it to stop it.
func TestEnterWaitsForTheRecord(t *testing.T) {
	for input, want := range map[string]string{"": "", "recorded\n": "mount"} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", enter, "sh")
		cmd.Env = []string{"PATH=/nowhere", "STATE=/nowhere", "ROOT=/nowhere"} // nothing to mount with
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err == nil || (len(out) > 0) != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("with the input %q it ended with %v and %q, want a failure that names %q", input, err, out, want)
		}
	}
}

// TestDownRemovesEverything of the brokers that it is for, and half an install.
func TestDownRemovesEverything(t *testing.T) {
	l := newTestLocal(t)
	half, whole := filepath.Join(l.cache, "trixie"+partial), filepath.Join(l.cache, "trixie")
	made := []string{half, whole}
	for _, b := range Brokers() {
		for _, suffix := range []string{"", ".pid", ".log", ".ready"} {
			made = append(made, l.path(b, suffix))
		}
	}
	for _, dir := range made {
		must(t, os.MkdirAll(dir, 0o755))
	}
	for _, step := range []struct {
		down []string
		left map[Product]bool // the folder of the product
	}{
		{[]string{"kafka39"}, map[Product]bool{RabbitMQ: true, Kafka: true, SQS: true}},
		{[]string{"kafka"}, map[Product]bool{RabbitMQ: true, Kafka: false, SQS: true}},
		{nil, map[Product]bool{RabbitMQ: false, Redis: false}},
		{nil, map[Product]bool{RabbitMQ: false, Redis: false}},
	} {
		brokers, err := Select(step.down...)
		must(t, err)
		must(t, l.down(t.Context(), brokers))
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
