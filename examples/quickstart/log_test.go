package main

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/flow"
)

// pipes is a network without a clock of its own: time is virtual in it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// chapters are what the log of the bad day tells, in this order.
var chapters = []string{
	`level=INFO msg="worker started" topics=orders concurrency=10`,
	`level=WARN msg="handler failed" topic=orders msg_id=line-25 attempt=1 class=unknown rule=panic outcome=retry delay=\S+ error="panic: assignment to entry in nil map"`,
	`level=ERROR msg="message dead-lettered" topic=orders msg_id=line-83 attempt=1 class=poison rule="mark: permanent" reason=poison fingerprint=\S+ error=".* 402 .*"`,
	`level=WARN msg="handler failed" topic=orders msg_id=line-\d+ attempt=1 class=transient rule="http status 503" outcome=retry delay=\S+ error=".* 503 .*"`,
	`level=WARN msg="more of the same: handler failed" topic=orders class=transient rule="http status 503" since=\S+ suppressed=\d+`,
	`level=ERROR msg="dependency paused, its messages wait uncounted" dependency=orders until=\S+ error="\d+ of the last \d+ messages failed: single runs try it out"`,
	`level=WARN msg="probe failed" topic=orders msg_id=line-\d+ attempt=\d+ class=transient rule="http status 503" outcome=retry delay=\S+ error=".* 503 .*"`,
	`level=INFO msg="dependency resumed" dependency=orders after=\S+ failed_probes=\d+`,
	`level=WARN msg="handler failed" topic=orders msg_id=line-\d+ attempt=\d+ class=throttled rule="http status 429" outcome=retry delay=\S+ error=".* 429 .*"`,
	`level=WARN msg="more of the same: handler failed" topic=orders class=throttled rule="http status 429" since=\S+ suppressed=\d+`,
	`level=INFO msg="worker stopped"`,
}

// bug is a part of it that has no place in this order: when it comes depends on the
// delays, which are random.
const bug = `(?m)level=ERROR msg="message dead-lettered" topic=orders msg_id=line-25 attempt=\d+ class=unknown rule=panic reason=(panic|expired) fingerprint=\S+ error="panic: assignment to entry in nil map"$`

// TestLogTellsTheStory has the log of the bad day fit on two screens, and tell what
// happened.
func TestLogTellsTheStory(t *testing.T) {
	const screens = 2 * 50
	synctest.Test(t, func(t *testing.T) {
		lines, err := readOrders("")
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		network := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		transport := &http.Transport{DialContext: network.dial}
		watch := testStage(t)
		limiter := flow.New(concurrency, rand.Float64)
		watch.day, watch.policy, watch.guard = badDay(), demoPolicy(), consumer.Guard{Limiter: limiter}
		watch.listen, watch.transport = func() (net.Listener, error) { return network, nil }, transport
		watch.logger = slog.New(slog.NewTextHandler(&log, nil))
		r := mustWork(t, t.Context(), lines, watch)
		transport.CloseIdleConnections()
		if !r.OK || r.DeadLettered != 18 {
			t.Errorf("the accounts do not add up: %+v", r)
		}
		told := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(told) > screens {
			t.Errorf("%d lines, want %d at most", len(told), screens)
		}
		rest := told
		for _, chapter := range chapters {
			line := regexp.MustCompile(`^time=\S+ ` + chapter + `$`)
			for len(rest) > 0 && !line.MatchString(rest[0]) {
				rest = rest[1:]
			}
			if len(rest) == 0 {
				t.Fatalf("the log does not go on with\n%s\n%s", chapter, log.String())
			}
			rest = rest[1:]
		}
		if !regexp.MustCompile(bug).MatchString(log.String()) {
			t.Errorf("the log does not tell of the bug\n%s", log.String())
		}
		for _, line := range told {
			if empty := regexp.MustCompile(`\w+=(""|0s)( |$)`).FindString(line); empty != "" {
				t.Errorf("%s says nothing: %s", empty, line)
			}
		}
	})
}
