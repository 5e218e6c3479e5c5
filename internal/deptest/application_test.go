package deptest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

	app := t.TempDir()
	writeFile(t, app, "go.mod", fmt.Sprintf("module app.example\n\ngo 1.26\n\nrequire %s v0.0.0\n\nreplace %s => %q\n", modulePath, modulePath, root))
	writeFile(t, app, "main.go", application(core))
	offline := []string{"GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off"}
	goCommand(t, app, offline, "mod", "tidy")
	goCommand(t, app, offline, "build", "-o", os.DevNull, ".")

	modules := goCommand(t, app, offline, "mod", "edit", "-print")
	sums, err := os.ReadFile(filepath.Join(app, "go.sum"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, line := range thirdParties(modules, string(sums)) {
		t.Errorf("an application on the core takes in a third party: %s", line)
	}
}

// TestRequirements demands that every direct requirement of the module is one of
// the SDKs in the house: what only tests, examples or a command need is in a
// module of its own.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var sdks []string
	for _, r := range house {
		sdks = append(sdks, r.sdk...)
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
	if found < 5 {
		t.Errorf("found %d direct requirements in go.mod, want those of all adapters", found)
	}
}

func application(packages []string) string {
	var source strings.Builder
	source.WriteString("package main\n\n")
	for _, dir := range packages {
		fmt.Fprintf(&source, "import _ %q\n", modulePath+"/"+dir)
	}
	source.WriteString("\nfunc main() {}\n")
	return source.String()
}

// thirdParties returns the requirements of a go.mod, as the go command prints
// it, and the lines of a go.sum that name neither this module nor golang.org/x.
func thirdParties(goMod, goSum string) []string {
	var found []string
	inBlock := false
	for line := range strings.Lines(goMod) {
		line = strings.TrimSpace(line)
		requirement, single := strings.CutPrefix(line, "require ")
		switch {
		case line == "require (":
			inBlock = true
		case line == ")":
			inBlock = false
		case (inBlock || single) && isThirdParty(requirement):
			found = append(found, "go.mod: "+requirement)
		}
	}
	for line := range strings.Lines(goSum) {
		if line = strings.TrimSpace(line); isThirdParty(line) {
			found = append(found, "go.sum: "+line)
		}
	}
	return found
}

func isThirdParty(line string) bool {
	return line != "" && !strings.HasPrefix(line, extended) && !strings.HasPrefix(line, modulePath+" ")
}

func TestThirdParties(t *testing.T) {
	const own = "require " + modulePath + " v0.0.0\n"
	tests := []struct {
		name         string
		goMod, goSum string
		want         []string
	}{
		{"own module only", "module app.example\n\ngo 1.26\n\n" + own + "\nreplace " + modulePath + " => /somewhere\n", "", nil},
		{"extended library", own + "\nrequire golang.org/x/time v0.1.0 // indirect\n", "golang.org/x/time v0.1.0 h1:a=\n", nil},
		{"block", own + "\nrequire (\n\tgolang.org/x/sync v0.1.0 // indirect\n\tgithub.com/acme/sdk v1.0.0 // indirect\n)\n", "", []string{"go.mod: github.com/acme/sdk v1.0.0 // indirect"}},
		{"single line", own + "require github.com/acme/sdk v1.0.0\n", "", []string{"go.mod: github.com/acme/sdk v1.0.0"}},
		{"fork of this module", "require " + modulePath + "-fork v1.0.0\n", "", []string{"go.mod: " + modulePath + "-fork v1.0.0"}},
		{"checksum alone", own, "github.com/acme/sdk v1.0.0/go.mod h1:a=\n", []string{"go.sum: github.com/acme/sdk v1.0.0/go.mod h1:a="}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := thirdParties(tt.goMod, tt.goSum); !slices.Equal(got, tt.want) {
				t.Errorf("third parties = %q, want %q", got, tt.want)
			}
		})
	}
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

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
