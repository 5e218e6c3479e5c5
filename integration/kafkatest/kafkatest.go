// Package kafkatest gives tests Kafkas of their own, which encrypt and want logins.
// Each makes its certificates when it starts.
package kafkatest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/freeport"
	"github.com/redrive-go/redrive/integration/harness"
)

// User logs in with Password, and with no other.
const User, Password = "billing", "pa55-of-billing"

// Server is a Kafka of one node, with an address for each way to connect.
type Server struct {
	Plain  string // neither TLS nor a login
	TLS    string // TLS
	Mutual string // TLS, and clients show a certificate
	Login  string // TLS, and User logs in by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	Scram  string // no TLS, and User logs in by SCRAM-SHA-256 or SCRAM-SHA-512

	// Files in PEM. CA is the authority of the server, and of the client whose
	// certificate and key are in Cert and Key. OtherCA is an authority that has
	// signed no certificate here.
	CA, Cert, Key, OtherCA string

	controller, dir string
}

// New starts a Kafka of the version of b, until the end of the test. Without its
// programs the test ends here: it is skipped, or fails where CI=true.
func New(tb testing.TB, b harness.Broker) *Server {
	tb.Helper()
	programs, err := harness.KafkaPrograms(tb.Context(), b, tb.Output())
	switch {
	case err != nil && os.Getenv("CI") == "true":
		tb.Fatalf("start %s for this test: %v", b.Name, err)
	case err != nil:
		tb.Skipf("start %s for this test: %v", b.Name, err)
	}
	s := &Server{dir: tb.TempDir()}
	addresses := []*string{&s.Plain, &s.TLS, &s.Mutual, &s.Login, &s.Scram, &s.controller}
	ports, err := freeport.Ports(len(addresses))
	if err != nil {
		tb.Fatal(err)
	}
	for i, address := range addresses {
		*address = net.JoinHostPort("127.0.0.1", ports[i])
	}
	if err := s.certify(); err != nil {
		tb.Fatal(err)
	}
	settings := filepath.Join(s.dir, "server.properties")
	if err := os.WriteFile(settings, []byte(s.settings()), 0o600); err != nil {
		tb.Fatal(err)
	}
	java := []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-Djava.io.tmpdir=" + s.dir, "-cp", filepath.Join(programs, "*")}
	format := append(java, "kafka.tools.StorageTool", "format", "--cluster-id", "cmVkcml2ZS1rYWZrYXRlc3", "--config", settings)
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		format = append(format, "--add-scram", mechanism+"=[name="+User+",password="+Password+"]")
	}
	if out, err := exec.Command("java", format...).CombinedOutput(); err != nil {
		tb.Fatalf("prepare %s: %v\n%s", b.Name, err, out)
	}
	s.start(tb, b, append(java, "kafka.Kafka", settings))
	return s
}

// guarded runs a server until its input ends. The input ends with the process
// of the test, even if that is killed.
const guarded = `java "$@" <&- & server=$!; while read -r _; do :; done; kill -9 $server; wait $server`

func (s *Server) start(tb testing.TB, b harness.Broker, java []string) {
	tb.Helper()
	log := filepath.Join(s.dir, "log")
	out, err := os.Create(log)
	if err != nil {
		tb.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", guarded, "sh"}, java...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	life, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		life.Close()
		_ = cmd.Wait() // the error tells that the server was killed
	})
	for end := time.Now().Add(2 * time.Minute); ; <-time.After(100 * time.Millisecond) {
		greeting, err := harness.Probe(tb.Context(), harness.Kafka, s.Plain)
		if err == nil && strings.HasPrefix(greeting.Version, b.Version) {
			return
		}
		if time.Now().After(end) {
			text, unread := os.ReadFile(log)
			tb.Fatalf("%s did not start: %v\n%s", b.Name, errors.Join(err, unread), text[max(0, len(text)-4000):])
		}
	}
}

// settings returns the settings of the server.
func (s *Server) settings() string {
	var b strings.Builder
	var listeners, protocols []string
	for _, l := range []struct{ name, address, protocol string }{
		{"PLAIN", s.Plain, "PLAINTEXT"}, {"TLS", s.TLS, "SSL"}, {"MUTUAL", s.Mutual, "SSL"}, {"LOGIN", s.Login, "SASL_SSL"}, {"SCRAM", s.Scram, "SASL_PLAINTEXT"},
	} {
		listeners = append(listeners, l.name+"://"+l.address)
		protocols = append(protocols, l.name+":"+l.protocol)
	}
	fmt.Fprintf(&b, `process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.voters=1@%[1]s
listeners=CONTROLLER://%[1]s,%[2]s
advertised.listeners=%[2]s
listener.security.protocol.map=CONTROLLER:PLAINTEXT,%[3]s
inter.broker.listener.name=PLAIN
log.dirs=%[4]s/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
ssl.keystore.type=PEM
ssl.keystore.location=%[4]s/server.pem
ssl.truststore.type=PEM
ssl.truststore.location=%[5]s
listener.name.mutual.ssl.client.auth=required
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%[6]s="%[7]s";
`, s.controller, strings.Join(listeners, ","), strings.Join(protocols, ","), s.dir, s.CA, User, Password)
	for _, listener := range []string{"login", "scram"} {
		for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
			fmt.Fprintf(&b, "listener.name.%s.%s.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n", listener, mechanism)
		}
	}
	return b.String()
}
