package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kafka runs a Kafka in Java.
type kafka struct{ java }

// cluster is the identity of every cluster, most of which are one node.
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

// addresses are the settings that a container is given in its environment, and
// those of a node of Cluster: what is acked is on two nodes at least.
func addresses(b Broker) string {
	text := fmt.Sprintf(`
listeners=PLAINTEXT://%[1]s,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://%[1]s
`, b.Address(), b.Controller)
	if b.node == 0 {
		return text + fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d\n", b.Controller)
	}
	var voters []string
	for _, n := range Cluster(Kafka) {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", n.node, n.Controller))
	}
	return text + fmt.Sprintf(`controller.quorum.voters=%s
node.id=%d
broker.rack=%s
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
`, strings.Join(voters, ","), b.node, b.Name)
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
