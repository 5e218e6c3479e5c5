package rabbitmq

import (
	"encoding/json"
	"fmt"
	"slices"

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

// Topology returns all that Open would declare for subs, as the JSON that rabbitmqctl
// import_definitions takes: queues, exchanges and bindings in the vhost of the first
// of Options.URLs. RabbitMQ leaves a queue or exchange that exists as it is. It
// connects to nothing.
func (b *Broker) Topology(subs ...brokers.Subscription) (string, error) {
	d := definitions{Queues: []definedQueue{}, Exchanges: []definedExchange{}, Bindings: []definedBinding{}}
	for _, sub := range subs {
		if err := b.names.check(sub, b.names.longest(sub)); err != nil {
			return "", fmt.Errorf("rabbitmq: topology of %q: %w", sub.Topics, err)
		}
		d.add(b.names.plan(sub, planShelves(sub.MaxDelay)), b.endpoints[0].Vhost)
	}
	text, _ := json.MarshalIndent(d, "", "  ") // of strings and numbers
	return string(text) + "\n", nil
}

// add adds what t has and d has not.
func (d *definitions) add(t topology, vhost string) {
	for _, q := range t.queues {
		if !slices.ContainsFunc(d.Queues, func(is definedQueue) bool { return is.Name == q.name }) {
			d.Queues = append(d.Queues, definedQueue{Name: q.name, Vhost: vhost, Durable: true, Arguments: q.args})
		}
	}
	for _, x := range t.bindings {
		if !slices.ContainsFunc(d.Exchanges, func(is definedExchange) bool { return is.Name == x.exchange }) {
			d.Exchanges = append(d.Exchanges, definedExchange{Name: x.exchange, Vhost: vhost, Type: x.kind, Durable: true, Arguments: orNone(x.args)})
		}
		same := func(is definedBinding) bool {
			return is.Source == x.exchange && is.Destination == x.queue && is.Key == x.key
		}
		if x.queue != "" && !slices.ContainsFunc(d.Bindings, same) {
			d.Bindings = append(d.Bindings, definedBinding{Source: x.exchange, Vhost: vhost, Destination: x.queue, Type: "queue", Key: x.key, Arguments: amqp.Table{}})
		}
	}
}

func orNone(args amqp.Table) amqp.Table {
	if args == nil {
		return amqp.Table{}
	}
	return args
}
