package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/retries"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/redisschedule"
)

// serviceFlags stand for a configuration file.
type serviceFlags struct {
	listen, store, schedule string
	allow                   []string
}

func newService(streams term.Streams, open opener) *cobra.Command {
	d := &desk{Streams: streams, open: open}
	f := &serviceFlags{}
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Take calls over HTTP, and repeat them until they succeed, until Ctrl-C",
		Long: `Service takes calls that must succeed eventually, as JSON over HTTP, and makes them
again until they succeed or their policy gives them up.

It needs no configuration: then it keeps tasks in the file service.db and listens on
this machine alone. The section service of a configuration says what is different; the
flags stand for one. Where neither allows it, no address of this machine or of a private
network is called.

At its address are the API, described at /openapi.json, /metrics, for Prometheus, and
/healthz, which says whether the store answers. Ctrl-C or SIGTERM ends it in good order:
calls under way end, and the others are made when it starts again.`,
		Example: `  redrive service
  redrive service --allow 127.0.0.0/8
  redrive service --store postgres://redrive@db.example.com/retries?sslmode=verify-full --schedule redis://redis.example.com:6379`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := d.serviceConfig(f)
			if err != nil {
				return err
			}
			return d.service(cmd.Context(), c)
		},
	}
	d.register(cmd.Flags())
	cmd.Flags().StringVar(&f.listen, "listen", "", "`address` to listen on (default 127.0.0.1:7430)")
	cmd.Flags().StringVar(&f.store, "store", "", "`URL` of the store: a file for SQLite, or postgres://… (default service.db)")
	cmd.Flags().StringVar(&f.schedule, "schedule", "", "`URL` of a Redis that keeps what is due when: redis://… (default in memory)")
	cmd.Flags().StringSliceVar(&f.allow, "allow", nil, "hosts, and networks that are not public, that may be called (default every public host)")
	return cmd
}

// serviceConfig is the configuration file, or what the flags say.
func (d *desk) serviceConfig(f *serviceFlags) (*config.Config, error) {
	file := config.Find(d.file)
	_, err := os.Stat(file)
	flags := f.listen != "" || f.store != "" || f.schedule != "" || len(f.allow) > 0
	switch {
	case d.file == "" && os.Getenv(config.Variable) == "" && errors.Is(err, fs.ErrNotExist):
		c, err := config.Parse("flags", f.yaml())
		if err != nil {
			return nil, usage(err)
		}
		return c, nil
	case flags:
		return nil, usage(fmt.Errorf("there is the configuration %s: write what the flags say into its section service", file))
	}
	c, err := d.load()
	if err != nil {
		return nil, faulty(err)
	}
	return c, nil
}

// yaml is the section that the flags stand for, in the JSON that YAML includes.
func (f *serviceFlags) yaml() []byte {
	s := map[string]any{}
	if f.listen != "" {
		s["listen"] = f.listen
	}
	if f.store != "" {
		s["store"] = map[string]any{"url": f.store}
	}
	if address, secure := strings.CutPrefix(f.schedule, "rediss://"); secure {
		s["schedule"] = map[string]any{"redis": address, "tls": struct{}{}}
	} else if f.schedule != "" {
		s["schedule"] = map[string]any{"redis": strings.TrimPrefix(f.schedule, "redis://")}
	}
	if len(f.allow) > 0 {
		s["allow"] = f.allow
	}
	text, _ := json.Marshal(map[string]any{"service": s}) // nothing in it can fail
	return text
}

func (d *desk) service(ctx context.Context, c *config.Config) (err error) {
	s := &retries.Server{Logger: slog.New(slog.NewTextHandler(d.Err, nil)), Workers: c.Service.Concurrency, Retention: c.Service.Retention}
	if err := connect.CheckService(ctx, c); err != nil { // before there is a store
		return faulty(err)
	}
	if s.Tokens, s.MetricsToken, err = connect.Tokens(c); err != nil {
		return faulty(err)
	}
	if s.Guard, err = connect.Guard(c); err != nil {
		return faulty(err)
	}
	s.Quotas = connect.Quotas(c)
	if s.Web, err = connect.Web(c, "service", &c.Service.Web, s.Logger); err != nil {
		return faulty(err)
	}
	if s.Letters, err = d.letters(ctx, c); err != nil {
		return faulty(err)
	}
	if s.Letters != nil {
		defer func() { err = errors.Join(err, s.Letters.Broker.Close(context.WithoutCancel(ctx))) }()
	}
	address, err := c.TaskStoreAddress()
	if err != nil {
		return faulty(err)
	}
	if s.Store, err = service.Open(ctx, address); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Store.Close()) }()
	if s.Bodies, err = connect.Bodies(ctx, c, s.Store.ID()); err != nil {
		return faulty(err)
	}
	schedule, err := openSchedule(c, s.Store.ID())
	if err != nil {
		return faulty(err)
	}
	if schedule != nil {
		defer func() { err = errors.Join(err, schedule.Close()) }()
		s.Schedule = schedule
	}
	listener, err := net.Listen("tcp", c.Service.Listen)
	if err != nil {
		return fmt.Errorf("nothing was done: the address %s cannot be used: %w: is another redrive service running?", c.Service.Listen, err)
	}
	d.greet(s.Web.Scheme()+"://"+listener.Addr().String(), len(s.Tokens) > 0)
	s.Logger.Info("the store is open", "store", s.Store.ID())
	return s.ServeOn(ctx, listener)
}

// openSchedule is nil for a schedule in memory. One in Redis is that of the store with
// the ID alone.
func openSchedule(c *config.Config, id string) (*redisschedule.Schedule, error) {
	client, err := connect.Schedule(c)
	if client == nil || err != nil {
		return nil, err
	}
	schedule, err := redisschedule.New(client, "redrive:"+id)
	if err != nil {
		return nil, c.Fault("service.schedule", err)
	}
	return schedule, nil
}

// letters is nil where exhausted tasks stay in the store.
func (d *desk) letters(ctx context.Context, c *config.Config) (*retries.Letters, error) {
	dead := c.Service.Dead
	if dead == nil {
		return nil, nil
	}
	broker, err := d.open(ctx, c, dead.Broker)
	if err != nil {
		return nil, err
	}
	letters := &retries.Letters{Broker: broker, Topic: dead.Topic, Origin: dead.Origin, Worker: whoami()}
	if c.Brokers[dead.Broker].Kind == config.Kafka {
		letters.Group = dead.Group
	}
	return letters, nil
}

// greet says what to do next.
func (d *desk) greet(address string, tokens bool) {
	token := ""
	if tokens {
		token = ` -H "Authorization: Bearer $TOKEN"`
	}
	fmt.Fprintf(d.Err, `The retry service listens at %[1]s. Register a policy, and send it a call:

  curl %[1]s/retry-policies%[2]s -H 'Content-Type: application/json' -d '{"policyId": "standard"}'
  curl %[1]s/retry-tasks%[2]s -H 'Content-Type: application/json' -d '{"policyId": "standard", "idempotencyKey": "order-1", "targetUrl": "https://api.example.com/orders"}'

`, address, token)
}
