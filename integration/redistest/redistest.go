// Package redistest gives tests Redis servers of their own, which they may break.
package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/freeport"
)

// program is what runs, of the Debian package of the same name.
const program = "redis-server"

// Server is a Redis that keeps nothing when it ends, unless its arguments say so.
type Server struct {
	Addr string // host:port

	dir  string
	args []string
	cmd  *exec.Cmd
}

// New starts a server with further arguments, until the end of the test. Without the
// program the test ends here: it is skipped, or fails where CI=true.
func New(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(err)
		}
		tb.Skipf("%v: the Debian package %s has it", err, program)
	}
	port := freePort(tb)
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), dir: tb.TempDir()}
	s.args = append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}, args...)
	if err := s.Restart(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Kill() })
	return s
}

// Kill ends the server as a crash does.
func (s *Server) Kill() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it does not end in good order
	return err
}

// Restart starts a server that was killed, at the same address.
func (s *Server) Restart() error {
	var log bytes.Buffer
	s.cmd = exec.Command(program, s.args...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, &log, &log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); ; <-time.After(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", s.Addr, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %w\n%s", program, errors.Join(err, s.Kill()), log.String())
		}
	}
}

// NewCluster starts a Redis Cluster of three nodes that have met.
func NewCluster(tb testing.TB) (addrs []string) {
	tb.Helper()
	const nodes, slots = 3, 16384
	var clients []*redis.Client
	var buses []string
	for i := range nodes {
		bus := freePort(tb)
		s := New(tb, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "15000", "--cluster-port", bus)
		c := redis.NewClient(&redis.Options{Addr: s.Addr})
		tb.Cleanup(func() { _ = c.Close() })
		if err := c.ClusterAddSlotsRange(tb.Context(), i*slots/nodes, (i+1)*slots/nodes-1).Err(); err != nil {
			tb.Fatal(err)
		}
		for other, addr := range addrs {
			host, port, _ := net.SplitHostPort(addr)
			if err := c.Do(tb.Context(), "cluster", "meet", host, port, buses[other]).Err(); err != nil {
				tb.Fatal(err)
			}
		}
		addrs, buses, clients = append(addrs, s.Addr), append(buses, bus), append(clients, c)
	}
	for _, c := range clients {
		for end := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
			info, err := c.ClusterInfo(tb.Context()).Result()
			if strings.Contains(info, "cluster_state:ok") {
				break
			}
			if time.Now().After(end) {
				tb.Fatalf("the nodes of the cluster have not met within a minute: %v\n%s", err, info)
			}
		}
	}
	return addrs
}

func freePort(tb testing.TB) string {
	tb.Helper()
	ports, err := freeport.Ports(1)
	if err != nil {
		tb.Fatal(err)
	}
	return ports[0]
}
