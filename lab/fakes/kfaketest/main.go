// Command kfaketest runs a command with a fake Kafka of three brokers in place
// of the real ones:
//
//	go run ./lab/fakes/kfaketest go test ./brokers/kafka
//
// The fake is in memory, so this takes seconds, and three brokers are what the
// real ones of the tests, one each, are not.
//
// Its tests are those of workers on a cluster that refuses calls, moves leaders,
// checks rights and makes topics by itself.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "kfaketest:", err)
		os.Exit(2)
	}
}

func run(command []string) error {
	if len(command) == 0 {
		return errors.New("usage: kfaketest command [arguments]")
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.GroupMinSessionTimeout(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer cluster.Close()
	done := make(chan struct{})
	defer close(done)
	go compact(cluster, done)

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	address := strings.Join(cluster.ListenAddrs(), ",")
	// One of the two is enough; the tests of the other one are skipped.
	cmd.Env = append(os.Environ(), "CI=", "REDRIVE_KAFKA_URL="+address, "REDRIVE_KAFKA39_URL=", "REDRIVE_KAFKA_FAKE=true")
	return cmd.Run()
}

// compact does what the cleaner of a real broker does by itself.
func compact(cluster *kfake.Cluster, done <-chan struct{}) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			cluster.Compact()
		case <-done:
			return
		}
	}
}
