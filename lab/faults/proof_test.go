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
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

// proof is the command proof at work.
type proof struct {
	*testing.T
	in     io.WriteCloser
	out    *bufio.Scanner
	lines  []string
	stderr *bytes.Buffer
	cmd    *exec.Cmd
}

// startProof returns when the workers are at work.
func startProof(t *testing.T, target livetest.Target, address string, args ...string) *proof {
	t.Helper()
	program := filepath.Join(t.TempDir(), "proof.exe")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../proof").CombinedOutput(); err != nil {
		t.Fatalf("build the proof: %v\n%s", err, out)
	}
	args = append([]string{"-broker", string(target.Product), "-url", address, "-faults"}, args...)
	p := &proof{T: t, cmd: exec.CommandContext(t.Context(), program, args...), stderr: &bytes.Buffer{}}
	p.cmd.Stderr = p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewScanner(out)
	must(t, p.cmd.Start())
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
	if err != nil { // a Kafka has none
		target = &url.URL{Host: address}
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "broker", "127.0.0.1:0", target.Host)
	if err := proxy.Start(); err != nil {
		t.Fatalf("start the proxy: %v", err)
	}
	t.Cleanup(proxy.Stop)
	target.Host = proxy.Listen
	return proxy, strings.TrimPrefix(target.String(), "//")
}

// figure returns what the proof says of name, once it is finished.
func (p *proof) figure(name string) int {
	p.Helper()
	for _, line := range p.lines {
		if fields := strings.Split(line, "\t"); fields[0] == name && len(fields) > 1 {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				p.Errorf("the proof says %q", line)
			}
			return n
		}
	}
	p.Errorf("the proof does not say %s", name)
	return 0
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

// onBrokers runs a test on all brokers at the same time: it waits more than it
// works.
func onBrokers(t *testing.T, test func(t *testing.T, target livetest.Target)) {
	for product, on := range map[string]func(*testing.T, func(*testing.T, livetest.Target)){"RabbitMQ": onRabbitMQ, "Kafka": onKafka} {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			on(t, test)
		})
	}
}

// onProducts runs a test on one product after the other: brokers that start
// need the machine.
func onProducts(t *testing.T, test func(t *testing.T, target livetest.Target)) {
	t.Run("RabbitMQ", func(t *testing.T) { onRabbitMQ(t, test) })
	t.Run("Kafka", func(t *testing.T) { onKafka(t, test) })
}

func onRabbitMQ(t *testing.T, test func(t *testing.T, target livetest.Target)) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		test(t, target)
	})
}

func onKafka(t *testing.T, test func(t *testing.T, target livetest.Target)) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		test(t, target)
	})
}

// heartbeats returns the address with the pause between two signs of life that
// a RabbitMQ is told there. Workers of a Kafka have sessions of 3 s.
func heartbeats(target livetest.Target, address string, seconds int) string {
	if target.Product == harness.RabbitMQ {
		return fmt.Sprintf("%s?heartbeat=%d", address, seconds)
	}
	return address
}

