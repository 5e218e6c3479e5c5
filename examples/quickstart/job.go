package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// stage is what surrounds the worker for the sake of the show.
type stage struct {
	day       day
	policy    retry.Policy
	guard     consumer.Guard
	listen    func() (net.Listener, error)
	transport http.RoundTripper
	ledger    *ledger
	view      *view
	observers []consumer.Observer
	logger    *slog.Logger
}

// Exit codes of the command.
const (
	exitOK     = 0 // all orders are accounted for
	exitBroken = 1 // an order is lost, was charged twice, or came too early
	exitUsage  = 2
)

type options struct {
	orders  string
	json    bool
	log     bool
	metrics string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.orders, "orders", "", "read the orders from `FILE`, one JSON object per line, instead of the built-in 1,000")
	flags.BoolVar(&o.json, "json", false, "print the report as one JSON object on standard output, and all else on standard error")
	flags.BoolVar(&o.log, "log", false, "write the log of the worker to standard error, and no live view")
	flags.StringVar(&o.metrics, "metrics", "", "serve metrics for Prometheus at `ADDRESS` of this machine, such as 127.0.0.1:9090, while the worker works")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "unexpected argument %q\n", flags.Arg(0))
		flags.Usage()
		return o, errors.New("unexpected argument")
	}
	return o, nil
}

// command is the program behind main; it returns the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return exitUsage
	}
	lines, err := readOrders(o.orders)
	if err != nil {
		fmt.Fprintln(stderr, "quickstart: cannot read the orders:", err)
		return exitUsage
	}
	messages := stdout
	if o.json {
		messages = stderr
	}
	limiter := flow.New(concurrency, rand.Float64) // as the default one, made here so that the view can show it
	watch := stage{
		day:       badDay(),
		policy:    demoPolicy(),
		guard:     consumer.Guard{Limiter: limiter},
		listen:    bankPort,
		transport: http.DefaultTransport,
		ledger:    newLedger(),
		view:      newView(messages, isTerminal(messages) && !o.log, limiter),
		logger:    slog.New(slog.DiscardHandler),
	}
	watch.observers = []consumer.Observer{watch.view}
	if o.metrics != "" {
		s, err := scrape(o.metrics, &watch.guard)
		if err != nil {
			fmt.Fprintln(stderr, "quickstart: cannot serve metrics:", err)
			return exitUsage
		}
		defer s.close()
		watch.observers = append(watch.observers, s)
		fmt.Fprintf(messages, "metrics at %s\n", s.url)
	}
	if o.log {
		watch.logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	fmt.Fprintf(messages, "%s orders from %s, and a payment server that has a bad day\n\n", thousands(len(lines)), source(o.orders))
	result, err := work(ctx, lines, watch)
	if result.Read > 0 {
		err = errors.Join(err, publish(result, o.json, stdout))
		fmt.Fprintln(messages, "\nThe dead letters of another day can be sent back: make demo")
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "quickstart:", err)
		return exitBroken
	case !result.OK:
		return exitBroken
	}
	return exitOK
}

func source(file string) string {
	if file == "" {
		return "orders.jsonl"
	}
	return safe(filepath.Base(file), 60)
}

// publish writes the report to out.
func publish(r report, asJSON bool, out io.Writer) error {
	if !asJSON {
		_, err := io.WriteString(out, r.text())
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// work has all lines handled, unless ctx ends before, and draws up the report.
// The report is empty if the work could not begin.
func work(ctx context.Context, lines []line, watch stage) (report, error) {
	listener, err := watch.listen()
	if err != nil {
		return report{}, err
	}
	bank := openBank(watch.day, listener)
	defer bank.close()
	broker := memory.New(memory.Options{})
	defer func() { _ = broker.Close(context.WithoutCancel(ctx)) }()
	client := &http.Client{Transport: watch.ledger.tap(watch.transport), Timeout: watch.day.patience}
	worker, err := newWorker(broker, payments{client, bank.url}, watch)
	if err != nil {
		return report{}, err
	}
	if err := broker.Publish(ctx, topic, messages(lines)...); err != nil {
		return report{}, err
	}

	shown, hide := context.WithCancel(context.WithoutCancel(ctx)) // the drain, too
	defer hide()
	ctx, done := context.WithCancel(ctx)
	defer done()
	var side sync.WaitGroup
	side.Go(func() { watch.view.run(shown, broker, bank, len(lines)) })
	side.Go(func() { whenEmpty(ctx, broker, done) })
	err = worker.Run(ctx)
	done()
	hide()
	side.Wait()
	return audit(lines, bank, watch.ledger, broker), err
}

// whenEmpty calls done when the topic holds no message any more, in whatever
// state.
func whenEmpty(ctx context.Context, broker *memory.Broker, done func()) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for broker.Len(topic) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	done()
}
