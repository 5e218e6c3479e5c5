package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// redis runs a Redis from its Debian package: the machine's own if it has that
// version, or else in a minimal Debian that has it. It keeps nothing when it
// ends.
type redis struct{ *local }

const redisProgram = "usr/bin/redis-server"

// gated is the first thing that runs. The settings are the program's input: a
// Debian of its own does not see the folder that they are in.
const gated = `
read -r recorded
test "$ROOT" = / || set -- chroot --userspec=redis:redis "$ROOT" "$@"
exec "$@" <"$SETTINGS"
`

func (r redis) root(b Broker) string { return filepath.Join(r.cache, b.suite+"-redis") }

func (r redis) present(ctx context.Context, b Broker) bool {
	return r.installed(ctx, "/", b) || os.Getuid() == 0 && r.installed(ctx, r.root(b), b)
}

// install makes a minimal Debian with the package where the machine does not have
// its version.
func (r redis) install(ctx context.Context, b Broker) (string, error) {
	if r.installed(ctx, "/", b) {
		return "/", nil
	}
	if os.Getuid() != 0 {
		return "", fmt.Errorf("redis-server %s* is not installed, and only root can run it in a Debian of its own: apt-get install redis-server on Debian %s, or start a Docker engine", b.Version, b.suite)
	}
	return minimalDebian(ctx, r.log, b, "redis-server", r.root(b), 250, func(root string) bool { return r.installed(ctx, root, b) })
}

// installed asks the program of a root for its version.
func (r redis) installed(ctx context.Context, root string, b Broker) bool {
	if _, err := os.Stat(filepath.Join(root, redisProgram)); err != nil {
		return false
	}
	cmd := exec.CommandContext(ctx, "/"+redisProgram, "--version")
	if root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	out, err := cmd.Output()
	return err == nil && strings.Contains(string(out), " v="+b.Version)
}

func (r redis) prepare(_ context.Context, b Broker, _ string) error {
	return writeSettings(r.path(b, ""), map[string]string{"redis/redis.conf": "redis.conf"}, nil)
}

func (r redis) command(b Broker, root string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-ec", gated, "sh",
		"/"+redisProgram, "-", "--bind", "127.0.0.1", "--port", strconv.Itoa(b.Port))
	cmd.Env = append(os.Environ(), "ROOT="+root, "SETTINGS="+filepath.Join(r.path(b, ""), "redis.conf"))
	cmd.Dir = r.path(b, "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt from the terminal is not for it
	return cmd
}

// await has nothing to wait for: what answers a probe has started.
func (r redis) await(context.Context, Broker) error { return nil }
