// Package composecheck holds compose files to what the tests run on, where no
// Docker engine reads them. It has tests only.
package composecheck

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const root = "../.."

// composeFile is a compose file of the repository, or of a page.
type composeFile struct {
	from    string // the file or the page
	project *types.Project
	named   string // the text that names the ports which clients connect to
}

// composeBlock is a compose file in a page.
var composeBlock = regexp.MustCompile("(?ms)^```ya?ml\n([^`]*^services:\n[^`]*)^```")

// composeFiles returns every compose file of the repository and its pages that
// the schema finds valid. Any other fails the test.
func composeFiles(t *testing.T) (files []composeFile) {
	t.Helper()
	load := func(from, path, named string) {
		options, err := cli.NewProjectOptions([]string{path}, cli.WithName("redrive"))
		if err != nil {
			t.Fatal(err)
		}
		project, err := options.LoadProject(t.Context()) // checks the schema
		if err != nil {
			t.Errorf("%s is not valid: %v", from, err)
			return
		}
		files = append(files, composeFile{from, project, named})
	}
	for _, path := range find(t, func(name string) bool {
		return strings.Contains(name, "compose") && (strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".yaml"))
	}) {
		load(path, path, brokers(t))
	}
	for _, page := range find(t, func(name string) bool { return strings.HasSuffix(name, ".md") }) {
		text := read(t, page)
		for _, block := range composeBlock.FindAllStringSubmatch(text, -1) {
			path := filepath.Join(t.TempDir(), "compose.yml")
			if err := os.WriteFile(path, []byte(block[1]), 0o644); err != nil {
				t.Fatal(err)
			}
			load(page, path, composeBlock.ReplaceAllString(text, ""))
		}
	}
	return files
}

// find returns the files of the repository whose names the function wanted
// accepts.
func find(t *testing.T, wanted func(name string) bool) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !entry.IsDir() && wanted(entry.Name()) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// brokers returns the list of the harness's brokers, with a line for each.
func brokers(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "run", "./integration/brokers", "list")
	list.Dir = root
	text, err := list.Output()
	if err != nil {
		t.Fatalf("list the brokers: %v", err)
	}
	return string(text)
}

// TestComposeFiles demands that docker-compose.yml, and the files that a page
// gives to users, are valid, run what the local processes run, let up --wait
// wait, and listen on loopback where the tests go.
func TestComposeFiles(t *testing.T) {
	list, services := brokers(t), 0
	for _, file := range composeFiles(t) {
		for _, service := range file.project.Services {
			services++
			if !strings.Contains(list, " "+service.Image+" ") || service.HealthCheck == nil {
				t.Errorf("%s: %s runs %s with the health check %v, want a health check, and an image of\n%s", file.from, service.Name, service.Image, service.HealthCheck, list)
			}
			for _, port := range service.Ports {
				if port.HostIP != "127.0.0.1" || !strings.Contains(file.named, port.Published) {
					t.Errorf("%s: %s publishes %s:%s, which is not on loopback, or which no client uses", file.from, service.Name, port.HostIP, port.Published)
				}
			}
		}
	}
	if want := strings.Count(list, "\n") + 3; services != want {
		t.Errorf("found %d services, want %d: one for each broker, and for each product of the page", services, want)
	}
}

// startTimeout finds how long the harness waits for a broker, in minutes.
var startTimeout = regexp.MustCompile(`(?m)^\tstartTimeout = (\d+) \* time\.Minute$`)

