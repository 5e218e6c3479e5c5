package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/integration/livetest"
)

// TestExample runs the program as a user does, up to Ctrl-C.
func TestExample(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		program := filepath.Join(t.TempDir(), "worker")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		admin := &kafka.Client{Addr: kafka.TCP(strings.Split(target.URL, ",")...), Timeout: time.Minute}
		topic := "example." + strings.ToLower(rand.Text()[:10])
		create(t, admin, topic)
		t.Cleanup(func() { remove(t, admin, topic) })

		runUntil(t, target.URL, exec.Command(program, "-topic", topic, "-publish", "3"),
			"charged order-1 in run 1",
			"charged order-2 in run 2")
		runUntil(t, target.URL, exec.Command(program, "-topic", topic, "-letters"),
			`dead letter {"id":"order-3","cents":0}: poison: there is nothing to charge`)
		for _, topic := range []string{topic, topic + "-dead"} {
			if n := lag(t, admin, topic); n != 0 {
				t.Errorf("%d records of %q are not committed, want none", n, topic)
			}
		}
	})
}

// runUntil starts cmd, waits until it has printed the lines, sends it an
// interrupt and demands that it ends well.
func runUntil(t *testing.T, address string, cmd *exec.Cmd, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var logged strings.Builder
	cmd.Env = append(os.Environ(), "KAFKA_BROKERS="+address)
	cmd.Stderr = &logged
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer context.AfterFunc(ctx, func() { cmd.Process.Kill() })()
	got := lines(out, len(want))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("interrupt: %v", err)
	}
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v ends with %v", cmd.Args[1:], err)
	}
	if slices.Sort(got); !slices.Equal(got, want) || len(rest) > 0 {
		t.Errorf("%v prints %q and then %q, want %q\n%s", cmd.Args[1:], got, rest, want, &logged)
	}
}

// lines reads n lines, or less if there are no more.
func lines(r io.Reader, n int) []string {
	var all []string
	for scanner := bufio.NewScanner(r); len(all) < n && scanner.Scan(); {
		all = append(all, scanner.Text())
	}
	return all
}

func create(t *testing.T, admin *kafka.Client, topic string) {
	t.Helper()
	res, err := admin.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}},
	})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil {
		t.Fatalf("create topic %q: %v", topic, err)
	}
}

// lag counts the records of topic from where its group has committed.
func lag(t *testing.T, admin *kafka.Client, topic string) int64 {
	t.Helper()
	offsets, err := admin.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{GroupID: topic, Topics: map[string][]int{topic: {0, 1}}})
	if err != nil {
		t.Fatalf("read what group %q has committed: %v", topic, err)
	}
	ends, err := admin.ListOffsets(t.Context(), &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0), kafka.LastOffsetOf(1)}},
	})
	if err != nil {
		t.Fatalf("read the end of %q: %v", topic, err)
	}
	n := int64(0)
	for _, end := range ends.Topics[topic] {
		n += end.LastOffset
	}
	for _, p := range offsets.Topics[topic] {
		n -= max(p.CommittedOffset, 0)
	}
	return n
}

// remove deletes topic, and the topics that belong to it.
func remove(t *testing.T, admin *kafka.Client, topic string) {
	t.Helper()
	ctx := context.Background() // that of the test is over
	fresh := &kafka.Transport{} // another one may not know of the last topics yet
	defer fresh.CloseIdleConnections()
	admin = &kafka.Client{Addr: admin.Addr, Timeout: admin.Timeout, Transport: fresh}
	all, err := admin.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		t.Errorf("list the topics: %v", err)
		return
	}
	var names []string
	for _, known := range all.Topics {
		if strings.Contains(known.Name, topic) {
			names = append(names, known.Name)
		}
	}
	res, err := admin.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: names})
	if err != nil {
		t.Errorf("delete %q: %v", names, err)
		return
	}
	for name, err := range res.Errors {
		if err != nil {
			t.Errorf("delete %q: %v", name, err)
		}
	}
}
