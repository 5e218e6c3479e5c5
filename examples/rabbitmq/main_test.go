package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/integration/livetest"
)

// TestExample runs the program as a user does, up to Ctrl-C.
func TestExample(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		program := filepath.Join(t.TempDir(), "worker")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		queue := "example." + strings.ToLower(rand.Text()[:10])
		t.Cleanup(func() {
			remove(t, target.URL, queue, queue+"-dead", "redrive.retry.v1."+queue, "redrive.retry.v1."+queue+"-dead")
		})

		runUntil(t, target.URL, exec.Command(program, "-queue", queue, "-publish", "3"),
			"charged order-1 in run 1",
			"charged order-2 in run 2")
		runUntil(t, target.URL, exec.Command(program, "-queue", queue, "-letters"),
			`dead letter {"id":"order-3","cents":0}: poison: there is nothing to charge`)
		for _, name := range []string{queue, queue + "-dead", "redrive.retry.v1." + queue} {
			if n := depth(t, target.URL, name); n != 0 {
				t.Errorf("%d messages are left in %q, want none", n, name)
			}
		}
	})
}

// runUntil starts cmd, waits until it has printed the lines, sends it an
// interrupt and demands that it ends well.
func runUntil(t *testing.T, url string, cmd *exec.Cmd, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var logged strings.Builder
	cmd.Env = append(os.Environ(), "RABBITMQ_URL="+url)
	cmd.Stderr = &logged
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer context.AfterFunc(ctx, func() { cmd.Process.Kill() })()
	got := lines(out, len(want))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("interrupt: %v", err)
	}
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v ends with %v", cmd.Args[1:], err)
	}
	if slices.Sort(got); !slices.Equal(got, want) || len(rest) > 0 {
		t.Errorf("%v prints %q and then %q, want %q\n%s", cmd.Args[1:], got, rest, want, &logged)
	}
}

// lines reads n lines, or less if there are no more.
func lines(r io.Reader, n int) []string {
	var all []string
	for scanner := bufio.NewScanner(r); len(all) < n && scanner.Scan(); {
		all = append(all, scanner.Text())
	}
	return all
}

func depth(t *testing.T, url, queue string) int {
	t.Helper()
	n := -1
	use(t, url, func(ch *amqp.Channel) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Errorf("look at queue %q: %v", queue, err)
			return
		}
		n = q.Messages
	})
	return n
}

func remove(t *testing.T, url string, queues ...string) {
	t.Helper()
	use(t, url, func(ch *amqp.Channel) {
		for _, queue := range queues {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				t.Errorf("delete queue %q: %v", queue, err)
			}
		}
	})
}

func use(t *testing.T, url string, f func(*amqp.Channel)) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatalf("open a channel: %v", err)
	}
	f(ch)
}
