package harness

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Product is what a broker is made of. It also stands for all its brokers
// where names are given.
type Product string

// The products.
const (
	RabbitMQ Product = "rabbitmq" // RabbitMQ 3.10 and 4.0
	Kafka    Product = "kafka"    // Apache Kafka 4.3 and 3.9
	SQS      Product = "sqs"      // ElasticMQ 1.7, which speaks the protocol of Amazon SQS
	Redis    Product = "redis"    // Redis 7.0: no broker, but what fleets share
	Valkey   Product = "valkey"   // Valkey 8.1, which speaks the protocol of Redis
)

// Broker is one broker of the harness: what it is and where it listens. The
// addresses are the same in a container and as a local process, and always on
// loopback.
type Broker struct {
	Name       string // as docker-compose.yml calls it
	Product    Product
	Version    string // how its version begins
	Nightly    bool   // only make nightly tests it
	Env        string // the variable that takes its address to the tests
	Image      string // the container image
	Port       int    // for clients: AMQP, Kafka's protocol, HTTP, or Redis's protocol
	Management int    // the HTTP interface of RabbitMQ; 0 for others
	Controller int    // the quorum of Kafka; 0 for others

	// RabbitMQ, Redis and Valkey as local processes.
	suite string // the Debian release that has the package

	// RabbitMQ as a local process.
	dist int // Erlang distribution, for the command line tools
	epmd int // the Erlang port mapper, one for each broker, or for a cluster

	// Kafka as a local process.
	logging string // the Maven artifact that takes its log to the standard output

	node int // which node of Cluster it is, from 1; 0 for a broker of its own
}

// Brokers returns all brokers of the harness, in a fixed order.
func Brokers() []Broker {
	return []Broker{
		{
			Name: "rabbitmq3", Product: RabbitMQ, Version: "3.10.", Nightly: true, Env: "REDRIVE_RABBITMQ_URL", Image: "rabbitmq:3.10.8-management",
			Port: 25673, Management: 25683,
			suite: "bookworm", dist: 25693, epmd: 25703,
		},
		{
			Name: "rabbitmq4", Product: RabbitMQ, Version: "4.", Env: "REDRIVE_RABBITMQ4_URL", Image: "rabbitmq:4.0.5-management",
			Port: 25674, Management: 25684,
			suite: "trixie", dist: 25694, epmd: 25704,
		},
		{
			Name: "kafka43", Product: Kafka, Version: "4.3", Env: "REDRIVE_KAFKA_URL", Image: "apache/kafka:4.3.0",
			Port: 25675, Controller: 25685,
			logging: "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
		},
		{
			Name: "kafka39", Product: Kafka, Version: "3.9", Nightly: true, Env: "REDRIVE_KAFKA39_URL", Image: "apache/kafka:3.9.1",
			Port: 25676, Controller: 25686,
			logging: "org.slf4j:slf4j-reload4j:1.7.36",
		},
		{
			Name: "elasticmq", Product: SQS, Version: "1.7", Env: "REDRIVE_SQS_URL", Image: "softwaremill/elasticmq-native:1.7.1",
			Port: 25677,
		},
		{
			Name: "redis7", Product: Redis, Version: "7.0.", Env: "REDRIVE_REDIS_URL", Image: "redis:7.0.15-alpine",
			Port:  25678,
			suite: "bookworm",
		},
		{
			Name: "valkey8", Product: Valkey, Version: "8.1.", Nightly: true, Env: "REDRIVE_VALKEY_URL", Image: "valkey/valkey:8.1.1-alpine",
			Port:  25679,
			suite: "trixie",
		},
	}
}

