package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// java runs brokers from the Java artifacts that their projects publish. The
// process is the one on record and starts no other.
type java struct{ *local }

// run is what the process begins with.
const run = `
read -r recorded
exec java "$@"
`

// machine is what the Java machine of a broker is given, of a Kafka in a
// container too.
func machine() []string { return []string{"-Xmx512m", "-XX:+UseSerialGC"} }

// artifacts are what a broker in Java consists of.
type artifacts struct {
	title     string // for people
	folder    string // in the cache
	model     string // the file for Maven, which names them
	versions  []string
	megabytes int
}

func artifactsOf(b Broker) artifacts {
	versions := []string{"-Dbroker.version=" + b.release()}
	if b.Product == SQS {
		return artifacts{"ElasticMQ", "elasticmq-" + b.release(), "java/elasticmq.xml", versions, 40}
	}
	logging := strings.Split(b.logging, ":")
	versions = append(versions, "-Dlogging.group="+logging[0], "-Dlogging.artifact="+logging[1], "-Dlogging.version="+logging[2])
	return artifacts{"Apache Kafka", "kafka-" + b.release(), "java/kafka.xml", versions, 50}
}

func (j java) root(b Broker) string { return filepath.Join(j.cache, artifactsOf(b).folder) }

func (j java) present(_ context.Context, b Broker) bool {
	_, err := os.Stat(j.root(b))
	return err == nil
}

// install returns the folder with the artifacts, and lets Maven fetch them
// first if the cache does not have them. It is made beside its place and moved
// there when it is whole.
func (j java) install(ctx context.Context, b Broker) (string, error) {
	if !has("java") {
		return "", errLacks("java")
	}
	a, root := artifactsOf(b), j.root(b)
	if j.present(ctx, b) {
		return root, nil
	}
	if !has("mvn") {
		return "", errLacks("mvn")
	}
	fmt.Fprintf(j.log, "%s: fetching %s %s to %s (once, about %d MB)\n", b.Name, a.title, b.release(), root, a.megabytes)
	if err := os.RemoveAll(root + partial); err != nil {
		return "", err
	}
	if err := os.Mkdir(root+partial, 0o755); err != nil {
		return "", err
	}
	if err := writeSettings(root+partial, map[string]string{a.model: "pom.xml"}, nil); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	args := append([]string{"--quiet", "--batch-mode", "--strict-checksums", "--file", filepath.Join(root+partial, "pom.xml")}, a.versions...)
	cmd := exec.CommandContext(ctx, "mvn", append(args,
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+root+partial)...)
	if err := tied(cmd); err != nil {
		return "", err
	}
	return root, os.Rename(root+partial, root)
}

// process is the command that runs a broker with the arguments of its machine.
func (j java) process(b Broker, args []string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-ec", run, "sh"}, args...)...)
	cmd.Dir = j.path(b, "") // for what a machine writes when it crashes
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// arguments run a program of a broker that leaves nothing outside its folder.
func (j java) arguments(b Broker, root string, properties []string, program string, args ...string) []string {
	all := append(machine(), "-XX:-UsePerfData", "-Djava.io.tmpdir="+filepath.Join(j.path(b, ""), "tmp"))
	all = append(all, properties...)
	all = append(all, "-cp", filepath.Join(root, "*"), program)
	return append(all, args...)
}

// await has nothing to wait for: what answers a probe has started. A Kafka
// lists itself then, an ElasticMQ its queues.
func (j java) await(context.Context, Broker) error { return nil }
