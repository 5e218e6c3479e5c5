package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inFolder parses a configuration that stands in a folder with files beside it.
func inFolder(t *testing.T, text string, files map[string]string) *Config {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Parse(filepath.Join(folder, "redrive.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSecret(t *testing.T) {
	t.Setenv("TOKEN", "of the environment")
	t.Setenv("EMPTY", "")
	for _, tt := range []struct{ where, content, want, fault string }{
		{"env: TOKEN", "", "of the environment", ""},
		{"file: token", "the one of a file", "the one of a file", ""},
		{"file: token", "the one of a file\n", "the one of a file", ""},
		{"file: token", "the one of a file\r\n", "the one of a file", ""},
		{"file: token", "with two line feeds\n\n", "with two line feeds\n", ""},
		{"file: token", "hunter2", "", "the file token is too short: use 16 characters or more"},
		{"env: EMPTY", "", "", "the environment variable EMPTY is empty"},
		{"env: NOT_THERE", "", "", "the environment variable NOT_THERE is not set"},
		{"file: token", "\n", "", "the file token is empty"},
		{"file: none", "", "", "no such file"},
		{"file: token", strings.Repeat("x", maxSecret+1), "", "more than 65536 bytes"},
	} {
		c := inFolder(t, smallest+"serve: {token: {"+tt.where+"}}\n", map[string]string{"token": tt.content})
		got, err := c.Serve.Token.Read()
		if tt.fault == "" {
			if got != tt.want || err != nil {
				t.Errorf("%s: %q, error %v, want %q", tt.where, got, err, tt.want)
			}
			continue
		}
		fault, ok := errors.AsType[*Fault](err)
		if !ok || fault.Line != 4 || fault.Key != "serve.token" || !strings.Contains(err.Error(), tt.fault) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one of serve.token in line 4 with %q", tt.where, err, tt.fault)
		}
	}
}

func TestKey(t *testing.T) {
	raw := strings.Repeat("\n\xff", 16)
	t.Setenv("HEX", fmt.Sprintf("%x\n", raw))
	t.Setenv("SHORT", "abcd")
	for _, tt := range []struct{ where, content, want, fault string }{
		{"file: key", raw, raw, ""},
		{"file: key", raw + "\n", raw + "\n", ""},
		{"env: HEX, encoding: hex", "", raw, ""},
		{"file: key, encoding: base64", "Cv8K/wr/Cv8K/wr/Cv8K/wr/Cv8K/wr/Cv8K/wr/Cv8=\n", raw, ""},
		{"env: SHORT", "", "", "the environment variable SHORT is too short"},
		{"file: key, encoding: base64", "hunter2", "", "the file key is not base64"},
		{"file: key, encoding: hex", "hunter2", "", "the file key is not hex"},
	} {
		c := inFolder(t, "brokers: {a: {kind: sqs, secret: [{"+tt.where+"}]}}\nstore: {url: x}\n", map[string]string{"key": tt.content})
		got, err := c.Brokers["a"].Secret[0].Read()
		if tt.fault == "" {
			if string(got) != tt.want || err != nil {
				t.Errorf("%s: %q, error %v, want %q", tt.where, got, err, tt.want)
			}
			continue
		}
		fault, ok := errors.AsType[*Fault](err)
		if !ok || fault.Line != 1 || !strings.Contains(err.Error(), tt.fault) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one in line 1 with %q", tt.where, err, tt.fault)
		}
	}
}

// TestPrintedSecrets prints a configuration in the ways that it may be by accident.
func TestPrintedSecrets(t *testing.T) {
	t.Setenv("TOKEN", "hunter2 hunter2 hunter2")
	c := inFolder(t, smallest+"serve: {token: {env: TOKEN}}\n", nil)
	if _, err := c.Serve.Token.Read(); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if out := fmt.Sprintf(format, c); strings.Contains(out, "hunter2") {
			t.Errorf("%s prints the secret: %s", format, out)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	c, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	joined, ok := c.CheckFiles().(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("files and variables that are not there have no fault")
	}
	var lines []int
	for _, err := range joined.Unwrap() {
		if fault, ok := errors.AsType[*Fault](err); ok {
			lines = append(lines, fault.Line)
		}
	}
	if want := "[7 8 8 8 15 16 21 56 57 61 71 76 77 79 79 80 81 91 91]"; fmt.Sprint(lines) != want {
		t.Errorf("faults in the lines %v, want %s", lines, want)
	}
	if err := inFolder(t, smallest, nil).CheckFiles(); err != nil {
		t.Errorf("nothing to read: %v", err)
	}
}
