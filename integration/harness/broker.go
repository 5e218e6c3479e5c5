package harness

import (
	"fmt"
	"os"
	"strings"
)

// Broker is one broker of the harness: what it is and where it listens. The
// addresses are the same in a container and as a local process, and always on
// loopback.
type Broker struct {
	Name       string // as docker-compose.yml calls it
	Version    string // how its version begins
	Env        string // the variable that takes its address to the tests
	Image      string // the container image
	Port       int    // AMQP
	Management int    // HTTP

	suite string // the Debian release that has the package
	dist  int    // Erlang distribution, for the command line tools
	epmd  int    // the Erlang port mapper, one for each broker
}

// Brokers returns all brokers of the harness, in a fixed order.
func Brokers() []Broker {
	return []Broker{
		{
			Name: "rabbitmq3", Version: "3.10.", Env: "REDRIVE_RABBITMQ_URL", Image: "rabbitmq:3.10.8-management",
			Port: 25673, Management: 25683,
			suite: "bookworm", dist: 25693, epmd: 25703,
		},
		{
			Name: "rabbitmq4", Version: "4.", Env: "REDRIVE_RABBITMQ4_URL", Image: "rabbitmq:4.0.5-management",
			Port: 25674, Management: 25684,
			suite: "trixie", dist: 25694, epmd: 25704,
		},
	}
}

// find returns the broker of that name.
func find(name string) (Broker, error) {
	for _, b := range Brokers() {
		if b.Name == name {
			return b, nil
		}
	}
	return Broker{}, fmt.Errorf("there is no broker %q: the names are in docker-compose.yml", name)
}

// Address is the host and port that speak AMQP.
func (b Broker) Address() string { return fmt.Sprintf("127.0.0.1:%d", b.Port) }

// URL is the AMQP address with the user that every RabbitMQ begins with.
func (b Broker) URL() string { return fmt.Sprintf("amqp://guest:guest@%s/", b.Address()) }

// ManagementEnv is the variable that takes ManagementURL to the tests.
func (b Broker) ManagementEnv() string { return strings.TrimSuffix(b.Env, "_URL") + "_MANAGEMENT_URL" }

// ManagementURL is the address of the HTTP interface, with the same user.
func (b Broker) ManagementURL() string {
	return fmt.Sprintf("http://guest:guest@127.0.0.1:%d/", b.Management)
}

// Environment returns the variables that take the addresses to the tests, as
// "KEY=value". A variable that is set already keeps its value, so that the
// tests can be pointed at a broker of one's own.
func Environment() []string {
	var env []string
	for _, b := range Brokers() {
		env = appendUnset(env, b.Env, b.URL())
		env = appendUnset(env, b.ManagementEnv(), b.ManagementURL())
	}
	return env
}

// Provided reports whether the environment names an address for every broker,
// so that none has to be started.
func Provided() bool {
	for _, b := range Brokers() {
		if os.Getenv(b.Env) == "" {
			return false
		}
	}
	return true
}

func appendUnset(env []string, key, value string) []string {
	if set := os.Getenv(key); set != "" {
		value = set
	}
	return append(env, key+"="+value)
}
