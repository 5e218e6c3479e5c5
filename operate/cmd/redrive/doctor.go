package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

// patience is how long a broker may take to be looked at.
const patience = 15 * time.Second

// inspector is a broker that can say what is wrong with what a subscription needs,
// and changes nothing.
type inspector interface {
	Inspect(context.Context, brokers.Subscription) ([]brokers.Finding, error)
}

// topologist is a broker that can say what subscriptions need, in the form that its
// own tools take.
type topologist interface {
	Topology(...brokers.Subscription) (string, error)
}

func newDoctor(streams term.Streams, open opener) *cobra.Command {
	d := &desk{Streams: streams, open: open}
	v := &view{}
	topology := false
	cmd := &cobra.Command{
		Use:   "doctor [broker ...]",
		Short: "Find what voids a promise on the brokers, and say how to mend it",
		Long: `Doctor looks at the queues and topics that workers need, for all topics of the
configuration or for those of some brokers, and changes nothing. What it finds is

  refused     a worker does not start, as messages would be lost or repeated without
              end; or something is missing, which a worker may have to create
  unverified  nobody could look at it: the user lacks a right
  noted       a promise is weaker, or a net of the broker is missing
  error       the broker could not be looked at

The exit code is 1 if there is anything refused or an error. Each broker may take 15 s
and holds up no other.

With --topology it prints instead what workers need, where they may create nothing
themselves: on RabbitMQ definitions for rabbitmqctl import_definitions, on Kafka
commands of kafka-topics.sh. For that it connects to nothing.`,
		Example: `  redrive doctor
  redrive doctor -o json
  redrive doctor shop --topology > definitions.json`,
		ValidArgsFunction: d.completion(brokerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.withConfig(func(c *config.Config) error {
				names, err := chosen(c, args)
				if err != nil {
					return usage(err)
				}
				switch {
				case topology && cmd.Flags().Changed("output"):
					return usage(errors.New("--topology has the form that the broker's own tool takes: leave out --output"))
				case topology:
					return d.topology(cmd.Context(), c, names)
				}
				return d.doctor(cmd.Context(), v, c, names)
			})
		},
	}
	d.register(cmd.Flags())
	v.register(cmd.Flags())
	cmd.Flags().BoolVar(&topology, "topology", false, "print what workers need")
	return cmd
}

// chosen are brokers of the configuration: all if none is named.
func chosen(c *config.Config, named []string) ([]string, error) {
	all := slices.Sorted(maps.Keys(c.Brokers))
	if len(named) == 0 {
		return all, nil
	}
	for _, name := range named {
		if c.Brokers[name] == nil {
			return nil, fmt.Errorf("there is no broker %q: name %s", name, anyOf(all))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(named))), nil
}

func (d *desk) doctor(ctx context.Context, v *view, c *config.Config, names []string) error {
	rows := d.examineAll(ctx, c, names)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := show(d.Streams, v, findingColumns, all(rows)); err != nil {
		return err
	}
	if v.format.value == "text" && len(rows) > 0 {
		fmt.Fprintln(d.Out)
		if err := details(rows).Write(d.Out, d.Width, d.Colour); err != nil {
			return err
		}
	}
	found := map[string]int{}
	for _, r := range rows {
		found[r.Severity]++
	}
	d.say("%s on %s: %d refused, %d unverified, %d noted, %d errors", count(int64(topicsOn(c, names)), "topic"), count(int64(len(names)), "broker"),
		found[brokers.Refused.String()], found[brokers.Unverified.String()], found[brokers.Noted.String()], found[failed])
	switch {
	case found[brokers.Refused.String()] > 0:
		return errors.New("workers do not start, or would lose messages: mend what is refused")
	case found[failed] > 0:
		return errors.New("not everything was looked at")
	}
	return nil
}

func topicsOn(c *config.Config, names []string) (n int) {
	for _, t := range c.Topics {
		if slices.Contains(names, t.Broker) {
			n++
		}
	}
	return n
}

// examineAll looks at brokers, all at the same time.
func (d *desk) examineAll(ctx context.Context, c *config.Config, names []string) []findingRow {
	found := make(chan []findingRow)
	for _, name := range names {
		go func() { found <- d.examine(ctx, c, name) }()
	}
	var rows []findingRow
	for range names {
		rows = append(rows, <-found...)
	}
	slices.SortFunc(rows, func(a, b findingRow) int {
		return cmp.Or(slices.Index(severities, a.Severity)-slices.Index(severities, b.Severity),
			strings.Compare(a.Broker, b.Broker), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Setting, b.Setting),
			strings.Compare(a.Why, b.Why), strings.Compare(a.Fix, b.Fix))
	})
	return slices.Compact(rows) // what several groups share
}

// examine looks at a broker. The first error ends that.
func (d *desk) examine(ctx context.Context, c *config.Config, name string) (rows []findingRow) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took longer than %v", patience))
	defer cancel()
	add := func(severity, topic, why, fix string) []findingRow {
		return append(rows, findingRow{Severity: severity, Broker: name, Topic: topic, Why: connect.InKeys(why), Fix: fix})
	}
	broker, err := d.open(ctx, c, name)
	if err != nil {
		return add(failed, "", err.Error(), "")
	}
	defer broker.Close(ctx) // it has sent nothing
	looks, ok := broker.(inspector)
	if !ok {
		return add(brokers.Unverified.String(), "", "brokers of the kind "+c.Brokers[name].Kind+" cannot be looked at", "")
	}
	for _, t := range c.Topics {
		if t.Broker == name && c.Brokers[name].Kind == config.Kafka && len(t.Groups) == 0 {
			rows = add(brokers.Unverified.String(), t.Name, "the configuration names no groups that read it, so what they need is not known", "add groups to the topic in the configuration")
		}
	}
	for nth := 0; ; nth++ {
		subs := connect.Subscriptions(c, name, nth)
		if len(subs) == 0 {
			return rows
		}
		for _, sub := range subs {
			found, err := looks.Inspect(ctx, sub)
			if err != nil {
				return add(failed, strings.Join(sub.Topics, ", "), err.Error(), "")
			}
			for _, f := range found {
				rows = append(rows, findingOf(name, f))
			}
		}
	}
}

func (d *desk) topology(ctx context.Context, c *config.Config, names []string) error {
	if len(names) != 1 {
		return usage(fmt.Errorf("--topology is of one broker: name %s", anyOf(names)))
	}
	name := names[0]
	broker, err := d.open(ctx, c, name)
	if err != nil {
		return faulty(err)
	}
	defer broker.Close(ctx) // it was not used
	plans, ok := broker.(topologist)
	if !ok {
		return fmt.Errorf("brokers of the kind %s cannot say what workers need: redrive doctor says what is missing, with commands that make it", c.Brokers[name].Kind)
	}
	subs := connect.Subscriptions(c, name, 0)
	if len(subs) == 0 {
		return fmt.Errorf("the configuration has no topics on %s, or no groups that read them", name)
	}
	text, err := plans.Topology(subs...)
	if err != nil {
		return errors.New(connect.InKeys(err.Error()))
	}
	_, err = fmt.Fprint(d.Out, text)
	return err
}
