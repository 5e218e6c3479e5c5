package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestListFits finds an entry whose source has changed with the change, not in
// the night after it.
func TestListFits(t *testing.T) {
	if mutants, err := (&campaign{list: "mutants.toml", root: "../.."}).read(); err != nil || len(mutants) < 20 {
		t.Errorf("%d mutants: %v", len(mutants), err)
	}
}

func TestVerdicts(t *testing.T) {
	type entry struct{ old, new, test string }
	for name, tt := range map[string]struct {
		entries []entry
		says    []string
	}{
		"verdicts": {[]entry{{"a + b", "a - b", "TestSum"}, {"a + b", "a * b", "TestSum"}, {"a + b", `"a"`, "TestSum"}, {"return a + b", "panic(a)", "TestSum"}, {"a + b", "a - b", "TestLittle"}}, []string{
			"killed", "mutants_survived 4\nerror: ", "entry 2 (sum.go, sums): the test passes", "entry 3 (sum.go, sums): it does not compile",
			"entry 4 (sum.go, sums): the test does not say what is wrong", "entry 5 (sum.go, sums): the test passes",
		}},
		"hang":         {[]entry{{"return a + b", "for {}", "TestSum"}}, []string{"SURVIVED", "it hangs: no end after 5s"}},
		"no such test": {[]entry{{"a + b", "a - b", "TestNone"}}, []string{"has no test TestNone"}},
		"skipped":      {[]entry{{"a + b", "a - b", "TestSkip"}}, []string{"or skips it"}},
		"faults": {[]entry{{"a+b", "a-b", "TestSum"}, {"int", "int64", "TestSum"}, {"a + b", "a - b'''\nrun = '''x", "TestSum"}}, []string{
			"the source has changed: mend entry 1 (sum.go)", "mend entry 2 (sum.go): what is old occurs 2 times", "unknown key mutant.run",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root, list := t.TempDir(), ""
			for _, e := range tt.entries {
				list += fmt.Sprintf("[[mutant]]\npromise = 'sums'\nfile = 'sum.go'\nold = '''%s'''\nnew = '''%s'''\ntest = '%s'\n", e.old, e.new, e.test)
			}
			for name, text := range map[string]string{
				"list.toml": list,
				"go.mod":    "module example\n\ngo 1.26\n",
				"sum.go":    "package sum\n\nfunc Sum(a, b int) int { return a + b }\n",
				"sum_test.go": "package sum\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(2, 2) != 4 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n\n" +
					"func TestLittle(t *testing.T) { Sum(0, 0) }\n\nfunc TestSkip(t *testing.T) { t.Skip() }\n",
			} {
				if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := campaign{list: filepath.Join(root, "list.toml"), root: root, limit: time.Minute}
			if name == "hang" {
				c.limit = 5 * time.Second
			}
			var out strings.Builder
			if err := c.run(&out, regexp.MustCompile("sums")); err != nil {
				fmt.Fprint(&out, "error: ", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want it to say %q:\n%s", want, out.String())
				}
			}
		})
	}
}
