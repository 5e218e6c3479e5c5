package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

func newConfig(streams term.Streams) *cobra.Command {
	s := &setup{}
	c := group(&cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
	}, newConfigCheck(streams, s), newConfigShow(streams, s))
	s.register(c.PersistentFlags())
	return c
}

func newConfigCheck(streams term.Streams, s *setup) *cobra.Command {
	v := &view{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with the configuration, and what it means",
		Long: `Check reads the configuration, and every secret and certificate that it names. It
checks that each broker allows the names of its topics. It connects to nothing. It
prints all faults, each with its line, on standard error. If there are no faults, it
prints the topics.`,
		Example: `  redrive config check
  redrive config check --config shop.yaml -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.check(cmd.Context(), streams, v) },
	}
	v.register(cmd.Flags())
	return cmd
}

// topicRow is a topic of the configuration.
type topicRow struct {
	// Topic is the topic or queue that workers receive from.
	Topic string `json:"topic"`

	// Broker is the name of its broker.
	Broker string `json:"broker"`

	// Kind is the kind of the broker: `rabbitmq`, `kafka`, `sqs` or `memory`.
	Kind string `json:"kind"`

	// Collect says that dead letters are taken into the store.
	Collect bool `json:"collect"`

	// Dead are the topics or queues with its dead letters.
	Dead []string `json:"dead"`

	// Groups are the consumer groups whose letters may be sent back to them.
	Groups []string `json:"groups"`

	// Receipts is the topic or queue with the receipts of its workers; empty for
	// none.
	Receipts string `json:"receipts"`
}

func topicRows(c *config.Config) []topicRow {
	var rows []topicRow
	for _, t := range c.Topics {
		rows = append(rows, topicRow{
			Topic: t.Name, Broker: t.Broker, Kind: c.Brokers[t.Broker].Kind, Collect: t.Collect,
			Dead: t.Dead, Groups: append([]string{}, t.Groups...), Receipts: t.Receipts,
		})
	}
	return rows
}

var topicTable = table[topicRow]{"topic broker collect dead receipts", func(r topicRow) []any {
	return []any{r.Topic, r.Broker, yesNo(r.Collect), strings.Join(r.Dead, ", "), r.Receipts}
}}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (s *setup) check(ctx context.Context, streams term.Streams, v *view) error {
	c, err := s.load()
	if err != nil {
		return faulty(err)
	}
	err = c.CheckFiles()
	if err == nil {
		err = connect.Check(ctx, c)
	}
	if err != nil {
		return faulty(err)
	}
	fmt.Fprintf(streams.Err, "%s has no faults\n", term.Safe(c.File()))
	return show(streams, v, topicTable, all(topicRows(c)))
}

// faulty puts faults on lines of their own, where editors and reviewing tools look
// for them.
func faulty(err error) error {
	if _, ok := errors.AsType[*config.Fault](err); !ok {
		return err
	}
	return fmt.Errorf("the configuration has faults:\n%w", err)
}
