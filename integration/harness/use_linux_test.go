package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// shared is a Redis of the test's own, at the address of b, and runs that use it.
type shared struct {
	*testing.T
	l     *local
	b     Broker
	cache string
}

func newShared(t *testing.T) *shared {
	t.Helper()
	_, l, b := newTestBroker(t, "redis7")
	return &shared{t, l, b, t.TempDir()}
}

// harness returns a Harness like the one that each process makes for itself.
func (s *shared) harness() *Harness { return &Harness{engine: s.l, cache: s.cache, log: s.Output()} }

func (s *shared) use() *Use {
	s.Helper()
	u, err := s.harness().Use(s.Context(), []Broker{s.b})
	must(s, err)
	return u
}

func (s *shared) up() {
	s.Helper()
	if _, err := s.harness().Up(s.Context(), []Broker{s.b}); err != nil {
		s.Fatal(err)
	}
}

func (s *shared) down() {
	s.Helper()
	must(s, s.harness().Down(s.Context(), []Broker{s.b}))
}

// release ends a run. Then the broker must answer, or must have ended.
func (s *shared) release(u *Use, answers bool) {
	s.Helper()
	must(s, u.Release(s.Context()))
	if _, err := Probe(s.Context(), s.b.Product, s.b.URL()); (err == nil) != answers {
		s.Errorf("after a run has ended, the broker answers: %v, want %v", err == nil, answers)
	}
}

// wantNothing checks that no file of the broker is left.
func (s *shared) wantNothing() {
	s.Helper()
	for _, pattern := range []string{filepath.Join(s.l.temporary, "*"), filepath.Join(s.cache, "*.run")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			s.Errorf("left %q", left)
		}
	}
}

// TestRunsShareABroker has two developers test at the same time on one machine.
func TestRunsShareABroker(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(s *shared)
	}{
		{"the run that started it ends first", func(s *shared) {
			first, second := s.use(), s.use()
			s.release(first, true)
			s.release(second, false)
		}},
		{"the run that found it ends first", func(s *shared) {
			first, second := s.use(), s.use()
			s.release(second, true)
			s.release(first, false)
		}},
		{"a third joins when the first has left", func(s *shared) {
			first, second := s.use(), s.use()
			s.release(first, true)
			third := s.use()
			s.release(second, true)
			s.release(third, false)
		}},
		{"the broker was killed in between", func(s *shared) {
			first, second := s.use(), s.use()
			must(s, s.l.kill(s.Context(), s.b))
			third := s.use()
			s.release(first, true)
			s.release(second, true)
			s.release(third, false)
		}},
		{"a user had started it", func(s *shared) {
			s.up()
			s.release(s.use(), true)
			s.down()
		}},
		{"a user takes it over from a run", func(s *shared) {
			u := s.use()
			s.up()
			s.release(u, true)
			s.release(s.use(), true)
			s.down()
		}},
		{"a user stops it, and another run starts it", func(s *shared) {
			first := s.use()
			s.down()
			second := s.use()
			s.release(first, true)
			s.release(second, false)
		}},
		{"a user had frozen it", func(s *shared) {
			s.up()
			freeze(s.T, s.l, s.b)
			s.release(s.use(), true)
			s.down()
		}},
		{"a run is killed beside another", func(s *shared) {
			s.killedRun()
			u := s.use()
			s.killedRun()
			s.release(u, false)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t)
			tt.play(s)
			s.wantNothing()
		})
	}
}

// TestReleaseAfterAFailedStart has Release stop the broker that did start.
func TestReleaseAfterAFailedStart(t *testing.T) {
	s := newShared(t)
	missing := s.b
	missing.Name, missing.Version, missing.suite = "redis1", "1.", "none"
	u, err := s.harness().Use(t.Context(), []Broker{s.b, missing})
	if err == nil || !strings.Contains(err.Error(), "start redis1") {
		t.Errorf("Use = %v, want that redis1 does not start", err)
	}
	if err := u.Release(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantNothing()
}

const usedBy = "REDRIVE_TEST_USE" // folders and port of a run in a process of its own

// killedRun starts a run in a process of its own, and kills it when it has the
// broker.
func (s *shared) killedRun() {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), os.Args[0], "-test.run=^TestRunToKill$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", usedBy, s.l.temporary, s.l.cache, s.cache, s.b.Port))
	out, err := cmd.StdoutPipe()
	must(s, err)
	must(s, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "in use" {
		s.Log(lines.Text())
	}
	if lines.Text() != "in use" {
		s.Error("the run ended before it had the broker")
	}
	must(s, cmd.Process.Kill())
	_ = cmd.Wait()
	if err := s.l.check(s.Context(), s.b); err != nil {
		s.Errorf("after its run was killed: %v", err)
	}
}

// TestRunToKill is the run of killedRun.
func TestRunToKill(t *testing.T) {
	if os.Getenv(usedBy) == "" {
		t.Skip("killedRun runs it")
	}
	b, err := find("redis7")
	must(t, err)
	l, h := &local{log: t.Output()}, &Harness{log: t.Output()}
	if _, err := fmt.Sscan(os.Getenv(usedBy), &l.temporary, &l.cache, &h.cache, &b.Port); err != nil {
		t.Fatal(err)
	}
	h.engine = l
	if _, err := h.Use(t.Context(), []Broker{b}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("in use")
	select {} // until it is killed
}

// TestBrokerInheritsNoFiles: a script that holds a lock runs make up, and lets
// the lock go. The broker must not hold it. A command of brokers run still gets
// the files of the script, such as the job server of a make.
func TestBrokerInheritsNoFiles(t *testing.T) {
	s := newShared(t)
	file := filepath.Join(t.TempDir(), "lock of the caller")
	callers, err := syscall.Open(file, syscall.O_CREAT|syscall.O_RDWR, 0o600) // as a shell opens files: children inherit it
	must(t, err)
	must(t, syscall.Flock(callers, syscall.LOCK_EX))
	s.up()
	defer s.down()
	var out strings.Builder
	child := exec.CommandContext(t.Context(), "sh", "-c", `readlink /proc/self/fd/*`)
	child.Stdout = &out
	if _ = child.Run(); !strings.Contains(out.String(), file) { // readlink fails on some of its own files
		t.Errorf("a command inherits %q, want %s among them", out.String(), file)
	}
	must(t, syscall.Close(callers))
	again, err := os.Open(file)
	must(t, err)
	defer again.Close()
	if err := lockAlone(again); err != nil {
		t.Errorf("the lock of the caller is not free after the caller has let it go: %v", err)
	}
	if _, err := Probe(t.Context(), s.b.Product, s.b.URL()); err != nil {
		t.Errorf("the broker does not run: %v", err)
	}
}
