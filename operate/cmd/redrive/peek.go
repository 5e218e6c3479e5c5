package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/foreign"
	"github.com/redrive-go/redrive/operate/internal/serve"
)

// peekRow is a letter that is in a broker.
type peekRow struct {
	deadMessage
	content
}

var peekTable = table[peekRow]{"died topic message reason error", func(r peekRow) []any {
	return []any{r.Dead, r.Topic, r.MessageID, r.Reason, r.ErrorText}
}}

const mostPeeked = 100

func newPeek(d *desk) *cobra.Command {
	v := &view{}
	limit := 10
	cmd := &cobra.Command{
		Use:   "peek topic",
		Short: "Look at dead letters in the broker, and leave them there",
		Long: `Peek looks at the dead letters of a topic where they are, and gives all of them back
in the end. It changes nothing in the store. What it does to the letters depends on
the broker, and is said first: only Kafka lets anybody read without a trace.`,
		Example: `  redrive dlq peek orders
  redrive dlq peek orders -n 1 -o json`,
		ValidArgsFunction: d.completion(topicNames),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("at what? name one topic")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > mostPeeked {
				return usage(fmt.Errorf("-n is %d: use 1 to %d", limit, mostPeeked))
			}
			return d.withConfig(func(c *config.Config) error {
				topics, err := topicsNamed(c, args[0])
				if err != nil {
					return err
				}
				for _, t := range topics {
					if err := d.peek(cmd.Context(), v, c, t, limit); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	v.register(cmd.Flags())
	cmd.Flags().IntVarP(&limit, "limit", "n", limit, "how many `letters` to look at, at most")
	return cmd
}

// peekLease is for how long the letters are hidden from others at most.
const peekLease = 30 * time.Second

// traces are what a look does, by the kind of the broker.
var traces = map[string]string{
	config.RabbitMQ: `RabbitMQ hands these letters out and takes them back: others cannot see them
meanwhile, and their order may change. Before version 4.3 a quorum queue counts each
look towards its delivery limit, and then drops them or dead-letters them again.`,
	config.SQS: `SQS hides these letters from others meanwhile, and counts the look as a receive: a
redrive policy of the dead-letter queue itself may move them on.`,
	config.Kafka: `Kafka is read without a trace, from the oldest letter on that its log still has, by
the consumer group %s, which commits nothing.`,
}

func (d *desk) peek(ctx context.Context, v *view, c *config.Config, t config.Topic, limit int) (err error) {
	if err := elsewhere(c, t.Broker); err != nil {
		return err
	}
	b := c.Brokers[t.Broker]
	group, trace := serve.Group(b)+"-peek", traces[b.Kind]
	if strings.Contains(trace, "%s") {
		trace = fmt.Sprintf(trace, group)
	}
	fmt.Fprintln(d.Err, term.SafeLines(trace))
	broker, err := d.open(ctx, c, t.Broker)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAfter(ctx, broker.Close)) }()
	source, err := broker.Open(ctx, brokers.Subscription{Topics: t.Dead, Group: group, InFlight: limit, Lease: peekLease})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAfter(ctx, source.Close)) }()
	held, err := take(ctx, source, limit)
	rows := make([]peekRow, len(held))
	for i, delivery := range held {
		rows[i] = peeked(t.Broker, delivery)
	}
	return errors.Join(err, release(ctx, source, held), show(d.Streams, v, peekTable, all(rows)))
}

func closeAfter(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serve.Closing)
	defer cancel()
	return f(ctx)
}

// How long nothing must have come for a topic to be empty: at the beginning, and
// after something came.
const (
	firstIdle = 10 * time.Second
	nextIdle  = 2 * time.Second
)

var errIdle = errors.New("nothing came")

// take receives up to limit letters.
func take(ctx context.Context, source brokers.Source, limit int) (held []*brokers.Delivery, err error) {
	for idle := firstIdle; len(held) < limit; idle = nextIdle {
		within, cancel := context.WithTimeoutCause(ctx, idle, errIdle)
		ds, err := source.Receive(within, limit-len(held))
		cancel()
		held = append(held, ds...)
		if errors.Is(err, errIdle) {
			return held, nil
		}
		if err != nil {
			return held, err
		}
	}
	return held, nil
}

// release gives letters back.
func release(ctx context.Context, source brokers.Source, held []*brokers.Delivery) error {
	batch := make([]brokers.Settlement, len(held))
	for i, d := range held {
		batch[i] = brokers.Settlement{Delivery: d, Action: brokers.Release}
	}
	if len(batch) == 0 {
		return nil
	}
	return closeAfter(ctx, func(ctx context.Context) error {
		if err := errors.Join(source.Settle(ctx, batch)...); err != nil {
			return fmt.Errorf("letters were not given back, which the broker does by itself after %v at most: %w", peekLease, err)
		}
		return nil
	})
}

func peeked(broker string, d *brokers.Delivery) peekRow {
	e, format := foreign.Decode(d)
	if d.Unreadable != nil && e.ErrorText == "" {
		e.DescribeError("", "", d.Unreadable.Error(), "", nil)
	}
	return peekRow{
		deadMessage: deadMessage{
			fault: fault{
				origin: origin{broker, d.Message.Topic, e.Message.Topic, e.Group, e.Reason},
				Format: string(format), Class: e.Meta.Class, ErrorType: e.ErrorType, ErrorText: e.ErrorText, Fingerprint: e.Fingerprint,
			},
			MessageID: e.Message.ID, Key: e.Message.Key, Attempts: e.Meta.Attempt, Dead: instant{e.DeadAt},
		},
		content: contentOf(e.Message),
	}
}
