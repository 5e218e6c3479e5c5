package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

// command measures redrive with a store of n letters.
func (s *letterSession) command(ctx context.Context, path string, n int, samples *figure.Samples) error {
	program := filepath.Join(s.dir, "redrive.exe")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./operate/cmd/redrive")
	build.Dir = s.suite.Root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the command: %w\n%s", err, out)
	}
	const more = 20_000
	names, err := s.world.Fill(ctx, 0, "served")
	if err == nil {
		err = s.bury(ctx, names[0], n, more)
	}
	if err != nil {
		return err
	}
	address, err := url.Parse(s.world.URL)
	if err != nil {
		return err
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	password, _ := address.User.Password()
	user := address.User.Username()
	address.User = nil
	text := fmt.Sprintf(`brokers:
  bench: {kind: rabbitmq, urls: [%q], user: %q, password: {env: FIGURES_PASSWORD}}
topics:
  - {name: orders, broker: bench, dead: [%s], collect: true}
store: {url: %q}
collect: {max_letters: 2000000, free_disk: 1%%}
serve: {listen: %q}
`, address, user, names[0], path, listen)
	config := filepath.Join(s.dir, "redrive.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	redrive := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, program, args...)
		c.Env = append(os.Environ(), "REDRIVE_CONFIG="+config, "FIGURES_PASSWORD="+password)
		return c
	}
	for range 21 {
		began := time.Now()
		if out, err := redrive("dlq", "jobs").CombinedOutput(); err != nil {
			return fmt.Errorf("redrive dlq jobs: %w\n%s", err, out)
		}
		samples.Add("cli_start_ms", milliseconds(time.Since(began)))
	}
	return serving(ctx, redrive("serve"), "http://"+listen+"/metrics", more, samples)
}

// serving measures the memory of redrive serve until it has collected n letters.
func serving(ctx context.Context, serve *exec.Cmd, metrics string, n int, samples *figure.Samples) error {
	var said bytes.Buffer
	serve.Stderr = &said
	if err := serve.Start(); err != nil {
		return err
	}
	collected := fmt.Sprintf(`redrive_collected_letters_total{broker="bench",result="new"} %d`, n)
	err := func() error {
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			if text, err := get(ctx, metrics); err == nil && strings.Contains(text, collected+"\n") {
				return nil
			}
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		return fmt.Errorf("%s does not say %s", metrics, collected)
	}()
	peak, e := residentPeak(serve.Process.Pid)
	err = errors.Join(err, e, serve.Process.Signal(syscall.SIGTERM))
	if e := serve.Wait(); err != nil || e != nil {
		return errors.Join(err, fmt.Errorf("redrive serve: %w\n%s", e, &said))
	}
	samples.Add("serve_rss_mib", peak)
	return nil
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(response.Body)
	return text.String(), err
}

// residentPeak is the most memory that a process had resident, in MiB.
func residentPeak(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return 0, errors.New("the system does not say how much memory a process has had")
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return kib / 1024, err
}

// freeAddress is one that nobody listens on now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
