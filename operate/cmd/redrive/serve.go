package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

func newServe(streams term.Streams, open opener) *cobra.Command {
	d := &desk{Streams: streams, open: open}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Collect dead letters, work on jobs and serve metrics, until Ctrl-C",
		Long: `Serve collects the dead letters of the topics whose configuration says collect: true,
reads the receipts of workers, works on the jobs that redrive dlq send has created,
and deletes what its retention is over for. A broker that is down, or a topic that is
missing, stops nothing else: it is tried again.

At the address of serve.listen it serves /metrics, for Prometheus, and /healthz,
which says whether the store answers. One serve is enough for a store; several share
the work. Ctrl-C or SIGTERM ends it in good order: letters under way are stored, and
jobs go on when it starts again.`,
		Example: `  redrive serve
  curl -s http://127.0.0.1:7420/metrics`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.withNewStore(cmd.Context(), func(c *config.Config, s *store.Store) error {
				return d.serve(cmd.Context(), c, s)
			})
		},
	}
	d.register(cmd.Flags())
	return cmd
}

func (d *desk) serve(ctx context.Context, c *config.Config, s *store.Store) (err error) {
	token := ""
	if c.Serve.Token != nil {
		if token, err = c.Serve.Token.Read(); err != nil {
			return faulty(err)
		}
	}
	log := slog.New(slog.NewTextHandler(d.Err, nil))
	options, err := connect.Web(c, "serve", &c.Serve.Web, log)
	if err != nil {
		return faulty(err)
	}
	listener, err := net.Listen("tcp", c.Serve.Listen)
	if err != nil {
		return fmt.Errorf("nothing was done: serve.listen of %s cannot be used: %w: is another redrive serve running?", c.File(), err)
	}
	server := d.server(c, s, d.Err)
	server.Logger, server.Web = log, options
	defer func() { err = errors.Join(err, closeBrokers(ctx, server.Brokers)) }()
	server.Logger.Info("serving", "metrics", options.Scheme()+"://"+listener.Addr().String()+"/metrics", "config", c.File())
	return server.ServeOn(ctx, listener, token)
}
