package snippets

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// SECURITY.md names the test of each promise, and each test of an attack.
func TestSecurityNamesItsTests(t *testing.T) {
	page := readFile(t, "SECURITY.md")
	var tests []string
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(moduleRoot(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]+`).FindAllString(page, -1)
	if len(named) == 0 {
		t.Error("SECURITY.md names no test")
	}
	for _, name := range named {
		if !slices.Contains(tests, name) {
			t.Errorf("SECURITY.md names %s, and there is no such test", name)
		}
	}
	for _, name := range tests {
		if strings.HasPrefix(name, "TestAttack") && !strings.HasPrefix(name, "TestAttacks") && !slices.Contains(named, name) {
			t.Errorf("SECURITY.md does not say what %s promises", name)
		}
	}
}
