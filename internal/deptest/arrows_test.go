package deptest

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.." // of the module

func TestArrowsPointDown(t *testing.T) {
	pkgs := slices.Concat(load(t, "."), load(t, "operate"), load(t, "tracing"), load(t, "lab"))
	for _, v := range violations(pkgs, house) {
		t.Error(v)
	}
	for dir := range house {
		if !slices.ContainsFunc(pkgs, func(p pkg) bool { return p.dir == dir }) {
			t.Errorf("row of the house without a package: %s", dir)
		}
	}
}

// TestApplicationOnTheCore builds an application that imports the core alone
// and demands that its go.mod and go.sum take in no third party. The build of
// the application is offline; only the modules that this one requires are
// fetched before, if they are not in the cache.
func TestApplicationOnTheCore(t *testing.T) {
	core := []string{modulePath + "/consumer", modulePath + "/brokers/memory"}
	load(t, ".") // the test cache does not see what files the go command reads
	goCommand(t, root, "", "mod", "graph")
	goCommand(t, root, "", "list", "-deps", "-test", core[0], core[1])

	app, module := t.TempDir(), "module app.example\n\ngo 1.26\n\nrequire %[1]s v0.0.0\n\nreplace %[1]s => %[2]q\n"
	path, err := filepath.Abs(root)
	for name, text := range map[string]string{
		"go.mod":  fmt.Sprintf(module, modulePath, path),
		"main.go": fmt.Sprintf("package main\n\nimport _ %q\nimport _ %q\n\nfunc main() {}\n", core[0], core[1]),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(app, name), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	goCommand(t, app, "off", "mod", "tidy")
	goCommand(t, app, "off", "build", "-o", os.DevNull, ".")

	modules := goCommand(t, app, "off", "mod", "edit", "-print")
	sums, err := os.ReadFile(filepath.Join(app, "go.sum"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	// A module in a go.mod, as the go command prints it, or in a go.sum.
	required := regexp.MustCompile(`(?m)^(?:require |\t)?(\S+) v\d.*$`)
	for _, match := range required.FindAllStringSubmatch(modules+string(sums), -1) {
		if match[1] != modulePath && !strings.HasPrefix(match[1], extended) {
			t.Errorf("an application on the core takes in a third party: %s", match[0])
		}
	}
}

// goCommand runs the go command in a directory and returns its standard output.
func goCommand(t *testing.T, dir, proxy string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if proxy != "" {
		cmd.Env = append(cmd.Env, "GOPROXY="+proxy, "GOFLAGS=-mod=mod", "GOSUMDB=off")
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// TestRequirements demands that every direct requirement of the module is one of
// the SDKs in the house, and that they are few, besides what those require: what
// only tests, examples or a command need is in a module of its own.
func TestRequirements(t *testing.T) {
	const most = 9
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var sdks []string
	for dir, r := range house {
		if !within(dir, "operate") && !within(dir, "tracing") { // which have a go.mod of their own
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
	if found < 5 || found > most {
		t.Errorf("found %d direct requirements in go.mod, want those of all adapters, and at most %d", found, most)
	}
}

func TestViolations(t *testing.T) {
	ours := func(dir string) string { return modulePath + "/" + dir }
	tests := []struct {
		name string
		pkg  pkg
		want string // a part of the only violation; "" for none
	}{
		{"arrow upwards", pkg{dir: "classify", imports: []string{ours("retry")}}, "classify imports retry"},
		{"arrow to a longer path", pkg{dir: "consumer", imports: []string{ours("brokers/memory")}}, "consumer imports brokers/memory"},
		{"arrow to the module's root", pkg{dir: "dlq", imports: []string{modulePath}}, "dlq imports " + modulePath},
		{"look-alike of the extended library", pkg{dir: "dlq", imports: []string{"golang.org/xtra"}}, "dlq imports golang.org/xtra"},
		{"look-alike of this module", pkg{dir: "dlq", imports: []string{modulePath + "-fork/brokers"}}, "-fork/brokers"},
		{"third party in a test", pkg{dir: "brokers", testImports: []string{"github.com/stretchr/testify/require"}}, "brokers (test) imports github.com/stretchr"},
		{"testing in production", pkg{dir: "brokers", imports: []string{"testing"}}, "brokers imports testing"},
		{"testing in a test kit", pkg{dir: "brokers/brokertest", imports: []string{"testing", ours("brokers")}}, ""},
		{"lab in the command", pkg{dir: "operate/cmd/redrive", testImports: []string{ours("lab/proof")}}, "operate/cmd/redrive imports lab/proof"},
		{"internal package in the lab", pkg{dir: "lab/proof", imports: []string{ours("internal/text")}}, "lab/proof imports internal/text"},
		{"internal package in the command", pkg{dir: "operate/proof", testImports: []string{ours("brokers/internal/adapter")}}, "operate/proof imports brokers/internal/adapter: it uses public packages"},
		{"internal package of the command", pkg{dir: "operate/cmd/redrive", imports: []string{ours("operate/internal/web")}}, ""},
		{"internal package of the lab", pkg{dir: "lab/bench/kafka", imports: []string{ours("lab/bench/internal/meter")}}, ""},
		{"test with too much", pkg{dir: "dlq", testImports: []string{ours("consumer")}}, "dlq (test) imports consumer"},
		{"SDK of another", pkg{dir: "brokers/rabbitmq", imports: []string{"github.com/aws/smithy-go"}}, "brokers/rabbitmq imports github.com/aws/smithy-go"},
		{"package without a row", pkg{dir: "brokers/other"}, "brokers/other has no row"},
	}
	for _, tt := range tests {
		got := violations([]pkg{tt.pkg}, house)
		if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
			t.Errorf("%s: violations = %q, want one with %q, if anything", tt.name, got, tt.want)
		}
	}
}

// load reads the imports of every Go file of a module. It parses the files instead of
// asking the go command, so that files for other systems and build tags count too, and
// so that the test cache notices when one of them changes.
func load(t *testing.T, module string) []pkg {
	t.Helper()
	found := map[string]*pkg{}
	err := fs.WalkDir(os.DirFS(filepath.Join(root, module)), ".", func(file string, entry fs.DirEntry, err error) error {
		name := filepath.Join(root, module, file)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && outside(name):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(file) != ".go":
			return nil
		}
		dir := path.Join(module, path.Dir(file))
		if found[dir] == nil {
			found[dir] = &pkg{dir: dir}
		}
		imports := &found[dir].imports
		if strings.HasSuffix(file, "_test.go") {
			imports = &found[dir].testImports
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			path, _ := strconv.Unquote(spec.Path.Value) // the parser has done it
			*imports = append(*imports, path)
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("module %s: %d packages: %v", module, len(found), err)
	}
	var pkgs []pkg
	for _, p := range found {
		pkgs = append(pkgs, *p)
	}
	return pkgs
}

// outside reports whether the go command would not take a directory for a part
// of the module around it.
func outside(dir string) bool {
	name := filepath.Base(dir)
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_' || err == nil
}
