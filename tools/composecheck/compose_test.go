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
	settings    = "integration/harness" // what a local process is given, a folder for each product
)

// local is a broker as it runs without a Docker engine.
type local struct {
	name, product, image         string
	port, management, controller int
	variable                     string
}

func TestComposeFile(t *testing.T) {
	for _, fault := range faults(load(t, composeFile), locals(t)) {
		t.Error(fault)
	}
}

// TestFaults breaks one promise of each kind: a check that never fails guards
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
		{"no settings", "- ./integration/harness/rabbitmq/20-redrive.conf:/etc/rabbitmq/conf.d/20-redrive.conf:ro", "", "does not mount 20-redrive.conf"},
		{"settings that a container may change", "enabled_plugins:ro", "enabled_plugins", "may write to"},
		{"other settings", "harness/rabbitmq/enabled_plugins:", "harness/probe.go:", "mounts"},
		{"no health check", "healthcheck: *rabbitmq-health", "", "has no health check"},
		{"no hostname", "hostname: rabbitmq4", "", "has no hostname of its own"},
		{"a broker more", "  rabbitmq4:\n", "  rabbitmq5: {image: \"rabbitmq:4.0.5\"}\n  rabbitmq4:\n", "rabbitmq5 has no local process"},
		{"Kafka's settings in another place", ":/mnt/shared/config/server.properties:ro", ":/etc/kafka/server.properties:ro", "where the image does not look"},
		{"an address that is not Kafka's", "KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://127.0.0.1:25676", "KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://127.0.0.1:25675", "has KAFKA_ADVERTISED_LISTENERS"},
		{"a setting more", "KAFKA_HEAP_OPTS: -Xmx512m", "KAFKA_HEAP_OPTS: -Xmx512m\n        KAFKA_NUM_PARTITIONS: 3", "has KAFKA_NUM_PARTITIONS"},
		{"Redis with another command", "command: [redis-server, /usr/local/etc/redis/redis.conf]", "command: [redis-server]", "does not run with its settings"},
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
		if _, err := fmt.Sscan(line, &b.name, &b.product, &b.image, &b.port, &b.management, &b.controller, &b.variable); err != nil {
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
	want := ports(b)
	var got []string
	for _, p := range service.Ports {
		got = append(got, fmt.Sprintf("%s:%s:%d", p.HostIP, p.Published, p.Target))
	}
	if !slices.Equal(got, want) {
		found = append(found, fmt.Sprintf("publishes %q, its local process listens as %q", got, want))
	}
	if b.product == "redis" && !slices.Equal(service.Command, []string{"redis-server", redisSettings + "redis.conf"}) {
		found = append(found, fmt.Sprintf("does not run with its settings: its command is %q", service.Command))
	}
	found = append(found, environmentFaults(service, b)...)
	return append(found, mountFaults(project, service, b)...)
}

// redisSettings is where the command of a Redis looks, which has no place of its
// own for settings.
const redisSettings = "/usr/local/etc/redis/"

// ports are what the container of a broker publishes. A Kafka tells clients,
// itself among them, its address, and an ElasticMQ the addresses of queues: those
// have to be the same inside and outside.
func ports(b local) []string {
	if b.product == "kafka" || b.product == "sqs" {
		return []string{fmt.Sprintf("127.0.0.1:%[1]d:%[1]d", b.port)}
	}
	if b.product == "redis" {
		return []string{fmt.Sprintf("127.0.0.1:%d:6379", b.port)}
	}
	return []string{fmt.Sprintf("127.0.0.1:%d:5672", b.port), fmt.Sprintf("127.0.0.1:%d:15672", b.management)}
}

// environmentFaults wants the settings that a broker's local process is given
// apart from the mounted file, and no others.
func environmentFaults(service types.ServiceConfig, b local) []string {
	want := map[string]string{"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-rabbit dead_letter_worker_publisher_confirm_timeout 5000"}
	switch b.product {
	case "sqs", "redis":
		want = map[string]string{}
	case "kafka":
		want = map[string]string{
			"CLUSTER_ID":                     "cmVkcml2ZS1oYXJuZXNzMQ",
			"KAFKA_LOG_DIRS":                 "/var/lib/kafka/data", // a volume of the image
			"KAFKA_HEAP_OPTS":                "-Xmx512m",
			"KAFKA_JVM_PERFORMANCE_OPTS":     "-XX:+UseSerialGC",
			"KAFKA_LISTENERS":                fmt.Sprintf("PLAINTEXT://0.0.0.0:%d,CONTROLLER://127.0.0.1:%d", b.port, b.controller),
			"KAFKA_ADVERTISED_LISTENERS":     fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", b.port),
			"KAFKA_CONTROLLER_QUORUM_VOTERS": fmt.Sprintf("1@127.0.0.1:%d", b.controller),
		}
	}
	var found []string
	for key, value := range service.Environment {
		if value == nil || want[key] != *value {
			found = append(found, fmt.Sprintf("has %s, its local process %q", key, want[key]))
		}
		delete(want, key)
	}
	for key := range want {
		found = append(found, "has no "+key)
	}
	return found
}

// mountFaults wants every file of the settings mounted, and nothing else.
func mountFaults(project *types.Project, service types.ServiceConfig, b local) []string {
	read := map[string]string{"kafka": "/mnt/shared/config/", "sqs": "/opt/", "redis": redisSettings}[b.product] // where the image does
	settings := settings + "/" + b.product
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
		if read != "" && v.Target != read+name {
			found = append(found, fmt.Sprintf("mounts %s as %s, where the image does not look", name, v.Target))
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
