// Package faults holds the tests that break connections and brokers while
// worker processes are at work and are killed. It is a module of its own, so
// that its tools stay out of everybody's go.sum.
package faults

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

// proof is the command internal/proof at work.
type proof struct {
	*testing.T
	in     io.WriteCloser
	out    *bufio.Scanner
	lines  []string
	stderr *bytes.Buffer
	cmd    *exec.Cmd
}

// startProof returns when the workers are at work.
func startProof(t *testing.T, address string, args ...string) *proof {
	t.Helper()
	program := filepath.Join(t.TempDir(), "proof.exe")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./internal/proof").CombinedOutput(); err != nil {
		t.Fatalf("build the proof: %v\n%s", err, out)
	}
	args = append([]string{"-broker", "rabbitmq", "-url", address, "-faults"}, args...)
	p := &proof{T: t, cmd: exec.CommandContext(t.Context(), program, args...), stderr: &bytes.Buffer{}}
	p.cmd.Stderr = p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.expect("ready")
	return p
}

func (p *proof) expect(want string) {
	p.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.Fatalf("the proof says %q, want %q: %v\n%s", p.out.Text(), want, p.cmd.Wait(), p.stderr)
	}
}

// during lets the proof know of a fault, and causes it.
func (p *proof) during(name string, cause func()) {
	p.Helper()
	fmt.Fprintln(p.in, "begin", name)
	p.expect("noted")
	cause()
	fmt.Fprintln(p.in, "end", name)
	p.expect("noted")
}

// finish lets the proof come to its end, and demands that no promise is broken.
func (p *proof) finish() {
	p.Helper()
	p.in.Close()
	for p.out.Scan() {
		p.lines = append(p.lines, p.out.Text())
	}
	err := p.cmd.Wait()
	p.Logf("\n%s", strings.Join(p.lines, "\n"))
	if err != nil {
		text := p.stderr.String()
		p.Errorf("%v\n%s", err, text[:min(len(text), 20_000)])
	}
}

// through puts a proxy before the broker.
func through(t *testing.T, address string) (*toxiproxy.Proxy, string) {
	t.Helper()
	target, err := url.Parse(address)
	if err != nil {
		t.Fatalf("the address of the broker is not a URL")
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "broker", "127.0.0.1:0", target.Host)
	if err := proxy.Start(); err != nil {
		t.Fatalf("start the proxy: %v", err)
	}
	t.Cleanup(proxy.Stop)
	target.Host = proxy.Listen
	return proxy, target.String()
}

// poison puts a toxic on the proxy for a while.
func (p *proof) poison(proxy *toxiproxy.Proxy, stream, kind, attributes string, d time.Duration) {
	p.Helper()
	p.during(kind+" "+stream+" "+attributes, func() {
		json := fmt.Sprintf(`{"name": "toxic", "type": %q, "stream": %q, "attributes": %s}`, kind, stream, attributes)
		if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(json)); err != nil {
			p.Fatalf("add %s: %v", json, err)
		}
		p.pause(d)
		if err := proxy.Toxics.RemoveToxic(p.Context(), "toxic"); err != nil {
			p.Fatalf("remove %s: %v", json, err)
		}
	})
}

// pause lets the fault last, or the load flow.
func (p *proof) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.Context().Done():
	}
}

func TestConnectionCuts(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		const seed, cuts = 5, 12
		random := rand.New(rand.NewPCG(seed, 0))
		proxy, address := through(t, target.URL)
		p := startProof(t, address, "-messages", "4000", "-kills", "4", "-seed", fmt.Sprint(seed))
		for i := range cuts {
			stream := []string{"upstream", "downstream"}[i%2]
			if i%4 == 3 {
				p.poison(proxy, stream, "reset_peer", `{"timeout": 0}`, 200*time.Millisecond)
			} else {
				limit := fmt.Sprintf(`{"bytes": %d}`, 1+random.IntN(4000))
				p.poison(proxy, stream, "limit_data", limit, 300*time.Millisecond)
			}
			p.pause(time.Duration(random.Int64N(int64(time.Second))))
		}
		p.finish()
	})
}

func TestSlowNetwork(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		proxy, address := through(t, target.URL)
		p := startProof(t, address, "-messages", "2000", "-kills", "4", "-seed", "6")
		p.poison(proxy, "downstream", "latency", `{"latency": 100, "jitter": 80}`, 4*time.Second)
		p.poison(proxy, "upstream", "latency", `{"latency": 300, "jitter": 200}`, 3*time.Second)
		p.poison(proxy, "upstream", "slicer", `{"average_size": 20, "size_variation": 15, "delay": 20}`, 2*time.Second)
		p.finish()
	})
}

func TestBlackHole(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		proxy, address := through(t, target.URL)
		p := startProof(t, address, "-messages", "4000", "-kills", "2", "-seed", "7")
		p.pause(time.Second)
		p.poison(proxy, "downstream", "timeout", `{"timeout": 0}`, 5*time.Second)
		p.pause(time.Second)
		p.poison(proxy, "upstream", "timeout", `{"timeout": 0}`, 25*time.Second) // longer than two heartbeats
		p.finish()
	})
}

func TestBrokerKilled(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		h := newHarness(t)
		p := startProof(t, target.URL, "-messages", "5000", "-kills", "4", "-seed", "8")
		for range 2 {
			p.pause(3 * time.Second)
			p.during("broker killed", func() {
				if err := h.Kill(t.Context(), target.Name); err != nil {
					t.Fatalf("kill the broker: %v", err)
				}
				if err := h.Start(t.Context(), target.Name); err != nil {
					t.Fatalf("start the broker: %v", err)
				}
				p.pause(time.Second) // its queues elect their leaders
			})
		}
		p.finish()
	})
}

func TestMemoryAlarm(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		h := newHarness(t)
		p := startProof(t, target.URL, "-messages", "3000", "-kills", "3", "-seed", "9")
		p.pause(2 * time.Second)
		p.during("memory alarm", func() {
			watermark := func(value ...string) {
				args := append([]string{"set_vm_memory_high_watermark"}, value...)
				if err := h.Control(context.WithoutCancel(t.Context()), target.Name, args...); err != nil {
					t.Errorf("set the watermark: %v", err)
				}
			}
			defer watermark("absolute", "2GB") // as the harness configures it
			watermark("0.00001")
			p.pause(5 * time.Second)
		})
		p.finish()
	})
}

func newHarness(t *testing.T) *harness.Harness {
	t.Helper()
	h, err := harness.New(t.Context(), t.Output())
	if err != nil {
		t.Fatalf("find the brokers: %v", err)
	}
	return h
}
