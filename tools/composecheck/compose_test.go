// Package composecheck holds docker-compose.yml to its promises where no
// Docker engine runs: it is valid by the schema of Compose, and its containers
// are the brokers that run as local processes otherwise. It has tests only.
package composecheck

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	composeFile = "../../docker-compose.yml"
	settings    = "integration/harness/rabbitmq" // what a local process is given
)

// local is a broker as it runs without a Docker engine.
type local struct {
	name, image      string
	port, management int
	variable         string
}

func TestComposeFile(t *testing.T) {
	for _, fault := range faults(load(t, composeFile), locals(t)) {
		t.Error(fault)
	}
}

// TestFaults breaks one promise at a time: a check that never fails guards
// nothing.
func TestFaults(t *testing.T) {
	whole, err := os.ReadFile(composeFile)
	if err != nil {
		t.Fatal(err)
	}
	brokers := locals(t)
	for _, tt := range []struct {
		name, from, to, want string
	}{
		{"another version", "rabbitmq:4.0.5-management", "rabbitmq:4.0.6-management", "runs rabbitmq:4.0.6-management"},
		{"a tag that moves", "rabbitmq:4.0.5-management", "rabbitmq:4-management", "is not an exact version"},
		{"a port for everyone", `"127.0.0.1:25674:5672"`, `"25674:5672"`, "publishes"},
		{"another port", `"127.0.0.1:25674:5672"`, `"127.0.0.1:5672:5672"`, "publishes"},
		{"no settings", "- ./integration/harness/rabbitmq/20-redrive.conf:/etc/rabbitmq/conf.d/20-redrive.conf:ro", "", "does not mount 20-redrive.conf"},
		{"settings that a container may change", "enabled_plugins:ro", "enabled_plugins", "may write to"},
		{"other settings", "harness/rabbitmq/enabled_plugins:", "harness/probe.go:", "mounts"},
		{"no health check", "healthcheck: *rabbitmq-health", "", "has no health check"},
		{"no hostname", "hostname: rabbitmq4", "", "has no hostname of its own"},
		{"a broker more", "  rabbitmq4:\n", "  rabbitmq5: {image: \"rabbitmq:4.0.5\"}\n  rabbitmq4:\n", "rabbitmq5 has no local process"},
		{"a broker less", "  rabbitmq4:\n", "  rabbitmq5:\n", "rabbitmq4 is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := strings.Replace(string(whole), tt.from, tt.to, 1)
			if broken == string(whole) {
				t.Fatalf("docker-compose.yml has no %q to break", tt.from)
			}
			file := filepath.Join(t.TempDir(), "docker-compose.yml")
			if err := os.WriteFile(file, []byte(broken), 0o644); err != nil {
				t.Fatal(err)
			}
			got := faults(load(t, file), brokers)
			if !slices.ContainsFunc(got, func(fault string) bool { return strings.Contains(fault, tt.want) }) {
				t.Errorf("faults %q, want one with %q", got, tt.want)
			}
		})
	}
}

// load reads a compose file as docker compose does, schema check included.
func load(t *testing.T, file string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("redrive"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatalf("docker-compose.yml is not valid: %v", err)
	}
	return project
}

// locals asks the harness, which lives in another module, for its brokers.
func locals(t *testing.T) []local {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "./integration/brokers", "list")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the brokers: %v", err)
	}
	var all []local
	for line := range strings.Lines(string(out)) {
		var b local
		if _, err := fmt.Sscan(line, &b.name, &b.image, &b.port, &b.management, &b.variable); err != nil {
			t.Fatalf("list the brokers: line %q: %v", line, err)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		t.Fatal("the harness has no brokers")
	}
	return all
}

// faults returns a sentence for every promise that the project breaks.
func faults(project *types.Project, brokers []local) []string {
	var found []string
	for _, b := range brokers {
		service, ok := project.Services[b.name]
		if !ok {
			found = append(found, b.name+" is missing")
			continue
		}
		for _, fault := range serviceFaults(project, service, b) {
			found = append(found, b.name+" "+fault)
		}
	}
	for name := range project.Services {
		if !slices.ContainsFunc(brokers, func(b local) bool { return b.name == name }) {
			found = append(found, name+" has no local process")
		}
	}
	return found
}

var exact = regexp.MustCompile(`:\d+\.\d+\.\d+(-[a-z]+)?$`)

func serviceFaults(project *types.Project, service types.ServiceConfig, b local) []string {
	var found []string
	if service.Image != b.image {
		found = append(found, fmt.Sprintf("runs %s, its local process is %s", service.Image, b.image))
	}
	if !exact.MatchString(service.Image) {
		found = append(found, fmt.Sprintf("runs %s, which is not an exact version", service.Image))
	}
	if service.Hostname != b.name {
		found = append(found, "has no hostname of its own, so that its data is lost with the container")
	}
	if h := service.HealthCheck; h == nil || h.Disable || len(h.Test) < 2 {
		found = append(found, "has no health check")
	}
	want := []string{fmt.Sprintf("127.0.0.1:%d:5672", b.port), fmt.Sprintf("127.0.0.1:%d:15672", b.management)}
	var got []string
	for _, p := range service.Ports {
		got = append(got, fmt.Sprintf("%s:%s:%d", p.HostIP, p.Published, p.Target))
	}
	if !slices.Equal(got, want) {
		found = append(found, fmt.Sprintf("publishes %q, its local process listens as %q", got, want))
	}
	return append(found, mountFaults(project, service)...)
}

// mountFaults wants every file of the settings mounted, and nothing else.
func mountFaults(project *types.Project, service types.ServiceConfig) []string {
	entries, err := os.ReadDir(filepath.Join("..", "..", filepath.FromSlash(settings)))
	if err != nil {
		return []string{err.Error()}
	}
	missing := map[string]bool{}
	for _, e := range entries {
		missing[e.Name()] = true
	}
	var found []string
	for _, v := range service.Volumes {
		name := filepath.Base(v.Source)
		if v.Source != filepath.Join(project.WorkingDir, filepath.FromSlash(settings), name) || !missing[name] {
			found = append(found, fmt.Sprintf("mounts %s, which is not in %s", v.Source, settings))
		}
		if !v.ReadOnly {
			found = append(found, "may write to "+v.Target)
		}
		delete(missing, name)
	}
	for name := range missing {
		found = append(found, "does not mount "+name)
	}
	return found
}
