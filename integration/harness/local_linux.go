package harness

import (
	"bytes"
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
	"strconv"
	"strings"
	"syscall"
)

//go:embed rabbitmq
var settings embed.FS

// local runs the brokers as processes of this machine. Each is the first
// process of a PID namespace of its own, with mounts that nobody else sees:
// when it ends, the kernel ends all it started and takes the mounts away.
//
// The state folder has for each broker NAME: the folder NAME, which the broker
// sees as /mnt and keeps its data in, NAME.pid, NAME.log, and NAME.ready, which
// has the PID that was the last to get ready.
type local struct {
	state string
	cache string
	log   io.Writer
}

func newLocal(cache string, log io.Writer) (engine, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("no Docker engine with compose answers, and without one only root can run the brokers (chroot and namespaces)")
	}
	return &local{state: filepath.Join(os.TempDir(), "redrive-brokers"), cache: cache, log: log}, nil
}

func (l *local) path(b Broker, suffix string) string {
	return filepath.Join(l.state, b.Name+suffix)
}

func (l *local) start(ctx context.Context, brokers []Broker) ([]Broker, error) {
	if err := l.claim(); err != nil {
		return nil, err
	}
	var started []Broker
	for _, b := range brokers {
		if readProcess(l.path(b, ".pid")).alive() {
			continue
		}
		root, err := l.root(ctx, b)
		if err != nil {
			return started, err
		}
		if err := l.launch(ctx, b, root); err != nil {
			return started, fmt.Errorf("start %s: %w", b.Name, err)
		}
		started = append(started, b)
	}
	return started, nil
}

// claim makes the state folder, and refuses one that another user made.
func (l *local) claim() error {
	if err := os.Mkdir(l.state, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(l.state)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to someone else: remove it", l.state)
	}
	return nil
}

// enter is the first thing that runs in the namespaces. It waits for a line,
// which comes when its PID is on record, and ends without one: a broker that
// nobody could stop must not start.
const enter = `
read -r recorded
mount --bind "$STATE" "$ROOT/mnt"
mount -t proc proc "$ROOT/proc"
chroot "$ROOT" chown -R rabbitmq:rabbitmq /mnt
exec chroot --userspec=rabbitmq:rabbitmq "$ROOT" /usr/bin/env -i "$@" /usr/lib/rabbitmq/bin/rabbitmq-server
`

func (l *local) launch(ctx context.Context, b Broker, root string) error {
	if conn, err := net.Dial("tcp", b.Address()); err == nil {
		conn.Close()
		return fmt.Errorf("another process listens at %s", b.Address())
	}
	if err := l.prepare(b); err != nil {
		return err
	}
	out, err := os.Create(l.path(b, ".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-ec", enter, "sh"}, environment(b)...)...)
	cmd.Env = append(os.Environ(), "STATE="+l.path(b, ""), "ROOT="+root)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:       true, // an interrupt from the terminal is not for the broker
		Cloneflags:   syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS,
	}
	gate, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w (it takes a root that may make namespaces)", err)
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
func (l *local) prepare(b Broker) error {
	dir := l.path(b, "")
	if _, err := os.Stat(l.path(b, ".ready")); err != nil {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "conf.d"), 0o755); err != nil {
		return err
	}
	addresses := fmt.Sprintf("listeners.tcp.1 = %s\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", b.Address(), b.Management)
	files := map[string][]byte{"conf.d/30-addresses.conf": []byte(addresses)}
	for from, to := range map[string]string{"20-redrive.conf": "conf.d/20-redrive.conf", "enabled_plugins": "enabled_plugins"} {
		text, err := settings.ReadFile("rabbitmq/" + from)
		if err != nil {
			return err
		}
		files[to] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// loopback keeps Erlang's own connections between server and tool there.
const loopback = "-kernel inet_dist_use_interface {127,0,0,1}"

// environment is all that the broker and its command line tool see of ours.
func environment(b Broker) []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"HOME=/mnt", // the cookie that the tool shows to the broker
		"RABBITMQ_NODENAME=" + b.Name + "@localhost",
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILES=/mnt/conf.d",
		"RABBITMQ_ENABLED_PLUGINS_FILE=/mnt/enabled_plugins",
		"RABBITMQ_MNESIA_BASE=/mnt/data",
		"RABBITMQ_LOG_BASE=/mnt/log",
		"RABBITMQ_LOGS=-",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(b.dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + loopback,
		"RABBITMQ_CTL_ERL_ARGS=" + loopback,
		"ERL_CRASH_DUMP=/mnt/erl_crash.dump",
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(b.epmd),
	}
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
	if ready, err := os.ReadFile(l.path(b, ".ready")); err == nil && bytes.Equal(ready, running) {
		return nil
	}
	if err := l.control(ctx, b, []string{"--quiet", "await_startup"}); err != nil {
		return err
	}
	return os.WriteFile(l.path(b, ".ready"), running, 0o644)
}

func (l *local) control(ctx context.Context, b Broker, args []string) error {
	p := readProcess(l.path(b, ".pid"))
	if !p.alive() {
		return fmt.Errorf("%s does not run", b.Name)
	}
	enter := []string{"--target", strconv.Itoa(p.pid), "--mount", "--pid", "--root", "--wd", "/usr/bin/env", "-i"}
	tool := append(environment(b), "/usr/lib/rabbitmq/bin/rabbitmqctl")
	cmd := exec.CommandContext(ctx, "nsenter", append(append(enter, tool...), args...)...)
	cmd.Stdout, cmd.Stderr = l.log, l.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (l *local) stop(ctx context.Context, b Broker) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return readProcess(l.path(b, ".pid")).end(ctx, syscall.SIGTERM)
}

func (l *local) kill(ctx context.Context, b Broker) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return readProcess(l.path(b, ".pid")).end(ctx, syscall.SIGKILL)
}

func (l *local) down(ctx context.Context) error {
	for _, b := range Brokers() {
		if err := l.kill(ctx, b); err != nil {
			return fmt.Errorf("stop %s: %w", b.Name, err)
		}
	}
	half, err := filepath.Glob(filepath.Join(l.cache, "*"+partial))
	if err != nil {
		return err
	}
	for _, dir := range append(half, l.state) {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}
