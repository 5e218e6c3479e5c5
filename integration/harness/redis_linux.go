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

// redis runs a Redis or a Valkey from its Debian package: the machine's own
// package if it has that version, or else the package of a minimal Debian. The
// server keeps no data when it ends.
type redis struct{ *local }

// server is the name of the program and of its package.
func (redis) server(b Broker) string { return string(b.Product) + "-server" }

func (r redis) program(b Broker) string { return "/usr/bin/" + r.server(b) }

// gated is the first thing that runs. The settings are the program's input: a
// Debian of its own does not see the folder that they are in.
const gated = `
read -r recorded
test "$ROOT" = / || set -- chroot --userspec="$OWNER:$OWNER" "$ROOT" "$@"
exec "$@" <"$SETTINGS"
`

func (r redis) root(b Broker) string {
	return filepath.Join(r.cache, b.suite+"-"+string(b.Product))
}

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
		return "", fmt.Errorf("%[1]s %[2]s* is not installed, and only root can run it in a Debian of its own: apt-get install %[1]s on Debian %[3]s, or start a Docker engine", r.server(b), b.Version, b.suite)
	}
	return minimalDebian(ctx, r.log, b, r.server(b), r.root(b), 250, func(root string) bool { return r.installed(ctx, root, b) })
}

// installed asks the program of a root for its version.
func (r redis) installed(ctx context.Context, root string, b Broker) bool {
	if _, err := os.Stat(filepath.Join(root, r.program(b))); err != nil {
		return false
	}
	cmd := exec.CommandContext(ctx, r.program(b), "--version")
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
		r.program(b), "-", "--bind", "127.0.0.1", "--port", strconv.Itoa(b.Port))
	cmd.Env = append(os.Environ(), "ROOT="+root, "OWNER="+string(b.Product), "SETTINGS="+filepath.Join(r.path(b, ""), "redis.conf"))
	cmd.Dir = r.path(b, "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt from the terminal is not for it
	return cmd
}

// await has nothing to wait for: what answers a probe has started.
func (r redis) await(context.Context, Broker) error { return nil }
