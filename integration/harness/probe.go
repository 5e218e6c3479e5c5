package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	probeTimeout = 2 * time.Second
	maxAnswer    = 64 << 10 // the longest takes a few hundred bytes
)

// Greeting is what a broker says of itself when a client connects.
type Greeting struct {
	Product string
	Version string
}

var errMalformed = errors.New("malformed answer")

// Probe connects to a broker at the address that tests are given, see
// Broker.URL, and returns what it answers. It gives up after two seconds.
func Probe(ctx context.Context, product Product, address string) (Greeting, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	greet := map[Product]func(context.Context, string) (Greeting, error){
		RabbitMQ: greetRabbitMQ, Kafka: greetKafka, SQS: greetSQS, Redis: greetRedis, Valkey: greetRedis,
	}[product]
	greeting, err := greet(ctx, address)
	if err != nil {
		return Greeting{}, fmt.Errorf("no answer as %s gives it: %w", product, err)
	}
	return greeting, nil
}

// dial connects to host:port for as long as ctx says.
func dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	return conn, conn.SetDeadline(deadline)
}

// greetRabbitMQ logs in, and out again.
func greetRabbitMQ(ctx context.Context, url string) (Greeting, error) {
	conn, err := amqp.DialConfig(url, amqp.Config{
		Dial: func(_, address string) (net.Conn, error) { return dial(ctx, address) },
	})
	if err != nil {
		return Greeting{}, err
	}
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	deadline, _ := ctx.Deadline()
	return Greeting{product, version}, conn.CloseDeadline(deadline)
}
