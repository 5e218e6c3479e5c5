package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/settings"
)

// Config holds what all topics of a Consumer share. Only DeadLetter is
// required; every other field has a default that suits production.
type Config struct {
	// DeadLetter names the topic for messages that are exhausted or poison; each
	// "*" in it is the name of their own topic. "*-dead" is orders-dead for those
	// of orders, "dead" is one topic for all. dlq.Discard drops them on purpose,
	// but no dead letters of redrive: where a handler reads dead letters, name a
	// third topic. Required.
	DeadLetter string

	// Receipts names the topic that this worker publishes a dlq.Receipt to when a
	// message that was sent back with a Meta.Send fails for the first time, and when
	// it ends. Receipts hold up no message: up to a thousand wait while the topic is
	// down, the others are dropped (EventReceiptDropped), and when the worker stops
	// they have what is left of DrainTimeout. Default: none are published.
	Receipts string

	// Retry says how often and how far apart failures are tried again. Its
	// zero value means 10 attempts, 1 s doubling to 15 min, full jitter. A
	// retry that has to wait for its guard or a token may begin after MaxAge:
	// it is not ended unheard, but its failure ends it. A message may come in
	// dead, because its dead letter could not be published before, or without an
	// attempt left, because MaxAttempts was lowered since. The worker
	// dead-letters it without another run.
	Retry retry.Policy

	// Concurrency is how many handlers of a topic run at once. A topic takes no
	// slot from another. Default 10.
	Concurrency int

	// MaxConcurrency is how many handlers run at once over all topics, which
	// take turns. 0 means no limit but that of each topic.
	MaxConcurrency int

	// Prefetch is how many deliveries of a topic wait in the process for a free
	// handler, or for the rest of their batch: at least as many as fill one.
	// Their leases are kept. Default is Concurrency, or, where handlers are quick,
	// what they do in 20 ms, within a half of MaxHeld and of MaxHeldBytes.
	Prefetch int

	// HandlerTimeout bounds one handler run; its context then ends with cause
	// classify.ErrAttemptTimeout. Default 5 min.
	HandlerTimeout time.Duration

	// DrainTimeout is how long running handlers may go on after the context
	// of Run has ended. Default 25 s, because Kubernetes kills after 30;
	// settings.None ends them at once.
	DrainTimeout time.Duration

	// HoldLimit is the longest retry delay that is waited for in the process,
	// with the lease kept and no handler slot used; longer ones, and those
	// that the lease cannot outlast, go to the broker. Default 2 s;
	// settings.None sends all to the broker. A message that the broker brings back
	// up to 2 s early is held in any case. Where the broker says that holding is dear
	// (brokers.Capabilities.MaxHold: RabbitMQ, 20 ms), the limit of a message
	// that is not retried yet is no longer than that, unless its key waits for
	// it (OrderByKey).
	HoldLimit time.Duration

	// MaxHeld bounds the deliveries held so at a time, together with those
	// whose dead letter is on its way. Each topic has an equal part of it.
	// A delivery that finds no place goes back to the broker for a while. A dead
	// message then carries the content of its dead letter. Default 1000.
	MaxHeld int

	// MaxHeldBytes bounds the bodies of these in the same way. Default 64 MiB.
	MaxHeldBytes int

	// OrderByKey runs messages with the same topic and key one after the other,
	// in the order received, and different keys in parallel. A retry held in
	// the process holds its key; one that goes to the broker lets later messages
	// of its key overtake. Messages without a key are unordered. Default: any
	// messages run in parallel.
	OrderByKey bool

	// Group names the workers that share the messages, where the broker needs
	// a name (Kafka). Default: the adapter's choice.
	Group string

	// Lease asks the broker for leases of this length. Default: the adapter's
	// choice.
	Lease time.Duration

	// CrashLimit ends messages that presumably kill their worker. After
	// CrashLimit-1 lost deliveries a message goes on trial: back to its queue for a
	// random time of up to a minute, to run at once when it comes again. After
	// CrashLimit lost deliveries on trial it is dead-lettered without a run. Default
	// 3; settings.None never ends it.
	CrashLimit int

	// MaxBody dead-letters larger messages without running them, in bytes.
	// Default: no limit.
	MaxBody int

	// Guard spares what handlers depend on when it fails. Each dependency has
	// one of its own; its zero value protects.
	Guard Guard

	// Guards are those of dependencies that need other settings, by name: the
	// topic or TopicConfig.Dependency.
	Guards map[string]Guard

	// NoRepeat says that a handler must not run again after a run that may have
	// had its effect, such as one that timed out or met a status 500: the
	// message becomes a dead letter with the reason "ambiguous", for somebody
	// to look at. Use it only where repeating does harm that neither the
	// idempotency key nor package idempotency can keep away. It is no promise
	// of at most one run: a crash or a lost lease runs a handler again all the
	// same.
	NoRepeat bool

	// Rules classify errors before the built-in rules, see classify.Of.
	Rules []classify.Rule

	// Middleware wraps every handler; the first is outermost. It sees every run,
	// retries included, after the pipeline has decided to run it.
	Middleware []func(Handler) Handler

	// Observers see every event, in order, on the goroutine that it happens
	// on: they must be quick and must not block.
	Observers []Observer

	// Tracer gives each run of a handler a span, as package tracing does for
	// OpenTelemetry. Default: none, which costs nothing.
	Tracer Tracer

	// Logger receives failures, dead letters and changes of state, sampled so
	// that equal failures cannot flood it. Default slog.Default().
	Logger *slog.Logger

	// Redact removes secrets from error texts before they are logged or stored
	// in dead letters. Default dlq.Redact.
	Redact func(string) string

	// Stacks keeps the stack of a panic in the dead letter. Off by default:
	// stacks may hold values of your program.
	Stacks bool

	// Instance names this worker in dead letters. Default: host name and
	// process id.
	Instance string

	// Random draws from [0, 1) for the jitter of delays. Default
	// rand.Float64 of math/rand/v2; tests may replace it.
	Random func() float64
}

