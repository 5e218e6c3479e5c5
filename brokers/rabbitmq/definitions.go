package rabbitmq

import (
	"encoding/json"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// Topology returns all that Open would declare for subs, as the JSON that rabbitmqctl
// import_definitions takes: queues, exchanges and bindings in the vhost of the first
// of Options.URLs. RabbitMQ leaves a queue or exchange that exists as it is. It
// connects to nothing.
func (b *Broker) Topology(subs ...brokers.Subscription) (string, error) {
	all := map[string][]object{"queues": {}, "exchanges": {}, "bindings": {}}
	seen := make(map[string]bool)
	add := func(list string, args amqp.Table, of object) {
		key := fmt.Sprintf("%s %q %q %q %q", list, of["name"], of["source"], of["destination"], of["routing_key"])
		if !seen[key] {
			seen[key] = true
			of["vhost"], of["arguments"] = b.endpoints[0].Vhost, maps.Collect(maps.All(args)) // not nil
			all[list] = append(all[list], of)
		}
	}
	for _, sub := range subs {
		if err := b.names.check(sub); err != nil {
			return "", fmt.Errorf("rabbitmq: topology of %q: %w", sub.Topics, err)
		}
		t := b.names.plan(sub, planDelays(sub.MaxDelay))
		for _, q := range t.queues {
			add("queues", q.args, object{"name": q.name, "durable": true, "auto_delete": false})
		}
		for _, x := range t.bindings {
			add("exchanges", x.args, object{"name": x.exchange, "type": x.kind, "durable": true, "auto_delete": false, "internal": false})
			if x.queue != "" {
				add("bindings", nil, object{"source": x.exchange, "destination": x.queue, "destination_type": "queue", "routing_key": x.key})
			}
		}
	}
	text, _ := json.MarshalIndent(all, "", "  ") // of strings, numbers and booleans
	return string(text) + "\n", nil
}
