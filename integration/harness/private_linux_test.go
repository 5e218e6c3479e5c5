package harness

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPrivateEndsWithItsProcess kills a process that has started a RabbitMQ for
// itself, as happens to a test that hangs. The RabbitMQ must end too.
func TestPrivateEndsWithItsProcess(t *testing.T) {
	if os.Getenv("REDRIVE_HOLD_PRIVATE") != "" {
		holdPrivate(t)
		return
	}
	if os.Getenv("REDRIVE_NIGHTLY") != "true" {
		t.Skip("it takes longer than a commit should: make nightly")
	}
	if os.Getuid() != 0 {
		t.Skip(ErrNoPrivate)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPrivateEndsWithItsProcess$")
	cmd.Env = append(os.Environ(), "REDRIVE_HOLD_PRIVATE="+t.TempDir())
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	address := ""
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); {
		if after, ok := strings.CutPrefix(lines.Text(), "address "); ok {
			address = after
		} else {
			t.Log(lines.Text())
		}
	}
	if address == "" {
		t.Fatalf("no RabbitMQ started: %v", cmd.Wait())
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()         // it was killed
	for listens(address) { // until the time of the test is over
		time.Sleep(pollEvery)
	}
}

// holdPrivate starts a RabbitMQ, prints its address, and waits to be killed.
func holdPrivate(t *testing.T) {
	all := Brokers()
	like := all[slices.IndexFunc(all, func(b Broker) bool { return b.Name == "rabbitmq4" })]
	b, _, err := Private(t.Context(), like, os.Getenv("REDRIVE_HOLD_PRIVATE"), nil)
	must(t, err)
	os.Stdout.WriteString("address " + b.Address() + "\n")
	<-t.Context().Done()
}

func listens(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}
