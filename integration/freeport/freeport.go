// Package freeport finds ports for servers that tests start.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports are below those that the kernel gives to connections, one of which could
// take a port before the server does, and below those of the brokers of the machine.
const (
	lowest  = 10_000
	highest = 25_000
	tries   = 100
)

// Ports returns n different ports of 127.0.0.1 on which nothing listens.
func Ports(n int) ([]string, error) {
	var ports []string
	for range tries * n {
		if len(ports) == n {
			break
		}
		port := strconv.Itoa(lowest + rand.IntN(highest-lowest))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		defer l.Close() // when all are found, so that none is found twice
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("only %d of %d free ports from %d to %d were found in %d tries", len(ports), n, lowest, highest, tries*n)
	}
	return ports, nil
}
