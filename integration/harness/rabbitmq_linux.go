package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// debian runs a RabbitMQ from its Debian package. Each is the first process of
// a PID namespace of its own, with mounts that nobody else sees: when it ends,
// the kernel ends all it started and takes the mounts away. It sees its folder
// as /mnt and keeps its data in there.
type debian struct{ *local }

// enter is the first thing that runs in the namespaces.
const enter = `
read -r recorded
mount --bind "$STATE" "$ROOT/mnt"
mount -t proc proc "$ROOT/proc"
chroot "$ROOT" chown -R rabbitmq:rabbitmq /mnt
exec chroot --userspec=rabbitmq:rabbitmq "$ROOT" /usr/bin/env -i "$@" /usr/lib/rabbitmq/bin/rabbitmq-server
`

var errNotRoot = errors.New("no Docker engine with compose answers, and without one only root can run RabbitMQ (chroot and namespaces): start one, or do this as root")

func (d debian) command(b Broker, root string) *exec.Cmd { return d.shell(enter, b, root) }

// shell runs script in new namespaces.
func (d debian) shell(script string, b Broker, root string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-ec", script, "sh"}, environment(b)...)...)
	cmd.Env = append(os.Environ(), "STATE="+d.path(b, ""), "ROOT="+root)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:       true, // an interrupt from the terminal is not for the broker
		Cloneflags:   syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS,
	}
	return cmd
}

func (d debian) prepare(_ context.Context, b Broker, _ string) error {
	dir := d.path(b, "")
	if err := os.MkdirAll(filepath.Join(dir, "conf.d"), 0o755); err != nil {
		return err
	}
	texts := map[string]string{
		"conf.d/30-addresses.conf": fmt.Sprintf("listeners.tcp.1 = %s\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", b.Address(), b.Management),
	}
	if b.node > 0 {
		texts["conf.d/40-cluster.conf"] = formation()
		if err := shareCookie(dir); err != nil {
			return err
		}
	}
	return writeSettings(dir, map[string]string{
		"rabbitmq/20-redrive.conf": "conf.d/20-redrive.conf",
		"rabbitmq/enabled_plugins": "enabled_plugins",
	}, texts)
}

// formation has the nodes of Cluster find each other when they first start.
func formation() string {
	text := "cluster_formation.peer_discovery_backend = classic_config\n"
	for i, b := range Cluster(RabbitMQ) {
		text += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s\n", i+1, node(b))
	}
	return text
}

// shareCookie lets the nodes of Cluster talk to each other. What is secret
// elsewhere is not here, where they listen on loopback and hold test data.
func shareCookie(dir string) error {
	path := filepath.Join(dir, ".erlang.cookie")
	if _, err := os.Stat(path); err == nil {
		return nil // of an earlier start
	}
	return os.WriteFile(path, []byte("REDRIVETESTCLUSTER"), 0o400)
}

func node(b Broker) string { return b.Name + "@localhost" }

// promptly has a killed broker repeat within 5 s what it was moving from a delay
// shelf to its queue when it died. By default that takes it 3 minutes.
const promptly = "-rabbit dead_letter_worker_publisher_confirm_timeout 5000"

// loopback keeps Erlang's own connections between server and tool there.
const loopback = "-kernel inet_dist_use_interface {127,0,0,1}"

// environment is all that the broker and its command line tool see of ours.
func environment(b Broker) []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"HOME=/mnt", // the cookie that the tool shows to the broker
		"RABBITMQ_NODENAME=" + node(b),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILES=/mnt/conf.d",
		"RABBITMQ_ENABLED_PLUGINS_FILE=/mnt/enabled_plugins",
		"RABBITMQ_MNESIA_BASE=/mnt/data",
		"RABBITMQ_LOG_BASE=/mnt/log",
		"RABBITMQ_LOGS=-",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(b.dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + loopback + " " + promptly,
		"RABBITMQ_CTL_ERL_ARGS=" + loopback,
		"ERL_CRASH_DUMP=/mnt/erl_crash.dump",
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(b.epmd),
	}
}

func (d debian) await(ctx context.Context, b Broker) error {
	return d.control(ctx, b, []string{"--quiet", "await_startup"})
}

func (d debian) control(ctx context.Context, b Broker, args []string) error {
	p := readProcess(d.path(b, ".pid"))
	if !p.alive() {
		return fmt.Errorf("%s does not run", b.Name)
	}
	enter := []string{"--target", strconv.Itoa(p.pid), "--mount", "--pid", "--root", "--wd", "/usr/bin/env", "-i"}
	tool := append(environment(b), "/usr/lib/rabbitmq/bin/rabbitmqctl")
	cmd := exec.CommandContext(ctx, "nsenter", append(append(enter, tool...), args...)...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
