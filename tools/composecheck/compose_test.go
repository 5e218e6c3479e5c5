// Package composecheck holds compose files to what the tests run on, where no
// Docker engine reads them. It has tests only.
package composecheck

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
// the schema finds valid. Any other fails the test. Clients of the repository's
// files connect to the brokers of the list.
func composeFiles(t *testing.T, list string) (files []composeFile) {
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
		load(path, path, list)
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

// TestComposeFiles demands that docker-compose.yml, and the files that a page
// gives to users, are valid, run what the local processes run, and have the same
// settings. They start on any machine, and listen on loopback where the tests go.
func TestComposeFiles(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "run", "./integration/brokers", "list")
	command.Dir = root
	text, err := command.Output()
	if err != nil {
		t.Fatalf("list the brokers: %v", err)
	}
	list, services := string(text), 0 // with a line for each broker
	var minutes time.Duration         // that the harness waits for a broker
	_, after, _ := strings.Cut(read(t, filepath.Join(root, "integration/harness/harness.go")), "\tstartTimeout = ")
	if _, err := fmt.Sscanf(after, "%d * time.Minute\n", &minutes); err != nil {
		t.Fatalf("harness.go has no startTimeout: %v", err)
	}
	settings := map[string]string{ // of the local processes
		"rabbitmq": "rabbitmq/20-redrive.conf", "rabbitmq-plugins": "rabbitmq/enabled_plugins", "kafka": "kafka/server.properties",
		"elasticmq": "sqs/elasticmq.conf", "elasticmq-log": "sqs/logback.xml", "redis": "redis/redis.conf",
	}
	for _, file := range composeFiles(t, list) {
		for _, s := range file.project.Services {
			services++
			wrong := func(is bool, format string, args ...any) {
				if is {
					t.Errorf("%s: %s "+format, append([]any{file.from, s.Name}, args...)...)
				}
			}
			wrong(!strings.Contains(list, " "+s.Image+" "), "runs %s, want an image of\n%s", s.Image, list)
			for _, port := range s.Ports {
				wrong(port.HostIP != "127.0.0.1" || !strings.Contains(file.named, port.Published), "publishes %+v, not on loopback, or for no client", port)
			}
			if s.HealthCheck == nil || s.HealthCheck.StartPeriod == nil {
				wrong(true, "has the health check %+v, want one with a start_period", s.HealthCheck)
				continue
			}
			wrong(time.Duration(*s.HealthCheck.StartPeriod) < minutes*time.Minute, "counts as unhealthy before the harness gives up")
			// If a check as root runs before the server, it makes the Erlang
			// cookie, and the server cannot read that.
			check := strings.Join(s.HealthCheck.Test, " ")
			wrong(strings.HasPrefix(s.Image, "rabbitmq:") && !strings.HasPrefix(check, "CMD gosu rabbitmq "), "is checked by %q, as root", check)
			// Engines allow from 1,024 files to a billion by default. RabbitMQ does
			// not start with few, nor with so many. An engine without privileges
			// cannot give more than it has itself, such as 20,000.
			files := s.Ulimits["nofile"]
			wrong(files == nil || files.Single < 8192 || files.Single > 20_000, "may open %+v files, want a limit of 8,192 to 20,000", files)
			wrong(s.MemLimit < 256<<20, "has the memory limit %d, want at least 256 MiB", s.MemLimit)
			// A file of a clone under umask 077 or SELinux is closed to a container,
			// and an engine on another machine has no such file.
			for _, volume := range s.Volumes {
				wrong(volume.Type == types.VolumeTypeBind, "mounts %s, want its text in configs", volume.Source)
			}
			for _, config := range s.Configs {
				wrong(file.project.Configs[config.Source].Content == "", "has the config %s, which is a file, want its text", config.Source)
			}
		}
		for name, config := range file.project.Configs {
			path := settings[name]
			delete(settings, name)
			if path == "" || config.Content != bare(read(t, filepath.Join(root, "integration/harness", path))) {
				t.Errorf("%s: the config %s is\n%s\nwhich %q of the harness has not", file.from, name, config.Content, path)
			}
		}
	}
	if want := strings.Count(list, "\n") + 3; services != want || len(settings) > 0 {
		t.Errorf("found %d services, want %d: one for each broker, and for each product of the page; without a config: %v", services, want, settings)
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
