package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/health"
)

// Consumer runs the handlers of its topics. Make one with [New], register
// handlers, then call [Consumer.Run] once.
type Consumer struct {
	broker brokers.Broker
	cfg    Config

	mu      sync.Mutex
	routes  []*route
	faults  []error
	started bool
	stop    context.CancelFunc // nil before Run

	stage atomic.Pointer[stage] // nil before Run
}

// New returns a Consumer that receives from broker. The error joins every
// fault of cfg as a *settings.Error.
func New(broker brokers.Broker, cfg Config) (*Consumer, error) {
	err := cfg.faults()
	if broker == nil {
		err = errors.Join(faulty("broker", "is nil", "pass a broker, such as memory.New(memory.Options{})"), err)
	}
	if cfg.DeadLetter == "" {
		err = errors.Join(err, faulty("Config.DeadLetter", "is not set: exhausted messages would have nowhere to go",
			`name a topic, as "*-dead" does, or use dlq.Discard to drop them on purpose`))
	}
	if err != nil {
		return nil, err
	}
	return &Consumer{broker: broker, cfg: cfg.withDefaults()}, nil
}

// Handle registers the handler of a topic, with the settings of Config. Faults
// are reported by Run.
func (c *Consumer) Handle(topic string, h Handler) { c.HandleWith(topic, h, TopicConfig{}) }

// HandleWith is Handle with settings of the topic in place of those of Config.
func (c *Consumer) HandleWith(topic string, h Handler, t TopicConfig) {
	c.register(topic, t, func(field string, r *route) error {
		if h == nil {
			return faulty(field, "the handler is nil", "pass a function")
		}
		if t.BatchSize != 0 || t.BatchWait != 0 {
			return faulty(field+".BatchSize", "is set for a handler of single messages", "register it with HandleBatch")
		}
		for _, wrap := range backwards(c.cfg.Middleware, t.Middleware) {
			if wrap == nil {
				return nil // reported by newRoute
			}
			if h = wrap(h); h == nil {
				return faulty(field, "a middleware returned a nil handler", "return a handler")
			}
		}
		r.handler = h
		return nil
	})
}

// HandleBatch registers a handler that takes the messages of a topic in
// batches of up to TopicConfig.BatchSize, which is required. Middleware does not apply
// to it. A batch has one context, which has the deadline of the topic and ends
// early only if all of its messages are lost. Faults are reported by Run.
func (c *Consumer) HandleBatch(topic string, h BatchHandler, t TopicConfig) {
	c.register(topic, t, func(field string, r *route) error {
		if h == nil {
			return faulty(field, "the handler is nil", "pass a function")
		}
		if len(t.Middleware) > 0 {
			return faulty(field+".Middleware", "does not apply to a batch handler", "remove it")
		}
		r.batchHandler = h
		return below(field+".BatchSize", t.BatchSize, 1, "use 1 or more")
	})
}

// register adds a route, or the faults that it has.
func (c *Consumer) register(topic string, t TopicConfig, handle func(field string, r *route) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		panic(fmt.Sprintf("consumer: topic %q is registered after Run", topic))
	}
	field := fmt.Sprintf("Topic(%q)", topic)
	r, faults := newRoute(c.cfg, topic, t)
	faults = errors.Join(faults, handle(field, r))
	if receipts := c.cfg.Receipts; receipts != "" && (receipts == topic || receipts == r.deadLetter) {
		faults = errors.Join(faults, faulty("Config.Receipts", fmt.Sprintf("%q is the topic %q or that of its dead letters", receipts, topic), "name a topic that is for receipts alone"))
	}
	for _, other := range c.routes {
		if other.topic == topic {
			faults = errors.Join(faults, faulty(field, "is registered twice", "register one handler per topic"))
		}
		for _, dead := range []string{r.deadLetter, other.deadLetter} {
			if dead != "" && (dead == topic || dead == other.topic) {
				faults = errors.Join(faults, faulty(field, fmt.Sprintf("%q is a topic and a dead-letter topic at once", dead), "consume dead letters with a Consumer of its own"))
			}
		}
	}
	c.routes = append(c.routes, r)
	if faults != nil {
		c.faults = append(c.faults, faults)
	}
}

// Run receives and handles messages until ctx ends, then drains: running
// handlers get DrainTimeout to finish, everything else is given back. It
// returns nil after a clean drain. It returns an error without having received
// anything if the registrations are faulty (each a *settings.Error) or the broker
// cannot be used as it is set up, and later if the broker reports
// brokers.ErrMisconfigured for all topics together, as when it refuses the
// password; an unclean drain is ErrUnclean. A topic that is deleted, and a message
// that cannot be settled, do not end Run: both are EventError.
func (c *Consumer) Run(ctx context.Context) (err error) {
	ctx, err = c.begin(ctx)
	if err != nil {
		return err
	}
	defer c.stop()
	c.enter(health.Opening, nil, nil)
	defer func() { c.enter(health.Stopped, nil, err) }()
	source, err := c.broker.Open(ctx, c.cfg.subscription(c.routes))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("consumer: open %s: no message was touched: %w", c.topics(), err)
	}
	if err := c.cfg.unfit(source.Capabilities(), c.routes); err != nil {
		return errors.Join(err, source.Close(ctx))
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	p := newPipeline(life, c, source)
	p.told = ctx.Err
	p.start()
	c.enter(health.Running, p, nil)
	p.log.started(c, p.caps.Findings)
	err = p.intake.receive(ctx)
	c.enter(health.Draining, p, err)
	err = errors.Join(err, p.drain(), closeSource(p.values, source))
	end()
	p.stages.Wait()
	if p.receipts != nil {
		p.receipts.dropRest()
	}
	p.log.stopped(err)
	return err
}

// begin lets Run go on once, if there are no faults, with a context that Drain ends.
func (c *Consumer) begin(ctx context.Context) (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return nil, errors.New("consumer: Run was called twice: make a new Consumer for each run")
	}
	if len(c.routes) == 0 {
		return nil, faulty("Consumer", "has no handler", "register one with Handle")
	}
	if err := errors.Join(c.faults...); err != nil {
		return nil, err
	}
	c.started = true
	ctx, c.stop = context.WithCancel(ctx)
	return ctx, nil
}

func (c *Consumer) topics() string {
	names := make([]string, len(c.routes))
	for i, r := range c.routes {
		names[i] = r.topic
	}
	return strings.Join(names, ", ")
}

// backwards joins the lists and reverses the result, so that the first of
// outer is applied last.
func backwards(outer, inner []func(Handler) Handler) []func(Handler) Handler {
	all := slices.Concat(outer, inner)
	slices.Reverse(all)
	return all
}
