package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	buildTimeout = 10 * time.Minute
	partial      = ".partial"
)

func (d debian) root(b Broker) string { return filepath.Join(d.cache, b.suite) }

func (d debian) present(_ context.Context, b Broker) bool {
	return installed("/", b) || installed(d.root(b), b)
}

// install returns the folder that has the broker installed in the places where
// its Debian package puts it: the machine's own root if it has that version,
// or else a minimal Debian of the release that has it, made once and cached.
func (d debian) install(ctx context.Context, b Broker) (string, error) {
	if os.Getuid() != 0 {
		return "", errNotRoot
	}
	if installed("/", b) {
		return "/", nil
	}
	return minimalDebian(ctx, d.log, b, "rabbitmq-server", d.root(b), 400, func(root string) bool { return installed(root, b) })
}

func installed(root string, b Broker) bool {
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/rabbitmq/lib/rabbitmq_server-"+b.Version+"*"))
	return err == nil && len(found) > 0
}

// minimalDebian returns root with a minimal Debian that has the package of a
// broker, and makes it first where there is none.
func minimalDebian(ctx context.Context, log io.Writer, b Broker, pack, root string, megabytes int, installed func(root string) bool) (string, error) {
	if installed(root) {
		return root, nil
	}
	fmt.Fprintf(log, "%s: fetching Debian %s with %s to %s (once, about %d MB, a minute or two)\n", b.Name, b.suite, pack, root, megabytes)
	if err := bootstrap(ctx, b.suite, pack, root); err != nil {
		return "", err
	}
	if !installed(root) {
		return "", fmt.Errorf("%s of Debian %s is not the version %s* that %s is to be", pack, b.suite, b.Version, b.Name)
	}
	return root, nil
}

// bootstrap makes a minimal Debian with a package. It makes it beside its place
// and moves it there when it is whole.
func bootstrap(ctx context.Context, suite, pack, root string) error {
	if !has("debootstrap") {
		return errLacks("debootstrap")
	}
	for _, dir := range []string{root, root + partial} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-ec", `mount -t proc proc /proc; exec "$@"`, "sh",
		"debootstrap", "--variant=minbase", "--include="+pack, suite, root+partial)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID, // whatever a package starts ends with the namespace
		Unshareflags: syscall.CLONE_NEWNS,
	}
	if err := tied(cmd); err != nil {
		return fmt.Errorf("debootstrap %s: %w", suite, err)
	}
	if err := os.RemoveAll(filepath.Join(root+partial, "var/cache/apt/archives")); err != nil {
		return err
	}
	// A minimal Debian has none, and the broker looks its own node up.
	if err := os.WriteFile(filepath.Join(root+partial, "etc/hosts"), []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(root+partial, root)
}

// tied runs a command that is killed when this process is. An error has the
// end of what the command said.
func tied(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread() // the signal comes when the thread ends
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, lastLines(out.Bytes()))
	}
	return nil
}
