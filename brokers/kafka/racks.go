package kafka

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

const (
	rackAware   = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
	rackSetting = "broker.rack"
	selector    = "replica.selector.class"
)

// node is what is known of a broker about racks.
type node struct {
	id       int
	rack     string
	selector string
	hidden   bool // the user may not see its settings
}

// racks finds why a worker with Options.Rack reads from leaders in other racks.
func (b *Broker) racks(ctx context.Context) ([]inspect.Finding, error) {
	if b.options.Rack == "" {
		return nil, nil
	}
	nodes, err := b.client.nodes(ctx)
	if err != nil {
		return nil, explain(err, "ask the brokers at %s about their racks", strings.Join(b.options.Brokers, ", "))
	}
	return b.options.judgeRacks(nodes), nil
}

// nodes asks each broker for its rack and its replica selector.
func (c *client) nodes(ctx context.Context) (nodes []node, err error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, where nil means all
	err = answered(ctx, c, cluster.AnyNode, req, func(res *kmsg.MetadataResponse) error {
		nodes = nil
		for _, at := range res.Brokers {
			n := node{id: int(at.NodeID)}
			if at.Rack != nil {
				n.rack = *at.Rack
			}
			name := strconv.Itoa(n.id)
			settings, err := c.settings(ctx, at.NodeID, kmsg.ConfigResourceTypeBroker, []string{name}, selector)
			if err != nil {
				return err
			}
			own, seen := settings[name]
			n.selector, n.hidden = own[selector], !seen
			nodes = append(nodes, n)
		}
		return nil
	})
	return nodes, err
}

// judgeRacks finds what keeps brokers from naming replicas in the rack of the worker.
func (o Options) judgeRacks(nodes []node) (found []inspect.Finding) {
	var racks, without, hidden []string
	for _, n := range nodes {
		name := "broker " + strconv.Itoa(n.id)
		switch racks = append(racks, n.rack); {
		case n.hidden:
			hidden = append(hidden, name)
		case n.selector != rackAware:
			without = append(without, name)
		}
	}
	slices.Sort(racks)
	if !slices.Contains(racks, o.Rack) {
		found = append(found, inspect.Finding{
			Topic: "cluster", Setting: rackSetting, Value: strings.Trim(strings.Join(slices.Compact(racks), ", "), ", "), Want: o.Rack, Severity: inspect.Noted, See: checking,
			Why: "no broker is in Options.Rack, so partitions are read from their leaders, in whatever rack these are",
			Fix: "correct Options.Rack, or set broker.rack=" + o.Rack + " in server.properties of the brokers there, and restart them",
		})
	}
	if len(without) > 0 {
		found = append(found, inspect.Finding{
			Topic: strings.Join(without, ", "), Setting: selector, Want: rackAware, Severity: inspect.Noted, See: checking,
			Why: "as a leader it names no replica in Options.Rack, so its partitions are read from itself",
			Fix: "set " + selector + "=" + rackAware + " in server.properties, and restart it",
		})
	}
	if len(hidden) > 0 {
		found = append(found, inspect.Finding{
			Topic: strings.Join(hidden, ", "), Setting: selector, Severity: inspect.Unverified, See: checking,
			Why: "the user may not see whether it names replicas in Options.Rack",
			Fix: o.grant([]string{describe}, "--cluster"),
		})
	}
	return found
}
