package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Inspect returns what Open would find of the queues that sub needs, and changes
// nothing. What does not exist is noted where Open would create it (Options.Create),
// and blocking where it would not.
//
// It finds more than Open: rights that the identity lacks, which are blocking; and as
// noted a dead-letter queue that keeps messages no longer than the queue from which
// SQS itself moves them, queues that are not encrypted, or less than the queue whose
// dead letters they have, and a clock that differs from this machine's by more than a
// second. Of rights it finds those whose lack SQS tells before it looks at what a call
// asks for: each is asked for by a call that cannot do anything.
func (b *Broker) Inspect(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	found, err := b.inspectAll(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("sqs: inspect %q: %w", printable(sub.Topics...), err)
	}
	return found, nil
}

func (b *Broker) inspectAll(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	if err := check(sub, termsOf(sub, b.options)); err != nil {
		return nil, err
	}
	sites, err := b.survey(ctx, sub)
	if err != nil {
		return nil, err
	}
	topics := slices.Sorted(maps.Keys(sites))
	more := make([][]inspect.Finding, len(topics))
	err = allOf(len(topics), func(i int) (err error) {
		more[i], err = b.inspectOne(ctx, sub, sites[topics[i]])
		return err
	})
	return slices.Concat(findings(sub, sites, b.options.Create), slices.Concat(more...), clock(sites)), err
}

// inspectOne finds what Open does not of one queue.
func (b *Broker) inspectOne(ctx context.Context, sub brokers.Subscription, s *site) ([]inspect.Finding, error) {
	switch {
	case s.missing && b.options.Create && creatable(s.topic):
		return findingsOf(existing, s.gap(sub, true)), nil
	case s.missing:
		return nil, nil
	}
	denied, err := b.denied(ctx, sub, s)
	letters, net := cmp.Or(s.letters, new(site)), cmp.Or(s.net, new(site))
	return findingsOf(checking,
		row{ // on FIFO queues what SQS moves is new
			so:    !isFIFO(s.topic) && net.attrs.retention != 0 && net.attrs.retention == s.attrs.retention && s.attrs.retention != retention,
			about: net, severity: inspect.Noted,
			setting: nameRetention, value: inSeconds(net.attrs.retention), want: inSeconds(retention),
			why: fmt.Sprintf("what SQS itself moves here from %q keeps its age, and is deleted when it would have been deleted there", s.topic),
		},
		row{
			so: s.attrs.plain, about: s, severity: inspect.Noted,
			setting: nameManaged, value: "false", want: "true", why: "messages are stored unencrypted",
		},
		row{
			so: s.attrs.key != "" && letters.attrs.arn != "" && letters.attrs.key == "", about: letters, severity: inspect.Noted,
			setting: nameKey, want: s.attrs.key,
			why: fmt.Sprintf("messages of %q are encrypted with a key of yours, and their dead letters are not", s.topic),
		},
		denied,
	), err
}

// right is one, with a call that needs it.
type right struct {
	action string
	call   func(ctx context.Context, c *awssqs.Client, url *string) error
}

// rights are those that may be asked for, with a call for each that cannot do
// anything: it says of no message what to do, or of one that there is not.
var rights = []right{
	{"sqs:ReceiveMessage", func(ctx context.Context, c *awssqs.Client, url *string) error {
		_, err := c.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: -1})
		return err
	}},
	{"sqs:DeleteMessage", func(ctx context.Context, c *awssqs.Client, url *string) error {
		_, err := c.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: url,
			Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: aws.String(noHandle)}}})
		return err
	}},
	{"sqs:ChangeMessageVisibility", func(ctx context.Context, c *awssqs.Client, url *string) error {
		_, err := c.ChangeMessageVisibilityBatch(ctx, &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: url,
			Entries: []types.ChangeMessageVisibilityBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: aws.String(noHandle)}}})
		return err
	}},
	{toSend, func(ctx context.Context, c *awssqs.Client, url *string) error {
		_, err := c.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: url, Entries: []types.SendMessageBatchRequestEntry{}})
		return err
	}},
}

const (
	toSend = "sqs:SendMessage"

	// noHandle is the receipt handle of no message.
	noHandle = "redrive-doctor-asks-for-the-right"
)

// denied finds the rights that a worker lacks on a queue. On FIFO queues nothing is
// retried by copy.
func (b *Broker) denied(ctx context.Context, sub brokers.Subscription, s *site) (row, error) {
	isTopic := slices.Contains(sub.Topics, s.topic)
	sends := slices.Contains(lasting(sub), s.topic) || isTopic && !isFIFO(s.topic) && !sub.ReadOnly()
	asked := slices.DeleteFunc(slices.Clone(rights), func(r right) bool { return r.action == toSend && !sends || r.action != toSend && !isTopic })
	denied := make([]bool, len(asked))
	err := allOf(len(asked), func(i int) (err error) {
		denied[i], err = b.client.denied(ctx, s.url, asked[i].call)
		return err
	})
	var wants, lacks []string
	for i, right := range asked {
		wants = append(wants, right.action)
		if denied[i] {
			lacks = append(lacks, right.action)
		}
	}
	return row{
		so: len(lacks) > 0 && err == nil, about: s, severity: inspect.Blocking,
		setting: "the identity's rights", value: "not " + strings.Join(lacks, ", "), want: strings.Join(wants, ", "),
		why: "the worker stops at the first call that it must not make", fix: s.grant(lacks),
	}, err
}

// denied reports whether the identity may not make a call that cannot do anything. Its
// error is that there was no answer.
func (c *client) denied(ctx context.Context, url string, ask func(context.Context, *awssqs.Client, *string) error) (bool, error) {
	err := c.call(ctx, inspecting, queueName(url), c.timeout, func(ctx context.Context) error { return ask(ctx, c.sends, &url) })
	if _, answered := errors.AsType[smithy.APIError](err); answered || isDenied(err) {
		return isDenied(err), nil
	}
	return false, err
}

// grant is the command that gives a role rights.
func (s *site) grant(actions []string) string {
	document := jsonOf(map[string]any{"Version": "2012-10-17", "Statement": []any{
		map[string]any{"Effect": "Allow", "Action": actions, "Resource": cmp.Or(s.attrs.arn, "ARN")},
	}})
	return fmt.Sprintf("aws iam put-role-policy --role-name ROLE --policy-name %s --policy-document %s", shell("redrive-"+queueName(s.topic)), shell(document))
}

// clock compares the clock of the service with this machine's. A server that does not
// tell it has none that is off.
func clock(sites map[string]*site) []inspect.Finding {
	for _, s := range sites {
		if u, _ := url.Parse(s.url); u != nil && !s.attrs.date.IsZero() {
			return adapter.Clock(u.Host, checking, s.attrs.asked, s.attrs.told, s.attrs.date)
		}
	}
	return nil
}
