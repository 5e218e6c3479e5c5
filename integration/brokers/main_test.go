package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/integration/harness"
)

func TestParseRun(t *testing.T) {
	for _, tt := range []struct {
		args, brokers, command []string
		others                 int
		nightly                string
		want                   string // a part of the error; "" for none
	}{
		{args: []string{"go", "test", "-only", "x"}, others: 5, brokers: []string{"rabbitmq4", "kafka43", "elasticmq", "redis7"}, command: []string{"go", "test", "-only", "x"}},
		{args: []string{"go", "test", "-only", "x"}, others: 5, nightly: "true", brokers: []string{"rabbitmq3", "rabbitmq4", "kafka43", "kafka39", "elasticmq", "redis7", "valkey8"}, command: []string{"go", "test", "-only", "x"}},
		{args: []string{"-only", "kafka,rabbitmq4", "make"}, brokers: []string{"rabbitmq4", "kafka43", "kafka39"}, command: []string{"make"}},
		{args: []string{"-only=kafka39", "make", "live"}, brokers: []string{"kafka39"}, command: []string{"make", "live"}},
		{args: []string{"-only", "sqs", "make"}, brokers: []string{"elasticmq"}, command: []string{"make"}},
		{args: []string{"-only", "nats", "make"}, want: `there is no broker "nats"`},
		{args: []string{"-only", "kafka"}, want: "without a command"},
		{args: []string{"-without", "kafka", "make"}, want: "-without"},
		{want: "without a command"},
	} {
		t.Setenv("REDRIVE_NIGHTLY", tt.nightly)
		brokers, others, command, err := parseRun(tt.args)
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("run %q: %v, want an error with %q", tt.args, err, tt.want)
			}
			continue
		}
		var names []string
		for _, b := range brokers {
			names = append(names, b.Name)
		}
		if err != nil || !slices.Equal(names, tt.brokers) || !slices.Equal(command, tt.command) || len(others) != tt.others {
			t.Errorf("run %q: %q with %q and %q, %v; want %q with %q and %d more", tt.args, command, names, others, err, tt.command, tt.brokers, tt.others)
		}
	}
}

// TestRunWithBrokersOfOnesOwn starts none, and says how the command ended.
func TestRunWithBrokersOfOnesOwn(t *testing.T) {
	t.Setenv("REDRIVE_ENGINE", "none") // a harness could not be made
	t.Setenv("REDRIVE_NIGHTLY", "")
	t.Setenv("REDRIVE_KAFKA_URL", "mine:9092")
	t.Setenv("REDRIVE_KAFKA39_URL", "mine:9093")
	if err := run(t.Context(), []string{"-only", "kafka", "sh", "-c", `test "$REDRIVE_KAFKA_URL" = mine:9092`}); err != nil {
		t.Errorf("run = %v", err)
	}
	said := captureStderr(t, func() {
		if err := run(t.Context(), []string{"-only", "kafka", "true"}); err != nil {
			t.Errorf("run = %v", err)
		}
	})
	if _, list, _ := strings.Cut(said, "not tested on: "); !strings.Contains(list, "rabbitmq3 (make nightly)") || strings.Contains(list, "kafka39") {
		t.Errorf("run on both Kafkas lists as not tested %q", list)
	}
	if err := run(t.Context(), []string{"-only", "kafka", "false"}); err == nil || err.Error() != "exit status 1" {
		t.Errorf("run of a command that fails = %v, want its exit status", err)
	}
}

// machine makes the process see a machine with Go and make, but without a C
// compiler and the packages that tests need. It starts and installs nothing.
func machine(t *testing.T) (install func(programs ...string)) {
	t.Helper()
	goProgram, err := exec.LookPath("go")
	must(t, err)
	if goProgram, err = filepath.EvalSymlinks(goProgram); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"sh", "make", "grep", "dirname"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		must(t, os.Symlink(program, filepath.Join(bin, name)))
	}
	for _, empty := range []string{"CC", "CGO_ENABLED", "CI", "GOFLAGS", "MAKEFLAGS", "MAKELEVEL", "REDRIVE_NIGHTLY"} {
		t.Setenv(empty, "")
	}
	t.Setenv("REDRIVE_ENGINE", "none")
	t.Setenv("REDRIVE_POSTGRES_URL", "postgres://127.0.0.1:1/")
	t.Setenv("PATH", bin+string(os.PathListSeparator)+filepath.Dir(goProgram))
	return func(programs ...string) {
		t.Helper()
		for _, name := range programs {
			must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755))
		}
	}
}

