//go:build unix

package suite

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// measure returns the lines that the measurements which only matches print.
func measure(t *testing.T, s *Suite, only string) (lines []string, err error) {
	t.Helper()
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	s.Log = io.Discard
	all := slices.DeleteFunc(s.Measurements(), func(m figure.Measurement) bool { return !m.Matches(regexp.MustCompile(only)) })
	var out strings.Builder
	err = figure.Run(t.Context(), &out, all)
	return strings.Split(strings.TrimSpace(out.String()), "\n"), err
}

func TestRepository(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "README.md"), "# Two words\n")
	write(t, filepath.Join(root, "go.mod"), "module m\n\nrequire (\n\ta.b/c v1.0.0\n\ta.b/d v1.0.0 // indirect\n)\n")
	got, err := measure(t, &Suite{Root: root}, "readme")
	want := []string{"root_direct_requires\t1\tmodules\t<= 9\tok", "readme_words\t3\twords\t<= 900\tok"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("measured %q, %v, want %q", got, err, want)
	}
}

func TestFlakesAreCounted(t *testing.T) {
	const failing = "echo '--- FAIL: TestA (0.00s)'; echo '    --- FAIL: TestA/sub'; echo 'panic: x'; exit 1"
	tests := []struct {
		name         string
		repeat, want string
		broken       bool
	}{
		{name: "one of each", repeat: failing, want: "flakes\t2\tfailures\t<= 0\tshort"},
		{name: "none", repeat: "echo ok", want: "flakes\t0\tfailures\t<= 0\tok"},
		{name: "repeated by CI", repeat: "echo '--- FAIL: TestA'; echo; echo 'Test results:'; echo '--- FAIL: TestA'", want: "flakes\t1\tfailures\t<= 0\tshort"},
		{name: "does not compile", repeat: "exit 2", want: "flakes\t0\tfailures\t<= 0\tok", broken: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := measure(t, &Suite{Root: t.TempDir(), Repeat: []string{"sh", "-c", tt.repeat}}, "flakes")
			if got[0] != tt.want || (err != nil) != tt.broken {
				t.Errorf("measured %q, %v, want %q", got, err, tt.want)
			}
		})
	}
	if got, err := measure(t, &Suite{Root: t.TempDir()}, "flakes"); err == nil {
		t.Errorf("measured %q without a run", got)
	}
}

func TestMutants(t *testing.T) {
	for command, want := range map[string]string{
		"echo 'mutants: 3 planted, mutants_survived 0'":         "mutants_survived\t0\tmutants\t<= 0\tok",
		"echo 'mutants: 3 planted, mutants_survived 2'; exit 1": "mutants_survived\t2\tmutants\t<= 0\tshort",
		"echo 'the source has changed'; exit 1":                 "mutants_survived\t-\tmutants\t<= 0\tfailed",
	} {
		got, err := measure(t, &Suite{Root: t.TempDir(), Mutants: []string{"sh", "-c", command}}, "mutants")
		if got[0] != want || (err != nil) != strings.HasSuffix(want, "failed") {
			t.Errorf("measured %q, %v, want %q", got, err, want)
		}
	}
}

// The cold test has a cache of its own, which the warm one finds; make's variables
// and the results of tests before do not reach them.
func TestTimes(t *testing.T) {
	root := t.TempDir()
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("MAKEFLAGS", " -- ONLY=x")
	write(t, filepath.Join(root, "test.sh"), `sleep 0.1; echo "$GOFLAGS,$MAKEFLAGS,$GOCACHE" >> seen`)
	s := &Suite{Root: root, Recorder: "/figures", Test: []string{"sh", "test.sh"}}
	got, err := measure(t, s, "cold|warm")
	if err == nil {
		t.Error("no error though no test binary ran")
	}
	for i, name := range []string{"test_cold_s", "test_warm_s"} {
		if took := secondsOf(got[i], name); took < 0.1 {
			t.Errorf("measured %q, want %s of 0.1 s or more", got[i], name)
		}
	}
	seen, _ := os.ReadFile(filepath.Join(root, "seen"))
	lines := strings.Split(strings.TrimSpace(string(seen)), "\n")
	for i, line := range lines {
		flags, cache, _ := strings.Cut(line, ",,")
		if !strings.HasPrefix(flags, "-mod=mod -count=1 '-exec=/figures -cpu ") || cache == "" {
			t.Errorf("run %d saw %q", i, line)
		}
		if _, first, _ := strings.Cut(lines[0], ",,"); cache != first {
			t.Errorf("the warm test has cache %s, the cold one %s", cache, first)
		}
	}
}

// secondsOf is the value of a line about a figure, 0 of one about another.
func secondsOf(line, name string) float64 {
	fields := strings.Split(line, "\t")
	if fields[0] != name {
		return 0
	}
	value, _ := strconv.ParseFloat(fields[1], 64)
	return value
}

func TestFailedTestHasNoTime(t *testing.T) {
	got, err := measure(t, &Suite{Root: t.TempDir(), Test: []string{"sh", "-c", "exit 1"}}, "warm")
	if err == nil || got[0] != "test_warm_s\t-\ts\t<= 300\tfailed" {
		t.Errorf("measured %q, %v", got, err)
	}
}

func TestCIRunsInAClone(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "committed"), "")
	git := exec.Command("sh", "-c", "git init -q && git add . && git -c user.name=a -c user.email=a@b.c commit -qm a && touch new")
	git.Dir = root
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := measure(t, &Suite{Root: root, CI: []string{"sh", "-c", "test -f committed && test ! -f new && sleep 0.1"}}, "CI")
	if err != nil || secondsOf(got[0], "ci_s") < 0.1 {
		t.Errorf("measured %q, %v", got, err)
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "used")
	binary := filepath.Join(dir, "a.test")
	write(t, binary, "#!/bin/sh\nexit $1\n")
	for _, code := range []string{"0", "3"} {
		if got := Record(file, []string{binary, code}); got != int(code[0]-'0') {
			t.Errorf("Record returned %d, want %s", got, code)
		}
	}
	used, err := Recorded(file)
	here, _ := os.Getwd()
	if err != nil || len(used) != 1 || used[0].Dir != here || used[0].Time > time.Minute || used[0].Peak < 1<<16 {
		t.Errorf("recorded %v, %v, want one directory, %s", used, err, here)
	}
	write(t, file, "1000 7 /b\n2000 5 /a c\n1500 6 /b\n")
	used, err = Recorded(file)
	if want := []Use{{"/b", 2500, 7}, {"/a c", 2000, 5}}; err != nil || !slices.Equal(used, want) {
		t.Errorf("recorded %v, %v, want %v", used, err, want)
	}
}
