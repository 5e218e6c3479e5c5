package harness

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed rabbitmq kafka sqs redis java
var settings embed.FS

// local runs the brokers as processes of this machine.
//
// The state folder of a product has for each broker NAME: the folder NAME, with
// its settings and data, NAME.pid, NAME.log, and NAME.ready, which has the PID
// that was the last to get ready.
type local struct {
	temporary string // where the state folders are
	cache     string
	log       io.Writer
}

// host is how the brokers of a product run as processes.
type host interface {
	// present reports whether install has nothing to fetch.
	present(ctx context.Context, b Broker) bool
	// install returns the folder that has the broker's programs, and fetches
	// them first where they are missing.
	install(ctx context.Context, b Broker) (root string, err error)
	// prepare writes the settings to the broker's folder. What is there
	// already is the data of an earlier run.
	prepare(ctx context.Context, b Broker, root string) error
	// command returns the command that runs the broker. It begins by reading a
	// line, which comes when its PID is on record, and ends without one: a
	// broker that nobody could stop must not start.
	command(b Broker, root string) *exec.Cmd
	// await returns when the broker, which answers already, has started.
	await(ctx context.Context, b Broker) error
}

func newLocal(cache string, log io.Writer) (engine, error) {
	return &local{temporary: temporary("/dev/shm"), cache: cache, log: log}, nil
}

// temporary returns memory, the file system of that name, where there is plenty
// of it, and the folder for temporary files elsewhere: on a disk that others
// write to, too, a broker can stand still for half a minute. The data outlive a
// kill of the broker either way.
func temporary(memory string) string {
	const (
		tmpfs              = 0x01021994
		readOnly           = 1
		nothingToRun       = 8 // Java unpacks libraries
		plenty       int64 = 8 << 30
	)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || int64(fs.Type) != tmpfs ||
		fs.Flags&(readOnly|nothingToRun) != 0 || int64(fs.Blocks)*int64(fs.Bsize) < plenty {
		return os.TempDir()
	}
	return memory
}

func (l *local) host(b Broker) host {
	switch b.Product {
	case Kafka:
		return kafka{java{l}}
	case SQS:
		return elasticmq{java{l}}
	case Redis, Valkey:
		return redis{l}
	}
	return debian{l}
}

// state is the folder of all brokers of the product.
func (l *local) state(p Product) string {
	folder := "redrive-" + string(p)
	if p == RabbitMQ {
		folder = "redrive-brokers"
	}
	return filepath.Join(l.temporary, folder)
}

func (l *local) path(b Broker, suffix string) string {
	return filepath.Join(l.state(b.Product), b.Name+suffix)
}

func (l *local) present(ctx context.Context, b Broker) bool { return l.host(b).present(ctx, b) }

func (l *local) start(ctx context.Context, brokers []Broker) ([]Broker, error) {
	var started []Broker
	for _, b := range brokers {
		if readProcess(l.path(b, ".pid")).alive() {
			if err := l.thaw(ctx, b); err != nil {
				return started, err
			}
			continue
		}
		if err := l.launch(ctx, b); err != nil {
			return started, fmt.Errorf("start %s: %w", b.Name, err)
		}
		started = append(started, b)
	}
	return started, nil
}

// claim makes a state folder, and refuses one that another user made.
func claim(state string) error {
	if err := os.Mkdir(state, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(state)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to someone else: remove it", state)
	}
	return nil
}

// untilFree waits until nobody listens where b will: the threads of a killed
// process may hold its sockets for a moment longer than it seems to live.
func untilFree(ctx context.Context, b Broker) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", b.Address())
		if err != nil {
			return nil
		}
		conn.Close()
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process listens at %s", b.Address())
		case <-time.After(pollEvery):
		}
	}
}

