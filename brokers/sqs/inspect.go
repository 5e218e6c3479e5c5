package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// checking is the page about what Inspect finds beyond Open.
const checking = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/check-a-set-up.md#sqs"

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
	clock, err := b.clock(ctx, sites)
	if err != nil {
		return nil, err
	}
	topics := slices.Sorted(maps.Keys(sites))
	more := make([][]inspect.Finding, len(topics))
	err = allOf(len(topics), func(i int) (err error) {
		more[i], err = b.inspectOne(ctx, sub, sites[topics[i]])
		return err
	})
	return slices.Concat(findings(sub, sites, b.options.Create), slices.Concat(more...), clock), err
}

// inspectOne finds what Open does not of one queue.
func (b *Broker) inspectOne(ctx context.Context, sub brokers.Subscription, s *site) ([]inspect.Finding, error) {
	switch {
	case s.missing && b.options.Create && creatable(s.topic):
		return []inspect.Finding{s.gap(sub, true)}, nil
	case s.missing:
		return nil, nil
	}
	denied, err := b.denied(ctx, sub, s)
	return slices.Concat(s.barelyKeeps(), s.isPlain(), s.exposesLetters(), denied), err
}

// more is a finding that Open does not have.
func (s *site) more(severity inspect.Severity, setting, value, want, why, fix string) []inspect.Finding {
	f := s.finding(severity, setting, value, want, why, fix)
	f.See = checking
	return []inspect.Finding{f}
}

// barelyKeeps is about messages that SQS itself moves from s, which keep their age. On
// FIFO queues they do not.
func (s *site) barelyKeeps() []inspect.Finding {
	if s.net == nil || isFIFO(s.topic) || s.net.attrs.retention == 0 || s.net.attrs.retention != s.attrs.retention || s.attrs.retention == retention {
		return nil
	}
	return s.net.more(inspect.Noted, nameRetention, inSeconds(s.net.attrs.retention), inSeconds(retention),
		fmt.Sprintf("what SQS itself moves here from %q keeps its age, and is deleted when it would have been deleted there", s.topic),
		s.net.mend(nameRetention, inSeconds(retention)))
}

func (s *site) isPlain() []inspect.Finding {
	if !s.attrs.plain {
		return nil
	}
	return s.more(inspect.Noted, nameManaged, "false", "true", "messages are stored unencrypted", s.mend(nameManaged, "true"))
}

// exposesLetters is about letters that are protected less than their messages were.
func (s *site) exposesLetters() []inspect.Finding {
	if s.attrs.key == "" || s.letters == nil || s.letters.attrs.arn == "" || s.letters.attrs.key != "" {
		return nil
	}
	return s.letters.more(inspect.Noted, nameKey, "", s.attrs.key,
		fmt.Sprintf("messages of %q are encrypted with a key of yours, and their dead letters are not", s.topic), s.letters.mend(nameKey, s.attrs.key))
}

// rights are those that may be asked for, with a call for each that cannot do
// anything: it says of no message what to do, or of one that there is not.
var rights = []struct {
	action string
	call   func(ctx context.Context, c *awssqs.Client, url *string) error
}{
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
func (b *Broker) denied(ctx context.Context, sub brokers.Subscription, s *site) ([]inspect.Finding, error) {
	isTopic := slices.Contains(sub.Topics, s.topic)
	sends := slices.Contains(lasting(sub), s.topic) || isTopic && !isFIFO(s.topic) && !sub.ReadOnly()
	var wants, lacks []string
	for _, right := range rights {
		if right.action == toSend && sends || right.action != toSend && isTopic {
			wants = append(wants, right.action)
		}
	}
	denied := make([]bool, len(rights))
	err := allOf(len(rights), func(i int) (err error) {
		if slices.Contains(wants, rights[i].action) {
			denied[i], err = b.client.denied(ctx, s.url, rights[i].call)
		}
		return err
	})
	for i, right := range rights {
		if denied[i] {
			lacks = append(lacks, right.action)
		}
	}
	if lacks == nil || err != nil {
		return nil, err
	}
	return s.more(inspect.Blocking, "the identity's rights", "not "+strings.Join(lacks, ", "), strings.Join(wants, ", "),
		"the worker stops at the first call that it must not make", s.grant(lacks)), nil
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
	text, _ := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{
		map[string]any{"Effect": "Allow", "Action": actions, "Resource": arnOf(s)},
	}}) // strings cannot fail
	return fmt.Sprintf("aws iam put-role-policy --role-name ROLE --policy-name %s --policy-document %s", shell("redrive-"+queueName(s.topic)), shell(string(text)))
}

func arnOf(s *site) string {
	if s.attrs.arn == "" {
		return "ARN"
	}
	return s.attrs.arn
}

// clock compares the clock of the service with this machine's. A server that does not
// tell it has none that is off.
func (b *Broker) clock(ctx context.Context, sites map[string]*site) ([]inspect.Finding, error) {
	for _, s := range sites {
		if s.missing || s.hidden {
			continue
		}
		var date time.Time
		before := time.Now()
		err := b.client.call(ctx, inspecting, queueName(s.url), b.client.timeout, func(ctx context.Context) error {
			out, err := b.client.sends.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &s.url})
			if err == nil {
				date, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
			}
			return err
		})
		u, _ := url.Parse(s.url) // as it was called
		if err != nil || date.IsZero() || u == nil {
			return nil, err
		}
		return adapter.Clock(u.Host, checking, before, time.Now(), date), nil
	}
	return nil, nil
}
