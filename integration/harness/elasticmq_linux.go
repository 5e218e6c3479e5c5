package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// elasticmq runs an ElasticMQ in Java. It keeps nothing when it ends.
type elasticmq struct{ java }

func (e elasticmq) prepare(_ context.Context, b Broker, _ string) error {
	dir := e.path(b, "")
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return err
	}
	return writeSettings(dir, map[string]string{"sqs/elasticmq.conf": "elasticmq.conf", "sqs/logback.xml": "logback.xml"}, nil)
}

func (e elasticmq) command(b Broker, root string) *exec.Cmd {
	return e.process(b, e.arguments(b, root, e.properties(b), "org.elasticmq.server.Main"))
}

// properties go before what the settings say.
func (e elasticmq) properties(b Broker) []string {
	return []string{
		"-Dconfig.file=" + filepath.Join(e.path(b, ""), "elasticmq.conf"),
		"-Dlogback.configurationFile=" + filepath.Join(e.path(b, ""), "logback.xml"),
		"-Drest-sqs.bind-hostname=127.0.0.1",
		fmt.Sprintf("-Drest-sqs.bind-port=%d", b.Port),
		fmt.Sprintf("-Dnode-address.port=%d", b.Port),
	}
}
