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

func (c *compose) running(ctx context.Context) ([]string, error) {
	out, err := c.command(ctx, "ps", "--services", "--status", "running").Output()
	if err != nil {
		return nil, fmt.Errorf("docker compose ps: %w", err)
	}
	return strings.Fields(string(out)), nil
}

func (c *compose) start(ctx context.Context, brokers []Broker) ([]Broker, error) {
	running, err := c.running(ctx)
	if err != nil {
		return nil, err
	}
	started := slices.DeleteFunc(slices.Clone(brokers), func(b Broker) bool {
		return slices.Contains(running, b.Name)
	})
	if len(started) == 0 {
		return nil, nil
	}
	args := []string{"up", "--detach", "--wait"}
	for _, b := range started {
		args = append(args, b.Name)
	}
	return started, c.run(ctx, args...)
}

func (c *compose) await(ctx context.Context, b Broker) error {
	return c.control(ctx, b, []string{"--quiet", "await_startup"})
}

func (c *compose) check(ctx context.Context, b Broker) error {
	running, err := c.running(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(running, b.Name) {
		return fmt.Errorf("its container has ended: see docker compose logs %s", b.Name)
	}
	return nil
}

func (c *compose) stop(ctx context.Context, b Broker) error { return c.run(ctx, "stop", b.Name) }

func (c *compose) kill(ctx context.Context, b Broker) error { return c.run(ctx, "kill", b.Name) }

func (c *compose) control(ctx context.Context, b Broker, args []string) error {
	cmd := c.command(ctx, append([]string{"exec", "--no-TTY", b.Name, "rabbitmqctl"}, args...)...)
	cmd.Stdout = c.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (c *compose) down(ctx context.Context) error {
	return c.run(ctx, "down", "--volumes", "--remove-orphans")
}
