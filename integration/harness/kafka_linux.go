package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// kafka runs a Kafka in Java.
type kafka struct{ java }

// cluster is the identity of every cluster, which is one node of its own.
const cluster = "cmVkcml2ZS1oYXJuZXNzMQ"

// prepare writes the settings, and formats the folder of the data if there is
// none: a Kafka does not start in one that was not.
func (k kafka) prepare(ctx context.Context, b Broker, root string) error {
	dir := k.path(b, "")
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return err
	}
	shared, err := settings.ReadFile("kafka/server.properties")
	if err != nil {
		return err
	}
	err = writeSettings(dir, map[string]string{
		"java/log4j.properties":  "log4j.properties",
		"java/log4j2.properties": "log4j2.properties",
	}, map[string]string{
		"server.properties": string(shared) + addresses(b) + "log.dirs=" + filepath.Join(dir, "data") + "\n",
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		return nil
	}
	format := exec.CommandContext(ctx, "java", k.arguments(b, root, "kafka.tools.StorageTool",
		"format", "--cluster-id", cluster, "--config", filepath.Join(dir, "server.properties"))...)
	return tied(format)
}

// addresses are the settings that a container is given in its environment.
func addresses(b Broker) string {
	return fmt.Sprintf(`
listeners=PLAINTEXT://%[1]s,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://%[1]s
controller.quorum.voters=1@127.0.0.1:%[2]d
`, b.Address(), b.Controller)
}

func (k kafka) command(b Broker, root string) *exec.Cmd {
	return k.process(b, k.arguments(b, root, "kafka.Kafka", filepath.Join(k.path(b, ""), "server.properties")))
}

func (k kafka) arguments(b Broker, root, program string, args ...string) []string {
	dir := k.path(b, "")
	return k.java.arguments(b, root, []string{
		"-Dlog4j.configuration=file:" + filepath.Join(dir, "log4j.properties"),
		"-Dlog4j2.configurationFile=" + filepath.Join(dir, "log4j2.properties"),
	}, program, args...)
}
