package freeport

import (
	"net"
	"slices"
	"strconv"
	"testing"
)

func TestPorts(t *testing.T) {
	ports, err := Ports(200)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if n := len(slices.Compact(slices.Clone(ports))); n != 200 {
		t.Errorf("%d different ports, want 200", n)
	}
	for _, port := range ports {
		if n, err := strconv.Atoi(port); err != nil || n < lowest || n >= highest {
			t.Errorf("port %q is out of range", port)
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", ports[0]))
	if err != nil {
		t.Fatalf("a port is still in use: %v", err)
	}
	l.Close()
}
