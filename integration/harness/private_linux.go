package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/integration/freeport"
)

// Private starts a RabbitMQ for one test, of the release of like. It keeps the
// state of the broker in the empty folder dir. The broker sees each of files as
// /mnt/NAME, and reads conf.d/*.conf and enabled_plugins among them. Private
// returns the broker with its own ports, and a function that kills it. The
// broker ends with this process at the latest.
func Private(ctx context.Context, like Broker, dir string, files map[string]string) (b Broker, kill func(), err error) {
	if os.Getuid() != 0 {
		return Broker{}, nil, ErrNoPrivate
	}
	h, err := newHarness(io.Discard)
	if err != nil {
		return Broker{}, nil, err
	}
	d := debian{&local{temporary: dir, cache: h.cache, log: io.Discard}}
	b = like
	b.Name, b.Env = "private", ""
	ports, err := freeport.Ports(4)
	if err != nil {
		return Broker{}, nil, err
	}
	for i, port := range []*int{&b.Port, &b.Management, &b.dist, &b.epmd} {
		*port, _ = strconv.Atoi(ports[i])
	}
	root, err := d.install(ctx, b)
	if err != nil {
		return Broker{}, nil, err
	}
	if err := d.local.prepare(ctx, b, root); err != nil {
		return Broker{}, nil, err
	}
	if err := writeSettings(d.path(b, ""), nil, files); err != nil {
		return Broker{}, nil, err
	}
	ended, kill, err := d.runTied(b, root)
	if err != nil {
		return Broker{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err = Probe(ctx, RabbitMQ, b.URL()); err == nil {
			return b, kill, nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
		case <-time.After(pollEvery):
			continue
		}
		kill()
		return Broker{}, nil, fmt.Errorf("a RabbitMQ %s* of the test's own has not started: %w; its log ends with:\n%s", b.Version, err, tail(d.path(b, ".log")))
	}
}

// ownShell is enter for a broker that ends with its standard input, and so with
// this process, even if that is killed. A parent death signal would not do: the
// kernel clears it when the broker changes its user.
var ownShell = strings.Replace(enter, "\nexec chroot", `
exec 3<&0
(while read -r _; do :; done; kill -9 -1) <&3 &
exec 3<&-
chroot`, 1)

// runTied runs a broker until kill is called, or this process ends.
func (d debian) runTied(b Broker, root string) (ended <-chan struct{}, kill func(), err error) {
	out, err := os.Create(d.path(b, ".log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := d.shell(ownShell, b, root)
	cmd.Stdout, cmd.Stderr = out, out
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer out.Close()
		_ = cmd.Wait() // it is killed
	}()
	kill = func() {
		_ = cmd.Process.Kill() // it may have ended
		<-over
	}
	if _, err := io.WriteString(input, "recorded\n"); err != nil {
		kill()
		return nil, nil, err
	}
	return over, kill, nil
}