// TopicConfig overrides settings of Config for one topic. The zero value changes
// nothing.
type TopicConfig struct {
	DeadLetter     string
	Retry          *retry.Policy // replaces the policy as a whole
	MaxAttempts    int           // replaces only the policy's MaxAttempts
	HandlerTimeout time.Duration
	MaxBody        int
	Concurrency    int
	Prefetch       int                     // default that of Config, or Concurrency if only this is set
	NoRepeat       bool                    // adds to that of Config
	Rules          []classify.Rule         // asked before those of Config
	Middleware     []func(Handler) Handler // inside that of Config

	// Dependency names what the handler depends on, such as "payments". Topics
	// that name the same one share its limit and its budget. Default: the
	// topic's own name.
	Dependency string

	// Deadline ends a message that is not handled in time: no run starts later
	// than this after Message.PublishedAt, or after the first arrival if that is
	// unknown. [brokers.Message.SetDeadline] sets one for a single message; the
	// earlier one counts. After it the message is a dead letter with the reason
	// "expired", as soon as its turn comes. The same happens at once when a run
	// fails whose retry would start too late. The context of a run ends at the
	// deadline, with the cause [ErrDeadline]; that of a batch does not. A message
	// that was sent back from a dead-letter topic has no deadline. Default: none.
	Deadline time.Duration

	// StartAfter puts off the first run of a message until this long after
	// Message.PublishedAt, or after the first arrival if that is unknown. It waits
	// in the broker, which costs no attempt, but a copy of each message. A message
	// that was sent back does not wait. Config.OrderByKey and brokers that keep the
	// order of keys exclude it. Default: messages run as they arrive.
	StartAfter time.Duration

	// BatchSize is the most messages of one batch of [Consumer.HandleBatch],
	// which requires it.
	BatchSize int

	// BatchWait is how long the first message of a batch waits for others.
	// Default 100 ms.
	BatchWait time.Duration

	// DependencyOf names what one message depends on: its tenant, or the host
	// that it is for. A name that times out or hangs has one slot, until one of
	// its messages succeeds. Its other messages wait, uncounted, and those of
	// other names go on. "" means none. The function must be quick, and may be
	// called at the same time.
	DependencyOf func(m *brokers.Message) string
}

func faulty(field, problem, fix string) error {
	return &settings.Error{Package: "consumer", Field: field, Problem: problem, Fix: fix}
}

