package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers"
)

const (
	batchSize = 10

	// callsAtOnce is how many calls with batches one settlement or publish has
	// open.
	callsAtOnce = 32
)

// entryIDs name the entries of a batch.
var entryIDs = [batchSize]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

// span is a part of what a call was given: from, and up to but not including to.
type span struct{ from, to int }

// remove deletes messages. It returns one error per handle, or nil when all
// went well, as hide, hideInOrder and send do.
func (c *client) remove(ctx context.Context, url string, handles []string) []error {
	return c.callers.inParallel(len(handles), tens(len(handles)), func(s span, errs []error) error {
		entries := make([]types.DeleteMessageBatchRequestEntry, len(errs))
		for i := range entries {
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &handles[s.from+i]}
		}
		return c.call(ctx, removing, queueName(url), c.timeout, func(ctx context.Context) error {
			out, err := c.settles.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return err
			}
			note(errs, removing, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
			return nil
		})
	})
}

// hide changes visibility timeouts.
func (c *client) hide(ctx context.Context, url string, changes []change) []error {
	return c.callers.inParallel(len(changes), tens(len(changes)), c.hiding(ctx, url, changes))
}

// hideInOrder is hide with one call at a time, in the order of changes.
func (c *client) hideInOrder(ctx context.Context, url string, changes []change) []error {
	return inOrder(len(changes), tens(len(changes)), c.hiding(ctx, url, changes))
}

func (c *client) hiding(ctx context.Context, url string, changes []change) func(span, []error) error {
	return func(s span, errs []error) error {
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(errs))
		var options []func(*awssqs.Options)
		for i := range entries {
			one := &changes[s.from+i]
			if one.seconds == 0 && options == nil {
				// Once it is visible, somebody else may have it.
				options = append(options, func(o *awssqs.Options) { o.Retryer = cautious{o.Retryer.(aws.RetryerV2)} })
			}
			entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &one.handle, VisibilityTimeout: one.seconds}
		}
		return c.call(ctx, hiding, queueName(url), c.timeout, func(ctx context.Context) error {
			out, err := c.settles.ChangeMessageVisibilityBatch(ctx, &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: entries}, options...)
			if err != nil {
				return err
			}
			note(errs, hiding, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
			return nil
		})
	}
}

// send stores messages, on FIFO queues in the order of out. A queue that is not
// there, or not for us, gets one call and not one for each ten of them.
func (c *client) send(ctx context.Context, url string, out []outgoing) []error {
	var run runner = c.callers.inParallel
	if len(out) > 0 && out[0].entry.MessageDeduplicationId != nil {
		run = inOrder
	}
	return carefully(run, len(out), parcels(out), func(s span, errs []error) error {
		entries := make([]types.SendMessageBatchRequestEntry, len(errs))
		for i := range entries {
			entries[i] = out[s.from+i].entry
			entries[i].Id = &entryIDs[i]
		}
		return c.call(ctx, sending, queueName(url), c.timeout, func(ctx context.Context) error {
			out, err := c.sends.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return err
			}
			note(errs, sending, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
			for _, done := range out.Successful {
				if i := entryOf(done.Id, len(errs)); i >= 0 && errs[i] == nil {
					errs[i] = verify(*entries[i].MessageBody, done.MD5OfMessageBody, url)
				}
			}
			return nil
		})
	})
}

// verify checks what the service says to have stored.
func verify(body string, sum *string, url string) error {
	if sum == nil || matches([]byte(body), *sum) {
		return nil
	}
	return fmt.Errorf("send to the queue %q: %w: %w: it got damaged on its way there", queueName(url), brokers.ErrUnknownOutcome, errChecksum)
}

var errSilent = errors.New("the answer does not tell what became of it")

// note sets errs to what the service has against entries, and for those that it
// says nothing of, that it does not. How many it has done, and which, done and id
// tell.
func note(errs []error, o operation, url string, failed []types.BatchResultErrorEntry, done int, id func(int) *string) {
	for i := range errs {
		errs[i] = errSilent
	}
	for _, f := range failed {
		if i := entryOf(f.Id, len(errs)); i >= 0 {
			errs[i] = explain(&smithy.GenericAPIError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message)}, o, queueName(url))
		}
	}
	for n := range done {
		if i := entryOf(id(n), len(errs)); i >= 0 {
			errs[i] = nil
		}
	}
	for i, err := range errs {
		if err == errSilent {
			if o == sending {
				err = fmt.Errorf("%w: %w", brokers.ErrUnknownOutcome, err)
			}
			errs[i] = explain(err, o, queueName(url))
		}
	}
}

func entryOf(id *string, n int) int {
	if id == nil {
		return -1
	}
	return slices.Index(entryIDs[:n], *id)
}

// tens splits n entries into batches.
func tens(n int) []span {
	spans := make([]span, 0, (n+batchSize-1)/batchSize)
	for from := 0; from < n; from += batchSize {
		spans = append(spans, span{from, min(from+batchSize, n)})
	}
	return spans
}

// parcels splits messages into batches that SQS takes.
func parcels(out []outgoing) []span {
	var spans []span
	from, size := 0, 0
	for i, one := range out {
		if i > from && (i-from == batchSize || size+one.size > largest) {
			spans = append(spans, span{from, i})
			from, size = i, 0
		}
		size += one.size
	}
	if len(out) > from {
		spans = append(spans, span{from, len(out)})
	}
	return spans
}

// runner is inParallel or inOrder.
type runner func(n int, spans []span, f func(span, []error) error) []error

// carefully is run, unless the first call fails for want of configuration: then
// the others would, too, and are not made.
func carefully(run runner, n int, spans []span, f func(span, []error) error) []error {
	if len(spans) < 2 {
		return run(n, spans, f)
	}
	first := run(n, spans[:1], f)
	if first != nil && errors.Is(first[0], brokers.ErrMisconfigured) {
		for i := spans[1].from; i < n; i++ {
			first[i] = first[0]
		}
		return first
	}
	rest := run(n, spans[1:], f)
	switch {
	case first == nil:
		return rest
	case rest == nil:
		return first
	}
	copy(rest, first[:spans[0].to])
	return rest
}

// inParallel calls f for each of spans, a few at once, with the errors to set
// for its entries. It returns those of all n, or nil if there are none.
func (c *callers) inParallel(n int, spans []span, f func(span, []error) error) []error {
	errs := make([]error, n)
	var begun atomic.Int32
	c.each(min(len(spans), callsAtOnce), func(int) {
		for i := int(begun.Add(1)); i <= len(spans); i = int(begun.Add(1)) {
			attempt(spans[i-1], errs, f)
		}
	})
	return anyOf(errs)
}

// inOrder is inParallel with one call after the other.
func inOrder(n int, spans []span, f func(span, []error) error) []error {
	errs := make([]error, n)
	for _, s := range spans {
		attempt(s, errs, f)
	}
	return anyOf(errs)
}

// attempt calls f, and once more for each half if it fails as a whole for what
// may be the fault of one entry.
func attempt(s span, errs []error, f func(span, []error) error) {
	part := errs[s.from:s.to]
	err := f(s, part)
	if err == nil {
		return
	}
	if len(part) > 1 && (errors.Is(err, brokers.ErrRefused) || errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, errPastTotal)) {
		middle := (s.from + s.to) / 2
		attempt(span{s.from, middle}, errs, f)
		attempt(span{middle, s.to}, errs, f)
		return
	}
	for i := range part {
		part[i] = err
	}
}

func anyOf(errs []error) []error {
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}
