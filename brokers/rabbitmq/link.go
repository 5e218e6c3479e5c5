package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// endpoint is an entry of Options.URLs.
type endpoint struct {
	amqp.URI
	plain      string // the URL with its parameters, which the URI does not give back, but without TLS
	mechanisms []func(*amqp.PlainAuth) amqp.Authentication
}

// mechanisms are ways to log in, by the name in the parameter auth_mechanism.
var mechanisms = map[string]func(*amqp.PlainAuth) amqp.Authentication{
	"PLAIN": func(a *amqp.PlainAuth) amqp.Authentication { return a },
	"AMQPLAIN": func(a *amqp.PlainAuth) amqp.Authentication {
		return &amqp.AMQPlainAuth{Username: a.Username, Password: a.Password}
	},
	"EXTERNAL": func(*amqp.PlainAuth) amqp.Authentication { return &amqp.ExternalAuth{} },
}

func newEndpoint(url string) (endpoint, error) {
	uri, err := amqp.ParseURI(url)
	if err != nil {
		return endpoint{}, errors.New("is not an AMQP URL: use amqp://user:password@host:port/vhost with user, password and vhost percent-encoded")
	}
	e := endpoint{URI: uri, plain: url}
	if uri.Scheme == secureScheme {
		e.plain = "amqp" + url[len(secureScheme):]
	}
	if uri.ChannelMax == 1 {
		return e, errors.New("allows one channel on a connection: use a channel_max of 2 or more")
	}
	names := uri.AuthMechanism
	if names == nil {
		names = []string{"PLAIN"}
	}
	for _, name := range names {
		m := mechanisms[strings.ToUpper(name)]
		if m == nil {
			return e, errors.New("names an auth_mechanism that is none of plain, amqplain and external")
		}
		e.mechanisms = append(e.mechanisms, m)
	}
	return e, nil
}

// link is one connection. The library's own recovery stays off: a link that is
// lost is never used again, and neither is what was received on it.
type link struct {
	conn    *amqp.Connection
	wire    *gatherer     // below TLS; closing it ends every call that hangs
	limit   time.Duration // for calls that wait for an answer
	ctx     context.Context
	cancel  context.CancelCauseFunc
	blocked blockade
	work    sync.WaitGroup
	asking  sync.Mutex    // held for each request
	setup   *amqp.Channel // for requests, one at a time
	vhost   string
	drops   bool // the broker limits deliveries by default
	merges  bool // it lets consumers go on
}

