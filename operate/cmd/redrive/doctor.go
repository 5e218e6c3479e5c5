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
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/budget"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/internal/typo"
)

// checking is the page about doctor.
const checking = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/check-a-set-up.md"

// patience is how long a broker may take to be looked at.
const patience = 15 * time.Second

// inspector is a broker that can say what is wrong with what a subscription needs,
// and changes nothing.
type inspector interface {
	Inspect(context.Context, brokers.Subscription) ([]inspect.Finding, error)
}

func newDoctor(streams term.Streams, open opener) *cobra.Command {
	d := &desk{Streams: streams, open: open}
	v := &view{}
	topology := false
	cmd := &cobra.Command{
		Use:   "doctor [broker or budget ...]",
		Short: "Find what voids a promise on the brokers, and say how to mend it",
		Long: `Doctor looks at the queues and topics that workers need, for all topics of the
configuration or for those of some brokers. It also looks at the queues and topics
from which redrive reads dead letters and receipts, and at the Redis of shared retry
budgets. It changes nothing. What it finds is

  blocking    a worker does not start, or messages would be lost, or repeated without
              end; what is missing is blocking only where no worker creates it
  unverified  nobody could look at it: the user lacks a right
  noted       a promise is weaker, or a net of the broker is missing; or something is
              missing, and the first worker that starts creates it
  error       the broker could not be looked at, such as one that is down

The exit code is 1 if there is anything blocking or an error, and 0 otherwise. Each
broker may take 15 s and holds up no other.

With --topology it prints instead what workers need, where they may create nothing
themselves: on RabbitMQ definitions for rabbitmqctl import_definitions, on Kafka
commands of kafka-topics.sh, on SQS a script for the AWS CLI. For that it connects to
nothing.`,
		Example: `  redrive doctor
  redrive doctor -o json
  redrive doctor shop --topology > definitions.json`,
		ValidArgsFunction: d.completion(patients),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.withConfig(func(c *config.Config) error {
				if topology && len(args) == 0 {
					args = brokerNames(c)
				}
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

// patients are the names of what doctor looks at.
func patients(c *config.Config) []string {
	return slices.AppendSeq(brokerNames(c), maps.Keys(c.Budgets))
}

// chosen are brokers and budgets of the configuration: all if none is named.
func chosen(c *config.Config, named []string) ([]string, error) {
	all := slices.Sorted(slices.Values(patients(c)))
	if len(named) == 0 {
		return all, nil
	}
	for _, name := range named {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no broker and no budget %q: name %s", name, typo.AnyOf(all))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(named))), nil
}

func (d *desk) doctor(ctx context.Context, v *view, c *config.Config, names []string) error {
	rows := d.examineAll(ctx, c, names)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := show(d.Streams, v, findingTable, all(rows)); err != nil {
		return err
	}
	if !v.isJSON() && len(rows) > 0 {
		fmt.Fprintln(d.Out)
		if err := details(rows).Write(d.Out, d.Width, d.Colour); err != nil {
			return err
		}
	}
	found := map[string]int{}
	for _, r := range rows {
		found[r.Severity]++
	}
	d.say("%s: %d blocking, %d unverified, %d noted, %d errors", lookedAt(c, names),
		found[inspect.Blocking.String()], found[inspect.Unverified.String()], found[inspect.Noted.String()], found[failed])
	switch {
	case found[inspect.Blocking.String()] > 0:
		return errors.New("workers do not start, or would lose messages: mend what is blocking")
	case found[failed] > 0:
		return errors.New("not everything was looked at")
	}
	return nil
}

// lookedAt is what doctor has looked at, in words.
func lookedAt(c *config.Config, names []string) string {
	topics, budgets := 0, 0
	for _, t := range c.Topics {
		if slices.Contains(names, t.Broker) {
			topics++
		}
	}
	for _, name := range names {
		if c.Budgets[name] != nil {
			budgets++
		}
	}
	text := count(int64(topics), "topic") + " on " + count(int64(len(names)-budgets), "broker")
	if budgets > 0 {
		text += ", " + count(int64(budgets), "budget")
	}
	return text
}

// examineAll looks at brokers and budgets, all at the same time.
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
	return slices.CompactFunc(rows, findingRow.repeats)
}

// examine looks at a broker or budget. After an error about some topics, it
// still looks at the others, while there is time.
func (d *desk) examine(ctx context.Context, c *config.Config, name string) []findingRow {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took longer than %v", patience))
	defer cancel()
	if c.Budgets[name] != nil {
		return examineBudget(ctx, c, name)
	}
	broker, err := d.open(ctx, c, name)
	if err != nil {
		return []findingRow{failure(name, "", err)}
	}
	defer broker.Close(ctx) // it has sent nothing
	looks, ok := broker.(inspector)
	if !ok {
		return []findingRow{{Severity: inspect.Unverified.String(), Broker: name, Why: "brokers of the kind " + c.Brokers[name].Kind + " cannot be looked at", See: checking}}
	}
	rows := withoutGroups(c, name)
	for nth := 0; ; nth++ {
		subs := connect.Subscriptions(c, name, nth)
		if len(subs) == 0 {
			break
		}
		for _, sub := range subs {
			rows = append(rows, examine(ctx, looks, c, name, sub)...)
		}
	}
	for _, sub := range serve.Reads(c, name) {
		rows = append(rows, examine(ctx, looks, c, name, sub)...)
	}
	return rows
}

// examine looks at the queues and topics that a subscription needs, if there is
// time. For a read-only subscription, it returns only findings that are
// blocking, and none about missing queues or topics: the subscriptions of
// workers cover the others.
func examine(ctx context.Context, looks inspector, c *config.Config, broker string, sub brokers.Subscription) (rows []findingRow) {
	var found []inspect.Finding
	err := context.Cause(ctx)
	if err == nil {
		found, err = looks.Inspect(ctx, sub)
	}
	switch {
	case errors.Is(err, brokers.ErrNotFound) && sub.ReadOnly():
		return nil
	case err != nil:
		return []findingRow{failure(broker, strings.Join(sub.Topics, ", "), err)}
	}
	for _, r := range rowsOf(broker, c.Brokers[broker], found) {
		if !sub.ReadOnly() || r.Severity == inspect.Blocking.String() && !r.Missing {
			rows = append(rows, r)
		}
	}
	return rows
}

// withoutGroups are the topics of Kafka of which it is not known who reads them.
func withoutGroups(c *config.Config, name string) (rows []findingRow) {
	for _, t := range c.Topics {
		if t.Broker == name && c.Brokers[name].Kind == config.Kafka && len(t.Groups) == 0 {
			rows = append(rows, findingRow{Severity: inspect.Unverified.String(), Broker: name, Topic: t.Name, See: checking,
				Why: "the configuration names no groups that read it, so what they need is not known", Fix: "add groups to the topic in the configuration"})
		}
	}
	return rows
}

func examineBudget(ctx context.Context, c *config.Config, name string) []findingRow {
	client, err := connect.Budget(c, name)
	if err != nil {
		return []findingRow{failure(name, "", err)}
	}
	defer client.Close() // it has written nothing
	found, err := budget.Inspect(ctx, client)
	if err != nil {
		return []findingRow{failure(name, "", err)}
	}
	return rowsOf(name, nil, found)
}

func (d *desk) topology(ctx context.Context, c *config.Config, names []string) error {
	if len(names) != 1 {
		return usage(fmt.Errorf("--topology is of one broker: name %s", typo.AnyOf(names)))
	}
	name := names[0]
	if c.Budgets[name] != nil {
		return usage(errors.New("workers need nothing of the Redis of a budget: they write a single key, which expires"))
	}
	broker, err := d.open(ctx, c, name)
	if err != nil {
		return faulty(err)
	}
	defer broker.Close(ctx) // it was not used
	plans, ok := broker.(connect.Topologist)
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
