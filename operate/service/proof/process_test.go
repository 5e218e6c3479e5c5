// Package proof holds the retry service against what it promises: that each task is
// called at least once, and never without an attempt in its log. It is tests. Real
// processes of the service are killed, and so are the servers that it needs, while a
// ledger at the targets has what really happened.
package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/internal/retries"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/redisschedule"
)

// setup is what a process of the service works with.
type setup struct {
	store   string // its URL
	redis   string // host and port; "" for a heap
	bodies  string // a directory
	letters string // where dead letters are posted to
}

// Variables that make a process of this test one of the service.
const storeVar, redisVar, bodiesVar, lettersVar = "PROOF_STORE", "PROOF_REDIS", "PROOF_BODIES", "PROOF_LETTERS"

func TestMain(m *testing.M) {
	logging.Disable() // of go-redis
	s := setup{os.Getenv(storeVar), os.Getenv(redisVar), os.Getenv(bodiesVar), os.Getenv(lettersVar)}
	if s.store == "" {
		os.Exit(m.Run())
	}
	if err := s.serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start starts a process of the service.
func (s setup) start() *breaktest.Process {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), storeVar+"="+s.store, redisVar+"="+s.redis, bodiesVar+"="+s.bodies, lettersVar+"="+s.letters)
	return breaktest.Start(cmd)
}

var listens = regexp.MustCompile(`listens at (http://\S+)\n`)

// addressOf is where a process listens; "" if it does not yet.
func addressOf(p *breaktest.Process) string {
	if found := listens.FindStringSubmatch(p.Log()); found != nil {
		return found[1]
	}
	return ""
}

// serve is what redrive service does.
func (s setup) serve() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server, err := s.server(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Store.Close()) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "listens at http://%s\n", listener.Addr())
	return server.ServeOn(ctx, listener)
}

// server is a service with the default configuration, but that it may call this
// machine.
func (s setup) server(ctx context.Context) (server *retries.Server, err error) {
	server = &retries.Server{
		Bodies: bodies.Dir(s.bodies), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Letters: &retries.Letters{Broker: &post{memory.New(memory.Options{}), s.letters}, Topic: "dead", Origin: "retry-tasks", Worker: "proof"},
	}
	if s.redis != "" {
		client := redis.NewClient(&redis.Options{Addr: s.redis, MaxRetries: -1, DisableIdentity: true, ContextTimeoutEnabled: true})
		if server.Schedule, err = redisschedule.New(client, ""); err != nil {
			return nil, err
		}
	}
	if server.Guard, err = service.NewGuard(service.Targets{Networks: []string{"127.0.0.0/8"}}); err != nil {
		return nil, err
	}
	server.Store, err = service.Open(ctx, s.store)
	return server, err
}

// post is a broker that confirms what an address takes.
type post struct {
	*memory.Broker
	url string
}

func (p *post) Publish(ctx context.Context, _ string, msgs ...brokers.Message) error {
	for _, m := range msgs {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+m.ID, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the letter of %s is not confirmed: %s, %v", m.ID, answer.Status, err)
		}
	}
	return nil
}