// dial connects to one of the endpoints, tried in random order. The result
// lives until lost or closed; ctx bounds the call.
func (b *Broker) dial(ctx context.Context, purpose string) (*link, error) {
	var errs []error
	for _, i := range rand.Perm(len(b.endpoints)) {
		l, err := b.dialOne(ctx, b.endpoints[i], purpose)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// config is what the library is told of a connection, but for how to dial.
func (b *Broker) config(to endpoint, purpose string) amqp.Config {
	config := amqp.Config{
		Heartbeat:  b.options.Heartbeat,
		Locale:     "en_US",
		Properties: amqp.NewConnectionProperties(),
	}
	config.Properties.SetClientConnectionName("redrive " + purpose)
	account := b.account(to)
	for _, mechanism := range to.mechanisms {
		config.SASL = append(config.SASL, login{mechanism(account), config.Properties})
	}
	return config
}

// account is what to log in with.
func (b *Broker) account(at endpoint) *amqp.PlainAuth {
	account := at.PlainAuth()
	if b.options.Credentials != nil {
		account.Username, account.Password = b.options.Credentials()
	}
	return account
}

// bounded calls f with a connection that ends with it, and with ctx.
func (b *Broker) bounded(ctx context.Context, purpose string, f func(*link) error) error {
	l, err := b.dial(ctx, purpose)
	if err != nil {
		return err
	}
	defer l.close(ctx, brokers.ErrClosed)
	stop := context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	defer stop()
	return f(l)
}

func (b *Broker) dialOne(ctx context.Context, to endpoint, purpose string) (*link, error) {
	l := &link{limit: b.options.CallTimeout}
	config := b.config(to, purpose)
	ctx, cancel := context.WithTimeout(ctx, b.options.CallTimeout)
	defer cancel()
	stop := func() bool { return true }
	var read *screen
	config.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := b.options.Dial(ctx, network, net.JoinHostPort(to.Host, strconv.Itoa(to.Port)))
		if err != nil {
			return nil, err
		}
		l.wire = newGatherer(conn)
		stop = context.AfterFunc(ctx, func() { conn.Close() })
		above, err := to.secure(ctx, l.wire, b.options.TLS)
		if err != nil {
			return nil, err
		}
		read = newScreen(above)
		return read, nil
	}
	conn, err := amqp.DialConfig(to.plain, config)
	if err == nil && !stop() {
		conn.CloseDeadline(time.Now())
		err = context.Cause(ctx)
	}
	if err != nil {
		stop()
		if l.wire != nil {
			l.wire.Close()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, connectError(to.URI, err)
	}
	l.conn, l.vhost = conn, to.Vhost
	version, _ := conn.Properties["version"].(string)
	l.drops = !strings.HasPrefix(version, "3.")
	l.merges = merges(version)
	read.limit(conn.Config.FrameSize)
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.watch()
	return l, nil
}

// login asks the broker to say when it refuses user and password. It would
// close the connection without a word otherwise, as if the network had.
type login struct {
	amqp.Authentication
	properties amqp.Table // of the client
}

// Response is called by the library after it has set the capabilities, to
// which it knows no other way to add one, and before it sends them.
func (l login) Response() string {
	if capabilities, ok := l.properties["capabilities"].(amqp.Table); ok {
		capabilities["authentication_failure_close"] = true
	}
	return l.Authentication.Response()
}

// watch ends the context of the link when the connection does.
func (l *link) watch() {
	closed := l.conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := l.conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	l.work.Go(func() {
		defer l.blocked.set(false)
		for {
			select {
			case b, ok := <-blocks:
				if !ok {
					blocks = nil
					continue
				}
				l.blocked.set(b.Active)
			case err := <-closed:
				l.cancel(lostError(err))
				return
			}
		}
	})
}

// call runs f, which waits for an answer of the broker and knows no limit of
// its own, and closes the connection when that takes too long.
func (l *link) call(f func() error) error {
	defer l.guard()()
	if err := f(); err != nil {
		if cause := context.Cause(l.ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

// guard closes the connection unless the returned function is called in time.
// While the broker blocks the connection, waiting is what it asks for.
func (l *link) guard() (release func()) {
	ctx, cancel := context.WithCancel(l.ctx)
	timer := time.AfterFunc(l.limit, func() {
		if free := l.blocked.wait(); free != nil {
			select {
			case <-free:
			case <-ctx.Done():
			}
			adapter.Rest(ctx, l.limit)
		}
		if ctx.Err() == nil {
			l.end(fmt.Errorf("the broker did not answer within %v: the connection was closed", l.limit))
		}
	})
	return func() {
		timer.Stop()
		cancel()
	}
}

// end gives the link up, whatever hangs on it.
func (l *link) end(cause error) {
	l.cancel(cause)
	l.wire.Close()
}

// close ends the connection within ctx, and waits for its goroutines.
func (l *link) close(ctx context.Context, cause error) {
	l.cancel(cause)
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.wire.Close() })()
	l.conn.Close()
	l.wire.Close()
	l.work.Wait()
}

// blockade is whether the broker has blocked the connection, because its
// memory or disk is short, and lets wait for the end of that.
type blockade struct {
	mu   sync.Mutex
	free chan struct{} // closed when it ends; nil while there is none
}

func (b *blockade) set(active bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case active && b.free == nil:
		b.free = make(chan struct{})
	case !active && b.free != nil:
		close(b.free)
		b.free = nil
	}
}

// wait returns nil, or what is closed when the blockade ends.
func (b *blockade) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.free
}

// connectError names the endpoint without its credentials.
func connectError(uri amqp.URI, err error) error {
	where := fmt.Sprintf("%s://%s vhost %q", uri.Scheme, net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)), uri.Vhost)
	switch {
	case strings.Contains(err.Error(), speaksTLS):
		return fmt.Errorf("connect to %s: %w: %s: use amqps:// in Options.URLs, or another port", where, brokers.ErrMisconfigured, speaksTLS)
	case isTLS(err):
		return fmt.Errorf("connect to %s: %w: check Options.TLS and the certificates: %w", where, brokers.ErrMisconfigured, err)
	}
	return fmt.Errorf("connect to %s: %w", where, explain(err))
}

func lostError(err *amqp.Error) error {
	if err == nil {
		return errors.New("the connection is closed")
	}
	return fmt.Errorf("the connection is lost: %w", explain(err))
}

// merges reports whether quorum queues of such a RabbitMQ let a consumer go on with
// what an earlier one of its tag has unacked. Those before 3.11.1 deliver that again.
func merges(version string) bool {
	var major, minor, patch int
	fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch) // 0 for what it does not say
	return slices.Compare([]int{major, minor, patch}, []int{3, 11, 1}) >= 0
}
