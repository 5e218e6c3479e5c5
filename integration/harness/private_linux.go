package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
)

// Private starts a RabbitMQ of the release of like for one test. Its folder dir is
// empty; the broker sees what is in there, and in files, as /mnt/NAME, and reads
// conf.d/*.conf and enabled_plugins. It returns the broker with its own ports, and
// what kills it. It ends with this process at the latest.
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
	for _, port := range []*int{&b.Port, &b.Management, &b.dist, &b.epmd} {
		if *port, err = unusedPort(); err != nil {
			return Broker{}, nil, err
		}
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

// runTied runs a broker until kill is called, or this process ends.
func (d debian) runTied(b Broker, root string) (ended <-chan struct{}, kill func(), err error) {
	out, err := os.Create(d.path(b, ".log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := d.command(b, root)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	gate, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	started, over := make(chan error), make(chan struct{})
	go func() {
		defer close(over)
		defer out.Close()
		runtime.LockOSThread() // the signal comes when the thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	kill = func() {
		_ = cmd.Process.Kill() // it may have ended
		<-over
	}
	if _, err := io.WriteString(gate, "recorded\n"); err != nil {
		kill()
		return nil, nil, err
	}
	return over, kill, nil
}

func unusedPort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