// Cluster returns the three nodes of a cluster of the newest RabbitMQ or Kafka, as
// local processes. They are not among Brokers, and start together. What is killed
// comes back to the others, with the data that it had.
func Cluster(p Product) []Broker {
	var all []Broker
	for i := range 3 {
		b := Broker{Name: fmt.Sprintf("%s-node%d", p, i+1), Product: p, node: i + 1}
		switch p {
		case RabbitMQ:
			b.Version, b.suite = "4.", "trixie"
			b.Port, b.Management, b.dist, b.epmd = 25711+i, 25721+i, 25731+i, 25741
		case Kafka:
			newest := Brokers()[slices.IndexFunc(Brokers(), func(b Broker) bool { return b.is(string(Kafka)) && !b.Nightly })]
			b.Version, b.Image, b.logging = newest.Version, newest.Image, newest.logging
			b.Port, b.Controller = 25751+i, 25761+i
		}
		all = append(all, b)
	}
	return all
}

// Select returns the brokers of the given names, in the order of Brokers. A
// name is that of a broker or of a product; no names stand for all brokers.
func Select(names ...string) ([]Broker, error) {
	all := Brokers()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(b Broker) bool { return b.is(name) }) {
			return nil, unknown(name)
		}
	}
	return slices.DeleteFunc(all, func(b Broker) bool { return !slices.ContainsFunc(names, b.is) }), nil
}

func (b Broker) is(name string) bool { return name == b.Name || name == string(b.Product) }

// find returns the broker of that name.
func find(name string) (Broker, error) {
	for _, b := range slices.Concat(Brokers(), Cluster(RabbitMQ), Cluster(Kafka)) {
		if b.Name == name {
			return b, nil
		}
	}
	return Broker{}, unknown(name)
}

func unknown(name string) error {
	var names []string
	for _, b := range Brokers() {
		names = append(names, b.Name)
	}
	return fmt.Errorf("there is no broker %q: there are %s", name, strings.Join(names, ", "))
}

// Address is the host and port that clients connect to.
func (b Broker) Address() string { return fmt.Sprintf("127.0.0.1:%d", b.Port) }

// URL is the address as the tests are given it: host and port of a Kafka, the
// AMQP address of a RabbitMQ with the user that every RabbitMQ begins with, the
// endpoint of an SQS, or that of a Redis or Valkey with its first database.
func (b Broker) URL() string {
	switch b.Product {
	case Kafka:
		return b.Address()
	case SQS:
		return "http://" + b.Address()
	case Redis, Valkey:
		return "redis://" + b.Address() + "/0"
	}
	return fmt.Sprintf("amqp://guest:guest@%s/", b.Address())
}

// ManagementEnv is the variable that takes ManagementURL to the tests. It is
// empty for a broker that has no such interface.
func (b Broker) ManagementEnv() string {
	if b.Management == 0 {
		return ""
	}
	return strings.TrimSuffix(b.Env, "_URL") + "_MANAGEMENT_URL"
}

// ManagementURL is the address of the HTTP interface of a RabbitMQ, with the
// same user. It is empty for a broker that has none.
func (b Broker) ManagementURL() string {
	if b.Management == 0 {
		return ""
	}
	return fmt.Sprintf("http://guest:guest@127.0.0.1:%d/", b.Management)
}

// release is the version that the image names, in full.
func (b Broker) release() string {
	_, tag, _ := strings.Cut(b.Image, ":")
	release, _, _ := strings.Cut(tag, "-")
	return release
}

// Environment returns the variables that take the addresses of the brokers to
// the tests, as "KEY=value". A variable that is set already keeps its value, so
// that the tests can be pointed at a broker of one's own.
func Environment(brokers []Broker) []string {
	var env []string
	for _, b := range brokers {
		env = appendUnset(env, b.Env, b.URL())
		if key := b.ManagementEnv(); key != "" {
			env = appendUnset(env, key, b.ManagementURL())
		}
	}
	return env
}

// Provided reports whether the environment names an address for every one of
// the brokers, so that none has to be started.
func Provided(brokers []Broker) bool {
	return !slices.ContainsFunc(brokers, func(b Broker) bool { return os.Getenv(b.Env) == "" })
}

func appendUnset(env []string, key, value string) []string {
	if set := os.Getenv(key); set != "" {
		value = set
	}
	return append(env, key+"="+value)
}
