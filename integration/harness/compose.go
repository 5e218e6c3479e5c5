package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// compose runs the brokers in containers.
type compose struct {
	file string
	log  io.Writer
}

// hasDocker reports whether an engine answers and the client knows compose.
func hasDocker(ctx context.Context) bool {
	return exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run() == nil &&
		exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil
}

func newCompose(log io.Writer) (engine, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	return &compose{file: filepath.Join(root, "docker-compose.yml"), log: log}, nil
}

// moduleRoot is the folder of the go.mod above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "docker-compose.yml")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no docker-compose.yml here or above: run this inside the repository")
		}
		dir = parent
	}
}

func (c *compose) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose", "--file", c.file}, args...)...)
	cmd.Stderr = c.log
	return cmd
}

func (c *compose) run(ctx context.Context, args ...string) error {
	if err := c.command(ctx, args...).Run(); err != nil {
		return fmt.Errorf("docker compose %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// services returns the names of the services in that state.
func (c *compose) services(ctx context.Context, state string) ([]string, error) {
	out, err := c.command(ctx, "ps", "--services", "--status", state).Output()
	if err != nil {
		return nil, fmt.Errorf("docker compose ps: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// present leaves it to the engine to fetch what is missing.
func (c *compose) present(context.Context, Broker) bool { return true }

func (c *compose) start(ctx context.Context, brokers []Broker) ([]Broker, error) {
	for _, b := range brokers {
		if err := c.thaw(ctx, b); err != nil {
			return nil, err
		}
	}
	running, err := c.services(ctx, "running")
	if err != nil {
		return nil, err
	}
	started := slices.DeleteFunc(slices.Clone(brokers), func(b Broker) bool {
		return slices.Contains(running, b.Name)
	})
	if len(started) == 0 {
		return nil, nil
	}
	return started, c.run(ctx, append([]string{"up", "--detach", "--wait"}, names(started)...)...)
}

func names(brokers []Broker) []string {
	var all []string
	for _, b := range brokers {
		all = append(all, b.Name)
	}
	return all
}

func (c *compose) await(ctx context.Context, b Broker) error {
	if b.Product != RabbitMQ {
		return nil // it says so itself when it is probed
	}
	return c.control(ctx, b, []string{"--quiet", "await_startup"})
}

func (c *compose) check(ctx context.Context, b Broker) error {
	running, err := c.services(ctx, "running")
	if err != nil {
		return err
	}
	if !slices.Contains(running, b.Name) {
		return fmt.Errorf("its container has ended: see docker compose logs %s", b.Name)
	}
	return nil
}

func (c *compose) stop(ctx context.Context, b Broker) error { return c.end(ctx, "stop", b) }

func (c *compose) kill(ctx context.Context, b Broker) error { return c.end(ctx, "kill", b) }

// end thaws the broker first, because an engine ends no container that is paused.
func (c *compose) end(ctx context.Context, how string, b Broker) error {
	if err := c.thaw(ctx, b); err != nil {
		return err
	}
	return c.run(ctx, how, b.Name)
}

func (c *compose) freeze(ctx context.Context, b Broker) error { return c.run(ctx, "pause", b.Name) }

func (c *compose) thaw(ctx context.Context, b Broker) error {
	frozen, err := c.services(ctx, "paused")
	if err != nil || !slices.Contains(frozen, b.Name) {
		return err
	}
	return c.run(ctx, "unpause", b.Name)
}

func (c *compose) control(ctx context.Context, b Broker, args []string) error {
	cmd := c.command(ctx, append([]string{"exec", "--no-TTY", b.Name, "rabbitmqctl"}, args...)...)
	cmd.Stdout = c.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// down takes the network away too, with the last of the brokers.
func (c *compose) down(ctx context.Context, brokers []Broker) error {
	for _, b := range brokers {
		if err := c.thaw(ctx, b); err != nil {
			return err
		}
	}
	if len(brokers) < len(Brokers()) {
		if err := c.run(ctx, append([]string{"rm", "--stop", "--force", "--volumes"}, names(brokers)...)...); err != nil {
			return err
		}
		left, err := c.command(ctx, "ps", "--all", "--quiet").Output()
		if err != nil || len(left) > 0 {
			return err
		}
	}
	return c.run(ctx, "down", "--volumes", "--remove-orphans")
}
