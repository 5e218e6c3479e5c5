package deptest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// core is what the smallest useful application imports.
var core = []string{"consumer", "brokers/memory"}

// TestApplicationOnTheCore builds an application that imports the core alone
// and demands that its go.mod and go.sum take in no third party. The build of
// the application is offline; only the modules that this one requires are
// fetched before, if they are not in the cache.
func TestApplicationOnTheCore(t *testing.T) {
	root := moduleRoot(t)
	// The test cache sees the module's files through load, not through the go command.
	if _, err := load(root); err != nil {
		t.Fatal(err)
	}
	alone := []string{"GOWORK=off"}
	goCommand(t, root, alone, "mod", "graph")
	goCommand(t, root, alone, "list", "-deps", "-test", "./"+core[0], "./"+core[1])

	app, imports := t.TempDir(), ""
	for _, dir := range core {
		imports += fmt.Sprintf("import _ %q\n", modulePath+"/"+dir)
	}
	for name, text := range map[string]string{
		"go.mod":  fmt.Sprintf("module app.example\n\ngo 1.26\n\nrequire %s v0.0.0\n\nreplace %s => %q\n", modulePath, modulePath, root),
		"main.go": "package main\n\n" + imports + "\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(app, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	offline := []string{"GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off"}
	goCommand(t, app, offline, "mod", "tidy")
	goCommand(t, app, offline, "build", "-o", os.DevNull, ".")

	modules := goCommand(t, app, offline, "mod", "edit", "-print")
	sums, err := os.ReadFile(filepath.Join(app, "go.sum"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, line := range thirdParties(modules + string(sums)) {
		t.Errorf("an application on the core takes in a third party: %s", line)
	}
}

// mostRequirements is how many modules users get, besides what those require.
const mostRequirements = 9

// TestRequirements demands that every direct requirement of the module is one of
// the SDKs in the house, and that they are few: what only tests, examples or a
// command need is in a module of its own.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var sdks []string
	for dir, r := range house {
		if !within(dir, "operate") { // which has a go.mod of its own
			sdks = append(sdks, r.sdk...)
		}
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		module, required := strings.CutPrefix(line, "\t")
		if !required || strings.Contains(line, "// indirect") {
			continue
		}
		found++
		module, _, _ = strings.Cut(module, " ")
		if !slices.ContainsFunc(sdks, func(sdk string) bool { return within(module, sdk) }) {
			t.Errorf("go.mod requires %s, which is no SDK of the house: every user gets it", module)
		}
	}
	if found < 5 || found > mostRequirements {
		t.Errorf("found %d direct requirements in go.mod, want those of all adapters, and at most %d", found, mostRequirements)
	}
}

// required is a module in a go.mod, as the go command prints it, or in a go.sum.
var required = regexp.MustCompile(`(?m)^(?:require |\t)?(\S+) v\d.*$`)

// thirdParties returns the lines of a go.mod or a go.sum that name a module which
// is neither this one nor of golang.org/x.
func thirdParties(text string) (lines []string) {
	for _, match := range required.FindAllStringSubmatch(text, -1) {
		if match[1] != modulePath && !strings.HasPrefix(match[1], extended) {
			lines = append(lines, strings.TrimSpace(match[0]))
		}
	}
	return lines
}

// goCommand runs the go command in a directory and returns its standard output.
func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
