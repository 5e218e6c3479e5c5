package kafka

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

const defaultTimeout = 10 * time.Second

// client asks the brokers of a cluster.
type client struct {
	cluster.Client
	options      Options
	decompressor decompressor
}

// newClient needs the addresses only.
func newClient(o Options) *client {
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultTimeout)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: 3 * time.Second}).DialContext
	}
	return &client{options: o, Client: cluster.New(cluster.Options{
		Brokers: o.Brokers, Dial: o.Dial, TLS: o.TLS, SASL: o.SASL, ClientID: o.ClientID, Timeout: o.CallTimeout,
		Balance: balance, BatchMessages: batchMessages, BatchBytes: batchBytes,
	})}
}

// ask asks a node, for up to Options.CallTimeout.
func (c *client) ask(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	return c.Ask(ctx, node, req, nil)
}

// askGroup asks the coordinator of a group.
func (c *client) askGroup(ctx context.Context, timeout time.Duration, group string, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = group
	found, err := c.Ask(ctx, cluster.AnyNode, find, nil)
	if err != nil {
		return nil, err
	}
	at := found.(*kmsg.FindCoordinatorResponse)
	if err := codeError(at.ErrorCode); err != nil {
		return nil, err
	}
	return c.Ask(ctx, at.NodeID, req, nil)
}

// answered asks a node until take accepts its answer, or as often as retry does.
func answered[Res kmsg.Response](ctx context.Context, c *client, node int32, req kmsg.Request, take func(Res) error) error {
	return retry(ctx, func() error {
		res, err := c.ask(ctx, node, req)
		if err != nil {
			return err
		}
		return take(res.(Res))
	})
}

// leading returns which of the nodes that lead the partitions of a topic leads p.
func leading(leaders map[int32]int32, p partition) (int32, error) {
	switch node, known := leaders[int32(p.number)]; {
	case !known:
		return 0, kafka.UnknownTopicOrPartition
	case node < 0:
		return 0, kafka.LeaderNotAvailable
	default:
		return node, nil
	}
}

// byTopic collects what a request says of topics, in the order of their first.
type byTopic[T any] struct {
	list []T
	at   map[string]int
}

// of returns the entry of a topic, which is fresh if there is none yet.
func (b *byTopic[T]) of(topic string, fresh T) *T {
	i, ok := b.at[topic]
	if !ok {
		if b.at == nil {
			b.at = make(map[string]int)
		}
		i, b.at[topic] = len(b.list), len(b.list)
		b.list = append(b.list, fresh)
	}
	return &b.list[i]
}

func codeError(code int16) error { return cluster.CodeError(code) }
