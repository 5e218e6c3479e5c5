// Package composecheck holds compose files to what the tests run on, where no
// Docker engine reads them. It has tests only.
package composecheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

// composeBlock is a compose file in a page, with its name in the first line.
var composeBlock = regexp.MustCompile("(?s)```yaml\n(# compose\\.\\w+\\.yml\n.*?)```")

// TestComposeFiles demands that docker-compose.yml, and the files that a page
// gives to users, are valid, run what the local processes run, let up --wait
// wait, and listen on loopback where the tests go.
func TestComposeFiles(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "run", "./integration/brokers", "list")
	list.Dir = filepath.Join("..", "..")
	brokers, err := list.Output()
	if err != nil {
		t.Fatalf("list the brokers: %v", err)
	}
	page, err := os.ReadFile("../../docs/how-to/test-in-your-ci.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"../../docker-compose.yml": string(brokers)} // and where its ports are named
	for _, block := range composeBlock.FindAllSubmatch(page, -1) {
		file := filepath.Join(t.TempDir(), "compose.yml")
		if err := os.WriteFile(file, block[1], 0o644); err != nil {
			t.Fatal(err)
		}
		files[file] = composeBlock.ReplaceAllString(string(page), "")
	}
	services := 0
	for file, named := range files {
		options, err := cli.NewProjectOptions([]string{file}, cli.WithName("redrive"))
		if err != nil {
			t.Fatal(err)
		}
		project, err := options.LoadProject(t.Context()) // checks the schema
		if err != nil {
			t.Errorf("%s is not valid: %v", file, err)
			continue
		}
		for _, service := range project.Services {
			services++
			if !strings.Contains(string(brokers), " "+service.Image+" ") || service.HealthCheck == nil {
				t.Errorf("%s: %s runs %s with the health check %v, want one, and an image of\n%s", file, service.Name, service.Image, service.HealthCheck, brokers)
			}
			for _, port := range service.Ports {
				if port.HostIP != "127.0.0.1" || !strings.Contains(named, port.Published) {
					t.Errorf("%s: %s publishes %s:%s, which is not on loopback or nobody goes there", file, service.Name, port.HostIP, port.Published)
				}
			}
		}
	}
	if want := strings.Count(string(brokers), "\n") + 3; services != want {
		t.Errorf("found %d services, want %d: one for each broker, and for each product of the page", services, want)
	}
}