func TestConnectionCuts(t *testing.T) {
	onBrokers(t, func(t *testing.T, target livetest.Target) {
		const seed, cuts = 5, 12
		random := rand.New(rand.NewPCG(seed, 0))
		proxy, address := through(t, target.URL)
		p := startProof(t, target, address, "-messages", "3000", "-kills", "4", "-seed", fmt.Sprint(seed))
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
	onBrokers(t, func(t *testing.T, target livetest.Target) {
		proxy, address := through(t, target.URL)
		p := startProof(t, target, address, "-messages", "2000", "-kills", "4", "-seed", "6")
		p.poison(proxy, "downstream", "latency", `{"latency": 100, "jitter": 80}`, 4*time.Second)
		p.poison(proxy, "upstream", "latency", `{"latency": 300, "jitter": 200}`, 3*time.Second)
		p.poison(proxy, "upstream", "slicer", `{"average_size": 20, "size_variation": 15, "delay": 20}`, 2*time.Second)
		p.finish()
	})
}

func TestBlackHole(t *testing.T) {
	onBrokers(t, func(t *testing.T, target livetest.Target) {
		proxy, address := through(t, target.URL)
		p := startProof(t, target, heartbeats(target, address, 4), "-messages", "2000", "-kills", "2", "-seed", "7")
		p.pause(time.Second)
		p.poison(proxy, "downstream", "timeout", `{"timeout": 0}`, 5*time.Second)
		p.pause(time.Second)
		p.poison(proxy, "upstream", "timeout", `{"timeout": 0}`, 10*time.Second) // longer than two heartbeats
		p.finish()
	})
}

func TestBrokerKilled(t *testing.T) {
	onProducts(t, func(t *testing.T, target livetest.Target) {
		h := newHarness(t)
		p := startProof(t, target, target.URL, "-messages", "5000", "-kills", "4", "-seed", "8")
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
	onRabbitMQ(t, func(t *testing.T, target livetest.Target) {
		h := newHarness(t)
		p := startProof(t, target, target.URL, "-messages", "3000", "-kills", "3", "-seed", "9")
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

// A worker that stands still for longer than the heartbeat allows has lost its
// connections when it goes on, and what it held is with the others.
func TestFrozenWorkers(t *testing.T) {
	const heartbeat, frozen = 2, 7 * time.Second // the broker waits for two or three of them
	onBrokers(t, func(t *testing.T, target livetest.Target) {
		p := startProof(t, target, heartbeats(target, target.URL, heartbeat), "-messages", "3000", "-kills", "3", "-seed", "10")
		p.pause(2 * time.Second)
		p.during("a worker frozen", func() { p.freeze(1, frozen) })
		p.pause(time.Second)
		p.during("two workers frozen", func() { p.freeze(2, frozen) })
		p.finish()
	})
}

// freeze has n worker processes stand still for a while.
func (p *proof) freeze(n int, d time.Duration) {
	p.Helper()
	var frozen []*os.Process
	for _, pid := range p.workers() {
		if len(frozen) == n {
			break
		}
		w, err := os.FindProcess(pid)
		if err == nil && w.Signal(syscall.SIGSTOP) == nil {
			frozen = append(frozen, w)
		}
	}
	if len(frozen) < n {
		p.Errorf("%d workers are frozen, want %d", len(frozen), n)
	}
	p.pause(d)
	for _, w := range frozen {
		w.Signal(syscall.SIGCONT)
		w.Release()
	}
}

// workers lists the worker processes.
func (p *proof) workers() (pids []int) {
	p.Helper()
	fmt.Fprintln(p.in, "workers")
	if !p.out.Scan() {
		p.Fatalf("the proof is gone: %v\n%s", p.cmd.Wait(), p.stderr)
	}
	fields := strings.Fields(p.out.Text())
	for _, field := range fields[1:] {
		pid, err := strconv.Atoi(field)
		if err != nil {
			p.Fatalf("the proof says %q, want the numbers of its workers", p.out.Text())
		}
		pids = append(pids, pid)
	}
	return pids
}

// A message that kills its worker each time ends as a dead letter with the
// reason crash-loop, and no other message does, also of those that were lost
// with it. The proof demands that.
func TestCrashLoop(t *testing.T) {
	onBrokers(t, func(t *testing.T, target livetest.Target) {
		p := startProof(t, target, target.URL, "-messages", "2000", "-kills", "2", "-loops", "1", "-seed", "2")
		p.finish()
		most := 50 // a RabbitMQ also counts what was lost with its connection
		if target.Product == harness.Kafka {
			most = 6 // one that died before its marks were committed, two before the trial, three on it
		}
		if n := p.figure("kills_by_messages"); n < 1 || n > most {
			t.Errorf("the message has killed %d workers, want 1 to %d", n, most)
		}
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
