package composecheck

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// composeBlock is a compose file in a page, with its name in the first line.
	composeBlock = regexp.MustCompile("(?s)```yaml\n# (compose\\.\\w+\\.yml)\n(.*?)```")

	// goTest is a command with the address that it tests.
	goTest = regexp.MustCompile(`(?m)^[A-Z_]+=\S+ go test .*$`)
)

// TestComposeFilesOfPages holds the compose files that users are given to the
// images that the tests run on.
func TestComposeFilesOfPages(t *testing.T) {
	const file = "../../docs/how-to/test-in-your-ci.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, service := range load(t, composeFile).Services {
		images = append(images, service.Image)
	}
	tested := strings.Join(goTest.FindAllString(string(page), -1), "\n")
	blocks := composeBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("%s has %d compose files, want one for each broker", file, len(blocks))
	}
	for _, block := range blocks {
		name := filepath.Join(t.TempDir(), block[1])
		if err := os.WriteFile(name, []byte(block[2]), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, service := range load(t, name).Services {
			if !slices.Contains(images, service.Image) {
				t.Errorf("%s runs %s, docker-compose.yml %q", block[1], service.Image, images)
			}
			if h := service.HealthCheck; h == nil || len(h.Test) < 2 {
				t.Errorf("%s: up --wait does not wait for %s, which has no health check", block[1], service.Name)
			}
			for _, p := range service.Ports {
				if address := p.HostIP + ":" + p.Published; !strings.Contains(tested, address) {
					t.Errorf("%s publishes %s, the tests go to\n%s", block[1], address, tested)
				}
			}
		}
	}
}
