package sqstest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Options configure a Server. The zero value is ready to use.
type Options struct {
	// InFlightLimit is the most messages of one queue in flight. 0 means
	// 120,000, as on AWS. At the limit a short poll of a standard queue fails
	// with OverLimit; long polls and FIFO queues return nothing.
	InFlightLimit int
}

const (
	region          = "us-east-1"
	account         = "123456789012"
	defaultInFlight = 120_000
	idleConnections = 64
)

// Server is an Amazon SQS of one account and one region. Create it with New or
// NewServer; all methods are safe for concurrent use. A Server that is used in
// a testing/synctest bubble must be created there.
type Server struct {
	// URL is the address of the endpoint, without a trailing slash. That of a
	// Server without a socket leads nowhere but through its Transport.
	URL string

	options    Options
	operations map[string]operation
	http       *http.Server
	client     *http.Client
	done       chan struct{}
	running    sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	offset   time.Duration
	queues   map[string]*queue
	deleted  map[string]time.Time
	dirty    []*queue
	sleepers map[*sleeper]struct{}
	faults   []*activeFault
	journal  journal
	numbers  uint64
}

// New returns a Server without a socket: requests reach it through Transport
// or Config only.
func New(options Options) *Server {
	if options.InFlightLimit == 0 {
		options.InFlightLimit = defaultInFlight
	}
	s := &Server{
		URL:        "http://sqs." + region + ".sqstest.invalid",
		options:    options,
		operations: operations(),
		done:       make(chan struct{}),
		queues:     make(map[string]*queue),
		deleted:    make(map[string]time.Time),
		sleepers:   make(map[*sleeper]struct{}),
		journal:    journal{counts: make(map[string]int)},
	}
	s.client = &http.Client{Transport: s.Transport()}
	return s
}

// NewServer returns a Server that listens on a free port of the loopback
// interface. It panics if it cannot listen, as httptest.NewServer does.
func NewServer(options Options) *Server {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("sqstest: cannot listen on the loopback interface: " + err.Error())
	}
	s := New(options)
	s.URL = "http://" + listener.Addr().String()
	s.http = &http.Server{Handler: http.HandlerFunc(s.serveHTTP), ConnState: s.connState}
	s.client = &http.Client{Transport: wholeBodies{&http.Transport{MaxIdleConnsPerHost: idleConnections}}}
	s.running.Go(func() { _ = s.http.Serve(listener) })
	return s
}

// Close ends the server. Calls under way lose their connection without an
// answer, later ones find none. Close returns when all of them have ended; it
// may be called more than once.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		for _, q := range s.queues {
			q.disarm()
		}
	}
	s.mu.Unlock()
	if s.http != nil {
		_ = s.http.Close()
		s.client.CloseIdleConnections()
	}
	s.running.Wait()
}

// Config returns a configuration of the AWS SDK that leads to this server:
// region, endpoint, credentials and HTTP client. Signatures are not checked.
//
// The client is not the SDK's own, which now and then loses an answer of a quick
// server: it closes the body of the request while net/http may still read it.
func (s *Server) Config() aws.Config {
	return aws.Config{
		Region:       region,
		BaseEndpoint: aws.String(s.URL),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "sqstest", SecretAccessKey: "sqstest", Source: "sqstest"}, nil
		}),
		HTTPClient: s.client,
	}
}

// Advance moves the clock of the server forward: messages become visible or
// expire, polls end, as if that much time had passed.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += max(d, 0)
	now := s.now()
	for _, q := range s.queues {
		q.tick(now)
		s.touch(q)
	}
	s.flush(now)
	for sleeper := range s.sleepers {
		sleeper.timer.Reset(sleeper.until.Sub(now))
	}
}

// now is the clock of the server.
func (s *Server) now() time.Time { return time.Now().Add(s.offset) }

// begin registers a request, unless the server is closed.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// connState counts connections, for Close to wait for their goroutines.
func (s *Server) connState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.running.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.running.Done()
	}
}

// A sleeper is a timer on the clock of the server.
type sleeper struct {
	until time.Time
	timer *time.Timer
}

// sleeper starts a timer. The caller holds s.mu.
func (s *Server) sleeper(until, now time.Time) *sleeper {
	t := &sleeper{until: until, timer: time.NewTimer(until.Sub(now))}
	s.sleepers[t] = struct{}{}
	return t
}

// wake ends a timer. The caller holds s.mu.
func (s *Server) wake(t *sleeper) {
	t.timer.Stop()
	delete(s.sleepers, t)
}

// pause waits on the clock of the server, for ctx or for Close. It reports
// whether the time passed.
func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	s.mu.Lock()
	now := s.now()
	t := s.sleeper(now.Add(d), now)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wake(t)
	}()
	select {
	case <-t.timer.C:
		return true
	case <-ctx.Done():
	case <-s.done:
	}
	return false
}
