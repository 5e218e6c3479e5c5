package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestListFits finds an entry whose source has changed with the change, not in
// the night after it.
func TestListFits(t *testing.T) {
	mutants, err := (&campaign{root: "../.."}).read("mutants.toml")
	if err != nil || len(mutants) < 20 {
		t.Errorf("%d mutants: %v", len(mutants), err)
	}
}

func TestVerdicts(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "module example\n\ngo 1.26\n")
	write(t, root, "sum.go", "package sum\n\nfunc Sum(a, b int) int { return a + b }\n")
	write(t, root, "sum_test.go", `package sum

import "testing"

func TestSum(t *testing.T) {
	if Sum(2, 2) != 4 || Sum(0, 0) != 0 {
		t.Error("wrong")
	}
}

func TestLittle(t *testing.T) { Sum(0, 0) }
func TestSkip(t *testing.T)   { t.Skip() }
`)
	const killed, survived = "killed", "SURVIVED"
	tests := []struct{ name, old, new, test, want, says string }{
		{"killed", "a + b", "a - b", "TestSum", killed, "mutants_survived 0"},
		{"equal for the test", "a + b", "a * b", "TestSum", survived, "the test passes"},
		{"no compilation", "a + b", `"a"`, "TestSum", survived, "does not compile"},
		{"hang", "return a + b", "for {}", "TestSum", survived, "hangs"},
		{"panic", "return a + b", "panic(a)", "TestSum", survived, "does not say what is wrong"},
		{"another test", "a + b", "a - b", "TestLittle", survived, "the test passes"},
		{"no such test", "a + b", "a - b", "TestNone", "", "has no test TestNone"},
		{"skipped", "a + b", "a - b", "TestSkip", "", "or skips it"},
		{"old code", "a+b", "a-b", "TestSum", "", "the source has changed: mend entry 1 (sum.go)"},
		{"old code twice", "int", "int64", "TestSum", "", "occurs 2 times"},
		{"no change", "a + b", "a + b", "TestSum", "", "it needs a promise"},
		{"unknown key", "a + b", "a - b'''\nrun = '''x", "TestSum", "", "unknown key mutant.run"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := filepath.Join(root, "list.toml")
			write(t, root, "list.toml", "[[mutant]]\npromise = 'sums'\nfile = 'sum.go'\nold = '''"+tt.old+"'''\nnew = '''"+tt.new+"'''\ntest = '"+tt.test+"'\n")
			var out strings.Builder
			limit := time.Minute
			if tt.name == "hang" {
				limit = time.Second
			}
			err := (&campaign{root: root, limit: limit}).run(&out, list, "sum")
			if err != nil {
				out.WriteString(err.Error())
			}
			if (err == nil) != (tt.want == killed) || !strings.HasPrefix(out.String(), tt.want) || !strings.Contains(out.String(), tt.says) {
				t.Errorf("got %q, want it %s and %q", out.String(), tt.want, tt.says)
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
