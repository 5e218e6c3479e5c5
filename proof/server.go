package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// server is a broker that is a process of its own, as the driver sees it.
type server interface {
	target

	// declared notes what a worker has declared.
	declared(what, name string)

	// wait returns when there is something to publish to.
	wait(ctx context.Context, s *scenario) error

	// watch takes down what shows on the broker meanwhile.
	watch(ctx context.Context, l *ledger) (stop func())

	// counts are the messages that are not settled, by topic; empty ones are
	// left out.
	counts() (map[string]int, error)

	// drain returns what is in a dead-letter topic.
	drain(ctx context.Context, topic string) ([]brokers.Message, error)
}

func newTag() string { return "proof-" + strings.ToLower(rand.Text()[:8]) }

func newServer(ctx context.Context, j job, s *scenario) (server, error) {
	switch j.broker {
	case "kafka":
		return newKafkaTarget(ctx, j.url, j.tag, s)
	case "sqs":
		return newSQSTarget(j)
	}
	return newRabbitTarget(j.url, j.tag)
}

// addressOf returns url, or where the environment says that the broker is.
func addressOf(broker, url string) (string, error) {
	variables := []string{"REDRIVE_RABBITMQ4_URL", "REDRIVE_RABBITMQ_URL"}
	switch broker {
	case "kafka":
		variables = []string{"REDRIVE_KAFKA_URL", "REDRIVE_KAFKA39_URL"}
	case "sqs":
		variables = []string{"REDRIVE_SQS_URL"}
	}
	for _, variable := range variables {
		url = cmp.Or(url, os.Getenv(variable))
	}
	if url == "" {
		return "", fmt.Errorf("there is no broker: set -url, or %s", strings.Join(variables, " or "))
	}
	return url, nil
}
