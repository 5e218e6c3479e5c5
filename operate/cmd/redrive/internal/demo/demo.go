// Package demo is redrive on the day after: a worker has charged 10,000 orders at a
// payment server that refuses yen since this morning, and 4,000 of them are dead. Its
// redrive serve has collected them, and the command redrive can be tried on them. The
// worker sends mails, too, by a server that is out of order for 20 s of each minute, so
// that there is something to watch.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// Options configure the demonstration.
type Options struct {
	// Dir is the folder for configuration and store. It is made, and what the
	// demonstration wrote there is removed in the end.
	Dir string

	// Bank is the address of the payment server, Listen that of redrive serve, and
	// Watch that of the worker's status and metrics.
	Bank, Listen, Watch string

	// RabbitMQ is the URL of a server, user and password included. Empty means the
	// broker in the process.
	RabbitMQ string

	// Traces, unless it is nil, makes what writes the spans of the worker, which go into
	// a file of Dir.
	Traces func(io.Writer) Traces

	// Out is where it says what to try.
	Out io.Writer

	// Logger is that of redrive serve.
	Logger *slog.Logger

	// Ready, unless it is nil, is called when all letters are collected, with the
	// URL of the payment server.
	Ready func(bank string)
}

// Traces make the spans of the worker.
type Traces struct {
	Tracer   consumer.Tracer
	Parent   func() string                           // the traceparent of a producer
	Exemplar func(context.Context) map[string]string // leads from a metric to a span
	Log      func(slog.Handler) slog.Handler         // adds the IDs to the log
	End      func(context.Context) error
}

// demo is the stage.
type demo struct {
	Options
	topic, dead, receipts string
	mails, serving        string
	log, spans            *os.File // of the worker
	traces                Traces
	watch                 *watched
	bank                  *bank
	config                *config.Config
	store                 *store.Store
	server                *serve.Server
}

// Run plays until ctx ends, which is no error.
func Run(ctx context.Context, o Options) (err error) {
	d := &demo{Options: o, topic: "orders", dead: "orders-dead", receipts: "receipts", mails: "mails"}
	if o.RabbitMQ != "" { // where others may have topics of these names
		d.topic, d.dead, d.receipts, d.mails = "redrive-demo-orders", "redrive-demo-orders-dead", "redrive-demo-receipts", "redrive-demo-mails"
	}
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	if d.bank, err = openBank(o.Bank); err != nil {
		return err
	}
	defer d.bank.close()
	address, err := d.config.StoreAddress()
	if err != nil {
		return err
	}
	if d.store, err = store.Open(ctx, address); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.store.Close()) }()
	if err := d.openFiles(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.closeFiles(context.WithoutCancel(ctx))) }()
	listener, err := net.Listen("tcp", d.config.Serve.Listen)
	if err != nil {
		return err
	}
	d.serving = "http://" + listener.Addr().String()
	return d.play(ctx, listener)
}

// play has the worker work and redrive serve serve.
func (d *demo) play(ctx context.Context, listener net.Listener) error {
	embedded := memory.New(memory.Options{})
	d.server = &serve.Server{
		Config: d.config, Store: d.store, Owner: "the demonstration", Logger: d.Logger,
		Brokers: serve.NewBrokers(func(ctx context.Context, name string) (brokers.Broker, error) {
			if d.RabbitMQ == "" {
				return embedded, nil
			}
			return connect.Broker(ctx, d.config, name)
		}),
	}
	broker, err := d.server.Brokers.Open(ctx, "shop")
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	worker, err := d.newWorker(broker)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { _ = d.watch.close() }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	run := func(f func() error) {
		running.Go(func() {
			if err := f(); err != nil {
				stop(err)
			}
		})
	}
	run(func() error { return worker.Run(ctx) })
	run(func() error {
		select { // the worker declares the topics that redrive serve reads
		case <-d.bank.asked:
			return d.server.ServeOn(ctx, listener, "")
		case <-ctx.Done():
			return listener.Close()
		}
	})
	run(func() error { return d.orders(ctx, broker) })
	run(func() error { return d.publishMails(ctx, broker) })
	<-ctx.Done()
	running.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = d.server.Brokers.Close(last)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !isSignal(cause) {
		err = errors.Join(cause, err)
	}
	return err
}

// isSignal reports whether a context ended because somebody pressed Ctrl-C.
func isSignal(cause error) bool { return strings.Contains(cause.Error(), "signal received") }

const (
	logFile    = "worker.log"
	tracesFile = "traces.txt"
)

// files are what the demonstration writes into its folder.
var files = []string{"redrive.yaml", "password", "letters.db", "letters.db-wal", "letters.db-shm", logFile, tracesFile}

// openFiles opens those of the worker.
func (d *demo) openFiles() (err error) {
	if d.log, err = os.OpenFile(filepath.Join(d.Dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600); err != nil || d.Traces == nil {
		return err
	}
	if d.spans, err = os.OpenFile(filepath.Join(d.Dir, tracesFile), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600); err != nil {
		return errors.Join(err, d.log.Close())
	}
	d.traces = d.Traces(d.spans)
	return nil
}

func (d *demo) closeFiles(ctx context.Context) (err error) {
	if d.spans != nil {
		err = errors.Join(d.traces.End(ctx), d.spans.Close())
	}
	return errors.Join(err, d.log.Close())
}

// prepare writes the configuration, and reads it.
func (d *demo) prepare() error {
	dir, err := filepath.Abs(d.Dir)
	if err != nil {
		return err
	}
	d.Dir = dir
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	if err := d.removeFiles(); err != nil {
		return fmt.Errorf("an earlier demonstration has left files that cannot be removed: %w", err)
	}
	broker := "{kind: memory}"
	if d.RabbitMQ != "" {
		u, err := url.Parse(d.RabbitMQ)
		if err != nil || u.Host == "" {
			return errors.New("the URL of RabbitMQ is none: use one such as amqp://guest:guest@localhost:5672/")
		}
		user, password := u.User.Username(), ""
		password, _ = u.User.Password()
		if err := os.WriteFile(filepath.Join(d.Dir, "password"), []byte(password), 0o600); err != nil {
			return err
		}
		u.User = nil
		broker = fmt.Sprintf("{kind: rabbitmq, urls: [%q], user: %q, password: {file: password}, allow_plaintext: true}", u.String(), user)
	}
	text := fmt.Sprintf(`# The configuration of make demo.
brokers:
  shop: %s
topics:
  - {name: %s, broker: shop, dead: [%s], receipts: %s, collect: true}
store: {url: letters.db}
serve: {listen: %q}
`, broker, d.topic, d.dead, d.receipts, d.Listen)
	file := filepath.Join(d.Dir, config.DefaultFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	d.config, err = config.Load(file)
	return err
}

func (d *demo) removeFiles() error {
	var errs []error
	for _, name := range files {
		if err := os.Remove(filepath.Join(d.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove leaves the folder if there is something else in it.
func (d *demo) remove() error {
	err := d.removeFiles()
	_ = os.Remove(d.Dir)
	return err
}