const (
	defaultConcurrency    = 10
	defaultHandlerTimeout = 5 * time.Minute
	defaultDrainTimeout   = 25 * time.Second
	defaultHoldLimit      = 2 * time.Second
	defaultBatchWait      = 100 * time.Millisecond
	defaultMaxHeld        = 1000
	defaultMaxHeldBytes   = 64 << 20
	defaultCrashLimit     = 3
)

// withDefaults fills what is unset; settings.None has become a plain zero or bound.
func (c Config) withDefaults() Config {
	c.Concurrency = setting(c.Concurrency, defaultConcurrency, defaultConcurrency)
	c.HandlerTimeout = setting(c.HandlerTimeout, defaultHandlerTimeout, defaultHandlerTimeout)
	c.DrainTimeout = setting(c.DrainTimeout, defaultDrainTimeout, 0)
	c.HoldLimit = setting(c.HoldLimit, defaultHoldLimit, 0)
	c.MaxHeld = setting(c.MaxHeld, defaultMaxHeld, 0)
	c.MaxHeldBytes = setting(c.MaxHeldBytes, defaultMaxHeldBytes, 0)
	c.CrashLimit = setting(c.CrashLimit, defaultCrashLimit, 0)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Redact == nil {
		c.Redact = dlq.Redact
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Instance == "" {
		host, _ := os.Hostname()
		c.Instance = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	return c
}

// setting returns unset for 0, none for negative values, else value.
func setting[T ~int | ~int64](value, unset, none T) T {
	switch {
	case value == 0:
		return unset
	case value < 0:
		return none
	}
	return value
}

// faults returns every fault of c, joined.
func (c Config) faults() error {
	faults := []error{
		count("Config.Concurrency", c.Concurrency, 0, "or 0 for 10"),
		count("Config.MaxConcurrency", c.MaxConcurrency, 0, "or 0 for no limit"),
		count("Config.Prefetch", c.Prefetch, 0, "or 0 for that of Concurrency"),
		below("Config.HandlerTimeout", c.HandlerTimeout, 0, "use a positive duration, or 0 for 5m"),
		below("Config.DrainTimeout", c.DrainTimeout, settings.None, "use a positive duration, 0 for 25s, or settings.None"),
		below("Config.HoldLimit", c.HoldLimit, settings.None, "use a positive duration, 0 for 2s, or settings.None to hold nothing"),
		count("Config.MaxHeld", c.MaxHeld, 0, "or 0 for 1000"),
		below("Config.MaxHeldBytes", c.MaxHeldBytes, 0, "use a size in bytes, or 0 for 64 MiB"),
		below("Config.Lease", c.Lease, 0, "use a positive duration, or 0 for the adapter's choice"),
		below("Config.CrashLimit", c.CrashLimit, settings.None, "use 1 or more, 0 for 3, or settings.None for no limit"),
		below("Config.MaxBody", c.MaxBody, 0, "use a size in bytes, or 0 for no limit"),
		policyFaults("Config.Retry", c.Retry),
		c.Guard.faults("Config.Guard"),
	}
	for _, name := range slices.Sorted(maps.Keys(c.Guards)) {
		faults = append(faults, c.Guards[name].faults(fmt.Sprintf("Config.Guards[%q]", name)))
	}
	if c.Lease > 0 && c.Lease < minLease {
		faults = append(faults, faulty("Config.Lease", fmt.Sprintf("%s is too short to extend and settle in", c.Lease), fmt.Sprintf("use at least %s", minLease)))
	}
	for i, rule := range c.Rules {
		faults = append(faults, missing(fmt.Sprintf("Config.Rules[%d]", i), rule == nil))
	}
	for i, middleware := range c.Middleware {
		faults = append(faults, missing(fmt.Sprintf("Config.Middleware[%d]", i), middleware == nil))
	}
	for i, observer := range c.Observers {
		faults = append(faults, missing(fmt.Sprintf("Config.Observers[%d]", i), observer == nil))
	}
	return errors.Join(faults...)
}

// minLease is the shortest lease that leaves time for an extension and a
// settlement over a network.
const minLease = time.Second

func below[T ~int | ~int64](field string, value, least T, fix string) error {
	if value >= least {
		return nil
	}
	return faulty(field, fmt.Sprintf("%v is out of range", value), fix)
}

// maxCount bounds what takes memory before there is any message.
const maxCount = 1 << 20

// count is below for numbers of deliveries and handlers, which have an upper
// bound as well; others are the values besides that may be used.
func count(field string, value, least int, others string) error {
	fix := fmt.Sprintf("use 1 to %d, %s", maxCount, others)
	if value > maxCount {
		return faulty(field, fmt.Sprintf("%d is out of range", value), fix)
	}
	return below(field, value, least, fix)
}

func missing(field string, isNil bool) error {
	if !isNil {
		return nil
	}
	return faulty(field, "is nil", "remove it or set it")
}

// policyFaults returns each fault of p, joined.
func policyFaults(field string, p retry.Policy) error {
	var faults []error
	for _, err := range leaves(p.Validate()) {
		if f, ok := errors.AsType[*settings.Error](err); ok {
			err = faulty(field+strings.TrimPrefix(f.Field, "Policy"), f.Problem, f.Fix)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// leaves returns the errors that joins of joins hold.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if err == nil {
			return nil
		}
		return []error{err}
	}
	var all []error
	for _, branch := range joined.Unwrap() {
		all = append(all, leaves(branch)...)
	}
	return all
}

// route is a registered topic with its settings resolved.
type route struct {
	topic      string
	handler    Handler // exactly one of handler and batchHandler is set
	batchSize  int
	batchWait  time.Duration
	policy     retry.Policy
	attempts   int    // the most runs that policy allows
	excuses    bool   // MaxAge is the default, and leaves out the time of overload
	deadLetter string // "" discards
	timeout    time.Duration
	maxBody    int
	noRepeat   bool
	deadline   time.Duration // 0 means none
	startAfter time.Duration
	rules      []classify.Rule

	batchHandler BatchHandler
	concurrency  int
	prefetch     int
	fixed        bool // the prefetch, by the user
	dependency   string
	dependencyOf func(*brokers.Message) string
	stray        bool // no handler is registered
}

// newRoute resolves the settings of topic; handlers are set by the caller.
func newRoute(c Config, topic string, t TopicConfig) (*route, error) {
	field := fmt.Sprintf("Topic(%q)", topic)
	faults := []error{
		below(field+".MaxAttempts", t.MaxAttempts, 0, "use 1 or more, or 0 for that of Config.Retry"),
		below(field+".HandlerTimeout", t.HandlerTimeout, 0, "use a positive duration, or 0 for that of Config"),
		below(field+".MaxBody", t.MaxBody, 0, "use a size in bytes, or 0 for that of Config"),
		count(field+".Concurrency", t.Concurrency, 0, "or 0 for that of Config"),
		count(field+".Prefetch", t.Prefetch, 0, "or 0 for that of Config"),
		below(field+".BatchWait", t.BatchWait, 0, "use a positive duration, or 0 for 100ms"),
		below(field+".Deadline", t.Deadline, 0, "use a positive duration, or 0 for none"),
		below(field+".StartAfter", t.StartAfter, 0, "use a positive duration, or 0 for none"),
	}
	if t.Deadline > 0 && t.StartAfter >= t.Deadline {
		faults = append(faults, faulty(field+".StartAfter", fmt.Sprintf("%s is not less than the Deadline of %s: no message would run", t.StartAfter, t.Deadline), "use a shorter one"))
	}
	if t.StartAfter > 0 && c.OrderByKey {
		faults = append(faults, faulty(field+".StartAfter", "is set beside Config.OrderByKey: messages of a key overtake each other while they wait", "set one of them"))
	}
	r := &route{
		topic:   topic,
		policy:  c.Retry,
		timeout: setting(t.HandlerTimeout, c.HandlerTimeout, c.HandlerTimeout),
		maxBody: setting(t.MaxBody, c.MaxBody, c.MaxBody),
		rules:   append(append([]classify.Rule{}, t.Rules...), c.Rules...),

		batchSize:    t.BatchSize,
		batchWait:    setting(t.BatchWait, defaultBatchWait, defaultBatchWait),
		noRepeat:     c.NoRepeat || t.NoRepeat,
		deadline:     t.Deadline,
		startAfter:   t.StartAfter,
		concurrency:  setting(t.Concurrency, c.Concurrency, c.Concurrency),
		dependency:   cmp.Or(t.Dependency, topic),
		dependencyOf: t.DependencyOf,
	}
	prefetch := t.Prefetch
	if prefetch == 0 && t.Concurrency == 0 {
		prefetch = c.Prefetch
	}
	r.prefetch, r.fixed = cmp.Or(prefetch, r.concurrency), prefetch != 0
	if t.Retry != nil {
		r.policy = *t.Retry
		faults = append(faults, policyFaults(field+".Retry", r.policy))
	}
	if t.MaxAttempts > 0 {
		r.policy.MaxAttempts = t.MaxAttempts
	}
	r.attempts, _, _ = r.policy.Limits()
	r.excuses = r.policy.MaxAge == 0
	for i, rule := range t.Rules {
		faults = append(faults, missing(fmt.Sprintf("%s.Rules[%d]", field, i), rule == nil))
	}
	for i, middleware := range t.Middleware {
		faults = append(faults, missing(fmt.Sprintf("%s.Middleware[%d]", field, i), middleware == nil))
	}
	destination := deadLetterOf(topic, cmp.Or(t.DeadLetter, c.DeadLetter))
	switch {
	case topic == "":
		faults = append(faults, faulty(field, "the topic has no name", "name the topic to receive from"))
	case destination == topic:
		faults = append(faults, faulty(field+".DeadLetter", "it names the topic itself, which would receive its dead letters again as messages",
			`name another topic, as "*-dead" does`))
	default:
		r.deadLetter = destination
	}
	return r, errors.Join(faults...)
}

// deadLetterOf is where dead letters of topic go by a DeadLetter; "" discards.
func deadLetterOf(topic, setting string) string {
	if setting == dlq.Discard {
		return ""
	}
	return strings.ReplaceAll(setting, "*", topic)
}

// unfit returns what of c the source cannot do, joined.
func (c Config) unfit(caps brokers.Capabilities, routes []*route) error {
	var faults []error
	for _, r := range routes {
		if r.startAfter > 0 && caps.Ordered {
			faults = append(faults, faulty(fmt.Sprintf("Topic(%q).StartAfter", r.topic),
				"is set, and the broker keeps the order of keys: it would hold back a key for each of its messages", "use a queue without order, or have the queue itself delay"))
		}
		if caps.MaxLease > 0 && r.timeout >= caps.MaxLease {
			faults = append(faults, faulty(fmt.Sprintf("Topic(%q).HandlerTimeout", r.topic),
				fmt.Sprintf("%s is not less than the %s that the broker lets anybody hold a message", r.timeout, caps.MaxLease), "use a shorter timeout"))
		}
	}
	if caps.MaxLease > 0 && c.HoldLimit >= caps.MaxLease {
		faults = append(faults, faulty("Config.HoldLimit",
			fmt.Sprintf("%s is not less than the %s that the broker lets anybody hold a message", c.HoldLimit, caps.MaxLease), "use a shorter limit"))
	}
	return errors.Join(faults...)
}

// window is how many deliveries of the topic are received, in slots or waiting
// for one.
func (r *route) window() int {
	return r.concurrency*max(1, r.batchSize) + max(r.prefetch, r.batchSize)
}

// slots is how many of n handlers may run at once.
func (c Config) slots(n int) int { return min(n, cmp.Or(c.MaxConcurrency, n)) }

// subscription is what the routes together ask of the broker.
func (c Config) subscription(routes []*route) brokers.Subscription {
	sub := brokers.Subscription{
		Group:       c.Group,
		DeadLetters: map[string]string{},
		Receipts:    c.Receipts,
		Attempts:    map[string]int{},
		InFlight:    c.MaxHeld,
		Lease:       c.Lease,
		Ordered:     c.OrderByKey,
	}
	for _, r := range routes {
		sub.Topics = append(sub.Topics, r.topic)
		sub.InFlight += r.window()
		if r.deadLetter != "" {
			sub.DeadLetters[r.topic] = r.deadLetter
		}
		attempts, delay, age := r.policy.Limits()
		sub.Attempts[r.topic] = attempts
		sub.MaxAttempts = max(sub.MaxAttempts, attempts)
		sub.MaxDelay = max(sub.MaxDelay, delay, r.startAfter)
		sub.MaxAge = max(sub.MaxAge, age)
	}
	maps.DeleteFunc(sub.Attempts, func(_ string, attempts int) bool { return attempts == sub.MaxAttempts })
	return sub
}
