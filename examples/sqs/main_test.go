package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestExample runs the program as a user does, up to Ctrl-C.
func TestExample(t *testing.T) {
	program := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Run("sqstest", func(t *testing.T) {
		server := sqstest.NewServer(sqstest.Options{})
		t.Cleanup(server.Close)
		runExample(t, program, server.URL)
	})
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		runExample(t, program, target.URL)
	})
}

// runExample works three orders off, and then the dead letter.
func runExample(t *testing.T, program, endpoint string) {
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(name, value)
	}
	queue := "example-" + strings.ToLower(rand.Text()[:10])
	client := awssqs.NewFromConfig(environment())
	t.Cleanup(func() { remove(t, client, queue, queue+"-dead") })

	orders := start(t, program, "-queue", queue)
	orders.wait("worker started") // and has created the queues
	if out, err := exec.CommandContext(t.Context(), program, "-queue", queue, "-publish", "3").CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
	orders.wait("charged order-1 in run 1", "charged order-2 in run 2", "message dead-lettered")
	orders.end()
	letters := start(t, program, "-queue", queue, "-letters")
	letters.wait(`dead letter {"id":"order-3","cents":0}: poison: there is nothing to charge`)
	letters.end()
	for _, name := range []string{queue, queue + "-dead"} {
		if n := depth(t, client, name); n != "0+0+0" {
			t.Errorf("%s messages are visible, in flight and delayed in %q, want none", n, name)
		}
	}
}

// process is a program that runs.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   *bufio.Scanner // what it prints, and its log
	seen strings.Builder
	stop func() bool
}

func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	p.in = bufio.NewScanner(r)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	p.stop = context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })
	return p
}

// wait returns when the program has printed the texts, in any order.
func (p *process) wait(texts ...string) {
	p.t.Helper()
	for len(texts) > 0 {
		if !p.in.Scan() {
			p.cmd.Wait()
			p.t.Fatalf("%v ends, or takes too long, without %q; it says\n%s", p.cmd.Args[1:], texts, &p.seen)
		}
		fmt.Fprintln(&p.seen, p.in.Text())
		texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(p.in.Text(), text) })
	}
}

// end sends an interrupt and demands that the program ends well, with nothing
// charged that was not waited for.
func (p *process) end() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Errorf("interrupt: %v", err)
	}
	var rest strings.Builder
	for p.in.Scan() {
		fmt.Fprintln(&rest, p.in.Text())
	}
	if err := p.cmd.Wait(); err != nil || strings.Contains(rest.String(), "charged") {
		p.t.Errorf("%v ends with %v, and at last says\n%s", p.cmd.Args[1:], err, &rest)
	}
	p.stop()
}

// depth says how many messages a queue has, visible, in flight and delayed.
func depth(t *testing.T, client *awssqs.Client, queue string) string {
	t.Helper()
	names := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	}
	out, err := client.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: address(t, client, queue), AttributeNames: names})
	if err != nil {
		t.Fatal(err)
	}
	var counts []string
	for _, name := range names {
		counts = append(counts, out.Attributes[string(name)])
	}
	return strings.Join(counts, "+")
}

func address(t *testing.T, client *awssqs.Client, queue string) *string {
	t.Helper()
	out, err := client.GetQueueUrl(context.WithoutCancel(t.Context()), &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
	if err != nil {
		t.Fatal(err)
	}
	return out.QueueUrl
}

func remove(t *testing.T, client *awssqs.Client, queues ...string) {
	for _, queue := range queues {
		ctx := context.Background() // that of the test is over
		if _, err := client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: address(t, client, queue)}); err != nil {
			t.Errorf("delete %q: %v", queue, err)
		}
	}
}