// TestRunWithoutPackages has a run succeed whose last lines list everything
// that was not tested. With CI=true that run fails. The command runs all the same.
func TestRunWithoutPackages(t *testing.T) {
	machine(t)
	for _, b := range harness.Brokers() {
		t.Setenv(b.Env, "")
	}
	for ci, want := range map[string]error{"": nil, "true": errMissing} {
		t.Setenv("CI", ci)
		ran := filepath.Join(t.TempDir(), "ran")
		said := captureStderr(t, func() {
			if err := run(t.Context(), []string{"sh", "-c", ":>" + ran}); !errors.Is(err, want) {
				t.Errorf("with CI=%s: run = %v, want %v", ci, err, want)
			}
		})
		if _, err := os.Stat(ran); err != nil {
			t.Errorf("with CI=%s: %v", ci, err)
		}
		_, list, _ := strings.Cut(said, "\nbrokers: not tested on: ")
		for _, name := range []string{
			"rabbitmq (", "kafka (", "sqs (", "redis (", "rabbitmq3 (make nightly)", "valkey8 (make nightly)",
			"redis-server (no redis-server: apt-get install redis-server)", "python (no python3: apt-get install python3)",
			"promtool (no promtool: apt-get install prometheus)",
			"\nbrokers: race detector: not used, no C compiler: ",
		} {
			if !strings.Contains(list, name) {
				t.Errorf("the last lines are %q, without %q", list, name)
			}
		}
	}
}

// TestRunWithoutACompiler has make leave out the race detector if no C compiler
// can link it. The last line of the run says so. With CI=true the run fails.
func TestRunWithoutACompiler(t *testing.T) {
	install := machine(t)
	install("redis-server", "python3", "promtool")
	for _, b := range harness.Brokers() {
		t.Setenv(b.Env, "redis://127.0.0.1:1/")
	}
	const line = "\nbrokers: race detector: not used, no C compiler: apt-get install gcc libc6-dev\n"
	try := func(ci string, want error, detector bool) {
		t.Helper()
		t.Setenv("CI", ci)
		commands := filepath.Join(t.TempDir(), "commands")
		said := captureStderr(t, func() {
			if err := run(t.Context(), []string{"sh", "-c", "make -C ../.. -n cover live rest vet >" + commands}); !errors.Is(err, want) {
				t.Errorf("with CI=%s: run = %v, want %v", ci, err, want)
			}
		})
		if strings.HasSuffix(said, line) == detector {
			t.Errorf("with the detector %v, run ends with %q, and the line is %q", detector, said, line)
		}
		text, err := os.ReadFile(commands)
		must(t, err)
		if !strings.Contains(string(text), " test ") || strings.Contains(string(text), "-race") != detector {
			t.Errorf("with the detector %v, make runs\n%s", detector, text)
		}
	}
	try("", nil, false)
	try("true", errMissing, false)
	t.Setenv("CC", "gcc")
	install("gcc")
	try("", nil, true)
	try("true", nil, true)
	t.Setenv("CGO_ENABLED", "0")
	if err := harness.NoRaceDetector(t.Context()); err == nil || err.Error() != "CGO_ENABLED=0" {
		t.Errorf("without cgo: %v", err)
	}
}

func captureStderr(t *testing.T, act func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	must(t, err)
	defer file.Close()
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	act()
	text, err := os.ReadFile(file.Name())
	must(t, err)
	return string(text)
}

func TestReport(t *testing.T) {
	for _, tt := range []struct {
		on    []string
		later []harness.Broker
		not   map[string]error
		want  string
	}{
		{[]string{"Kafka 4.3", "Redis 7.0.15"}, nil, nil,
			"brokers: tested on: Kafka 4.3, Redis 7.0.15\nbrokers: not tested on: none\n"},
		{[]string{"Kafka 4.3"}, harness.Brokers(), nil,
			"brokers: tested on: Kafka 4.3\nbrokers: not tested on: rabbitmq3 (make nightly), kafka39 (make nightly), valkey8 (make nightly)\n"},
		{nil, nil, map[string]error{"kafka": errors.New("start kafka43: its process has ended; the log ends with:\nstarting\nno space left\n")},
			"brokers: tested on: none\nbrokers: not tested on: kafka (start kafka43: its process has ended; the log ends with: no space left)\n"},
	} {
		had := report{on: tt.on}
		for name, err := range tt.not {
			had.lacks(name, err)
		}
		had.leaves(tt.later)
		var out bytes.Buffer
		if had.print(&out); out.String() != tt.want {
			t.Errorf("print = %q, want %q", out.String(), tt.want)
		}
	}
}

func TestCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("REDRIVE_ENGINE", "local")
	for _, args := range [][]string{nil, {"restart", "kafka43"}, {"kill"}, {"kill", "kafka43", "kafka39"}, {"ctl", "rabbitmq4"}, {"list", "kafka"}, {"run"}} {
		if err := command(t.Context(), args); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v, want %v", args, err, errUsage)
		}
	}
	if err := command(t.Context(), []string{"ctl", "kafka43", "status"}); err == nil || !strings.Contains(err.Error(), "kafka43 has no rabbitmqctl") {
		t.Errorf("ctl on a Kafka: %v, want that it has no such tool", err)
	}
	for _, args := range [][]string{{"up", "nats"}, {"down", "kafka43", "nats"}, {"env", "nats"}, {"freeze", "nats"}} {
		if err := command(t.Context(), args); err == nil || !strings.Contains(err.Error(), `no broker "nats"`) {
			t.Errorf("%q: %v, want that there is no such broker", args, err)
		}
	}
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