// TestContainersStartOnAnyMachine checks the settings without which some
// engine, or some mode of a clone, has broken a broker.
func TestContainersStartOnAnyMachine(t *testing.T) {
	minutes := startTimeout.FindStringSubmatch(read(t, filepath.Join(root, "integration/harness/harness.go")))
	if minutes == nil {
		t.Fatalf("harness.go has no %v", startTimeout)
	}
	patience, err := time.ParseDuration(minutes[1] + "m")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range composeFiles(t) {
		for _, s := range file.project.Services {
			// If a check as root runs before the server, it makes the Erlang
			// cookie, and the server cannot read that.
			asUser := []string{"CMD", "gosu", "rabbitmq"}
			if check := s.HealthCheck; strings.HasPrefix(s.Image, "rabbitmq:") && !slices.Equal(check.Test[:min(len(check.Test), len(asUser))], asUser) {
				t.Errorf("%s: the health check of %s is %q, want it to begin with %q", file.from, s.Name, check.Test, asUser)
			}
			if start := s.HealthCheck.StartPeriod; start == nil || time.Duration(*start) < patience {
				t.Errorf("%s: %s counts as unhealthy before the harness gives up, after %v: start_period %v", file.from, s.Name, patience, start)
			}
			// Engines allow from 1,024 files to a billion by default. RabbitMQ does
			// not start with few, nor with so many. An engine without privileges
			// cannot give more than it has itself, such as 20,000.
			if files := s.Ulimits["nofile"]; files == nil || files.Single < 8192 || files.Single > 20_000 {
				t.Errorf("%s: %s may open %+v files, want a limit of 8,192 to 20,000", file.from, s.Name, files)
			}
			if s.MemLimit < 256<<20 {
				t.Errorf("%s: %s has the memory limit %d, want at least 256 MiB", file.from, s.Name, s.MemLimit)
			}
			// A file of a clone under umask 077 or SELinux is closed to a container,
			// and an engine on another machine has no such file.
			for _, volume := range s.Volumes {
				if volume.Type == types.VolumeTypeBind {
					t.Errorf("%s: %s mounts %s, want its text in configs", file.from, s.Name, volume.Source)
				}
			}
			for _, config := range s.Configs {
				if file.project.Configs[config.Source].Content == "" {
					t.Errorf("%s: %s has the config %s, which is a file, want its text", file.from, s.Name, config.Source)
				}
			}
		}
	}
}

// TestContainersHaveTheSameSettings compares the settings of the containers
// with the files for the local processes, without the comments there.
func TestContainersHaveTheSameSettings(t *testing.T) {
	want := map[string]string{
		"rabbitmq": "rabbitmq/20-redrive.conf", "rabbitmq-plugins": "rabbitmq/enabled_plugins",
		"kafka":     "kafka/server.properties",
		"elasticmq": "sqs/elasticmq.conf", "elasticmq-log": "sqs/logback.xml",
		"redis": "redis/redis.conf",
	}
	for _, file := range composeFiles(t) {
		for name, config := range file.project.Configs {
			path, ok := want[name]
			if !ok {
				t.Errorf("%s: no file of the harness has the settings of the config %s", file.from, name)
				continue
			}
			delete(want, name)
			if got, settings := config.Content, bare(read(t, filepath.Join(root, "integration/harness", path))); got != settings {
				t.Errorf("%s: the config %s is\n%s\nand %s has\n%s", file.from, name, got, path, settings)
			}
		}
	}
	for name, path := range want {
		t.Errorf("no compose file has the config %s, of %s", name, path)
	}
}

var comments = regexp.MustCompile(`(?s)<!--.*?-->\n?|(?-s)[ \t]*#.*`)

// bare is the text of settings without comments and empty lines.
func bare(settings string) (text string) {
	for line := range strings.Lines(comments.ReplaceAllString(settings, "")) {
		if strings.TrimSpace(line) != "" {
			text += line
		}
	}
	return text
}

// TestDownRemovesVolumes demands that no command of a page leaves the anonymous
// volumes of its containers behind.
func TestDownRemovesVolumes(t *testing.T) {
	command := regexp.MustCompile(`(?m)^docker compose .*\bdown\b.*$`)
	found := 0
	for _, page := range find(t, func(name string) bool { return strings.HasSuffix(name, ".md") }) {
		for _, down := range command.FindAllString(read(t, page), -1) {
			if found++; !strings.Contains(down, "--volumes") {
				t.Errorf("%s: %s, want --volumes", page, down)
			}
		}
	}
	if found == 0 {
		t.Error("no page has docker compose down")
	}
}
