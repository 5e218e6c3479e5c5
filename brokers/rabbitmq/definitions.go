package rabbitmq

import (
	"encoding/json"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// definitions are queues, exchanges and bindings as RabbitMQ exports and imports
// them.
type definitions struct {
	Queues    []definedQueue    `json:"queues"`
	Exchanges []definedExchange `json:"exchanges"`
	Bindings  []definedBinding  `json:"bindings"`
}

type definedQueue struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Arguments  amqp.Table `json:"arguments"`
}

type definedExchange struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Internal   bool       `json:"internal"`
	Arguments  amqp.Table `json:"arguments"`
}

type definedBinding struct {
	Source      string     `json:"source"`
	Vhost       string     `json:"vhost"`
	Destination string     `json:"destination"`
	Type        string     `json:"destination_type"`
	Key         string     `json:"routing_key"`
	Arguments   amqp.Table `json:"arguments"`
}

// Topology returns all that Open would declare for sub, as the JSON that rabbitmqctl
// import_definitions takes: queues, exchanges and bindings in the vhost of the first
// of Options.URLs. RabbitMQ leaves a queue or exchange that exists as it is. It
// connects to nothing.
func (b *Broker) Topology(sub brokers.Subscription) (string, error) {
	if err := b.names.check(sub, b.names.longestTopic()); err != nil {
		return "", fmt.Errorf("rabbitmq: topology of %q: %w", sub.Topics, err)
	}
	text, _ := json.MarshalIndent(b.names.plan(sub, planShelves(sub.MaxDelay)).define(b.endpoints[0].Vhost), "", "  ") // of strings and numbers
	return string(text) + "\n", nil
}

func (t topology) define(vhost string) definitions {
	d := definitions{Queues: []definedQueue{}, Exchanges: []definedExchange{}, Bindings: []definedBinding{}}
	for _, q := range t.queues {
		d.Queues = append(d.Queues, definedQueue{Name: q.name, Vhost: vhost, Durable: true, Arguments: q.args})
	}
	seen := make(map[string]bool)
	for _, x := range t.bindings {
		if !seen[x.exchange] {
			seen[x.exchange] = true
			d.Exchanges = append(d.Exchanges, definedExchange{Name: x.exchange, Vhost: vhost, Type: x.kind, Durable: true, Arguments: orNone(x.args)})
		}
		if x.queue != "" {
			d.Bindings = append(d.Bindings, definedBinding{Source: x.exchange, Vhost: vhost, Destination: x.queue, Type: "queue", Key: x.key, Arguments: amqp.Table{}})
		}
	}
	return d
}

func orNone(args amqp.Table) amqp.Table {
	if args == nil {
		return amqp.Table{}
	}
	return args
}