func (l *local) launch(ctx context.Context, b Broker) error {
	if err := untilFree(ctx, b); err != nil {
		return err
	}
	root, err := l.host(b).install(ctx, b)
	if err != nil {
		return err
	}
	if err := l.prepare(ctx, b, root); err != nil {
		return err
	}
	out, err := os.Create(l.path(b, ".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := l.host(b).command(b, root)
	cmd.Stdout, cmd.Stderr = out, out
	gate, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	if err := startAlone(cmd); errors.Is(err, fs.ErrPermission) && b.Product == RabbitMQ {
		return fmt.Errorf("%w (it takes a root that may make namespaces)", err)
	} else if err != nil {
		return err
	}
	go cmd.Wait() // the broker outlives this process; until then its end must not leave a zombie
	if err := record(l.path(b, ".pid"), cmd.Process.Pid); err != nil {
		return err
	}
	_, err = io.WriteString(gate, "recorded\n")
	return err
}

// prepare writes the settings. It keeps data that a broker was once ready with,
// and begins anew where the first start did not get that far.
func (l *local) prepare(ctx context.Context, b Broker, root string) error {
	if err := claim(l.state(b.Product)); err != nil {
		return err
	}
	if _, err := os.Stat(l.path(b, ".ready")); err != nil {
		if err := os.RemoveAll(l.path(b, "")); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(l.path(b, ""), 0o755); err != nil {
		return err
	}
	return l.host(b).prepare(ctx, b, root)
}

// writeSettings writes files of the harness, and text of the caller, to dir.
func writeSettings(dir string, copies map[string]string, texts map[string]string) error {
	for from, to := range copies {
		text, err := settings.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o644); err != nil {
			return err
		}
	}
	for to, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, to), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (l *local) check(_ context.Context, b Broker) error {
	if readProcess(l.path(b, ".pid")).alive() {
		return nil
	}
	return fmt.Errorf("its process has ended; the log %s ends with:\n%s", l.path(b, ".log"), tail(l.path(b, ".log")))
}

func (l *local) await(ctx context.Context, b Broker) error {
	running, err := os.ReadFile(l.path(b, ".pid"))
	if err != nil {
		return err
	}
	if ready, err := os.ReadFile(l.path(b, ".ready")); err == nil && string(ready) == string(running) {
		return nil
	}
	if err := l.host(b).await(ctx, b); err != nil {
		return err
	}
	return os.WriteFile(l.path(b, ".ready"), running, 0o644)
}

// control is for RabbitMQ, the only product with such a tool.
func (l *local) control(ctx context.Context, b Broker, args []string) error {
	return debian{l}.control(ctx, b, args)
}

func (l *local) stop(ctx context.Context, b Broker) error {
	return l.end(ctx, b, syscall.SIGTERM)
}

func (l *local) kill(ctx context.Context, b Broker) error {
	return l.end(ctx, b, syscall.SIGKILL)
}

// end also ends a frozen broker, which would see no SIGTERM.
func (l *local) end(ctx context.Context, b Broker, signal syscall.Signal) error {
	if err := l.thaw(ctx, b); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return readProcess(l.path(b, ".pid")).end(ctx, signal)
}

func (l *local) freeze(ctx context.Context, b Broker) error {
	if err := readProcess(l.path(b, ".pid")).stop(ctx); err != nil {
		return fmt.Errorf("freeze %s: %w", b.Name, err)
	}
	return nil
}

func (l *local) thaw(_ context.Context, b Broker) error {
	p := readProcess(l.path(b, ".pid"))
	if !p.alive() {
		return nil
	}
	if err := p.signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("thaw %s: %w", b.Name, err)
	}
	return nil
}

func (l *local) down(ctx context.Context, brokers []Broker) error {
	for _, b := range brokers {
		if err := l.kill(ctx, b); err != nil {
			return fmt.Errorf("stop %s: %w", b.Name, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(l.cache, "*"+partial))
	if err != nil {
		return err
	}
	for _, b := range brokers {
		for _, suffix := range []string{"", ".pid", ".log", ".ready"} {
			left = append(left, l.path(b, suffix))
		}
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	for _, b := range brokers {
		_ = os.Remove(l.state(b.Product)) // stays while another broker has its data there
	}
	return nil
}
