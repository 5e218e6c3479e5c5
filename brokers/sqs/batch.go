package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers"
)

const (
	batchSize = 10 // entries, the most of SQS

	// callsAtOnce is how many calls one settlement, publish or survey has open: as
	// many as polls are by default, which bring what is settled.
	callsAtOnce = 32
)

// entryIDs name the entries of a batch.
var entryIDs = [batchSize]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

// span is a part of what a call was given: from, and up to but not including to.
type span struct{ from, to int }

// remove deletes messages. It returns one error per handle, or nil when all
// went well, as hide, hideInOrder and send do.
func (c *client) remove(ctx context.Context, url string, handles []string) []error {
	return c.inBatches(ctx, removing, url, tens(len(handles)), callsAtOnce, func(ctx context.Context, s span, errs []error) error {
		in := &awssqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: make([]types.DeleteMessageBatchRequestEntry, len(errs))}
		for i := range in.Entries {
			in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &handles[s.from+i]}
		}
		out, err := c.settles.DeleteMessageBatch(ctx, in)
		if err == nil {
			note(errs, removing, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		}
		return err
	})
}

// hide changes visibility timeouts.
func (c *client) hide(ctx context.Context, url string, changes []change) []error {
	return c.hideAtOnce(ctx, url, changes, callsAtOnce)
}

// hideInOrder is hide with one call at a time, in the order of changes.
func (c *client) hideInOrder(ctx context.Context, url string, changes []change) []error {
	return c.hideAtOnce(ctx, url, changes, 1)
}

func (c *client) hideAtOnce(ctx context.Context, url string, changes []change, atOnce int) []error {
	return c.inBatches(ctx, hiding, url, tens(len(changes)), atOnce, func(ctx context.Context, s span, errs []error) error {
		in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, len(errs))}
		var options []func(*awssqs.Options)
		for i := range in.Entries {
			one := &changes[s.from+i]
			if one.seconds == 0 && options == nil {
				// Once it is visible, another worker may have it.
				options = append(options, func(o *awssqs.Options) { o.Retryer = cautious{o.Retryer.(aws.RetryerV2)} })
			}
			in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &one.handle, VisibilityTimeout: one.seconds}
		}
		out, err := c.settles.ChangeMessageVisibilityBatch(ctx, in, options...)
		if err == nil {
			note(errs, hiding, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		}
		return err
	})
}

// send stores messages, on FIFO queues in the order of out.
func (c *client) send(ctx context.Context, url string, out []outgoing) []error {
	atOnce := callsAtOnce
	if len(out) > 0 && out[0].entry.MessageDeduplicationId != nil {
		atOnce = 1
	}
	return c.inBatches(ctx, sending, url, parcels(len(out), func(i int) int { return out[i].size }), atOnce, func(ctx context.Context, s span, errs []error) error {
		in := &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: make([]types.SendMessageBatchRequestEntry, len(errs))}
		for i := range in.Entries {
			in.Entries[i] = out[s.from+i].entry
			in.Entries[i].Id = &entryIDs[i]
		}
		out, err := c.sends.SendMessageBatch(ctx, in)
		if err != nil {
			return err
		}
		note(errs, sending, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		for _, done := range out.Successful {
			if i := entryOf(done.Id, len(errs)); i >= 0 && errs[i] == nil {
				errs[i] = verify(*in.Entries[i].MessageBody, done.MD5OfMessageBody, url)
			}
		}
		return nil
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
func tens(n int) []span { return parcels(n, func(int) int { return 0 }) }

// parcels splits n messages of some size into batches that SQS takes.
func parcels(n int, sizeOf func(i int) int) (spans []span) {
	from, size := 0, 0
	for i := range n {
		if i-from == batchSize || i > from && size+sizeOf(i) > largest {
			spans = append(spans, span{from, i})
			from, size = i, 0
		}
		size += sizeOf(i)
	}
	if n > from {
		spans = append(spans, span{from, n})
	}
	return spans
}

// inBatches makes the calls of an operation for spans of entries, so many at once.
// It returns one error for each entry, or nil when all went well. Call sets those of
// its entries, unless it fails as a whole. A queue that is not there, or not for us,
// gets one call to send and not one for each ten messages.
func (c *client) inBatches(ctx context.Context, o operation, url string, spans []span, atOnce int, call func(context.Context, span, []error) error) []error {
	if len(spans) == 0 {
		return nil
	}
	errs := make([]error, spans[len(spans)-1].to)
	run := func(i int) {
		attempt(spans[i], errs, func(s span, errs []error) error {
			return c.call(ctx, o, queueName(url), c.timeout, func(ctx context.Context) error { return call(ctx, s, errs) })
		})
	}
	if o == sending && len(spans) > 1 {
		run(0)
		if spans = spans[1:]; errors.Is(errs[0], brokers.ErrMisconfigured) {
			return slices.Repeat(errs[:1], len(errs))
		}
	}
	each(len(spans), atOnce, run)
	return anyOf(errs)
}

// each calls f with every number below n, at most so many at once, and in order if
// that is one.
func each(n, atOnce int, f func(i int)) {
	if n <= 1 || atOnce == 1 {
		for i := range n {
			f(i)
		}
		return
	}
	slots := make(chan struct{}, atOnce)
	var work sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		work.Go(func() {
			f(i)
			<-slots
		})
	}
	work.Wait()
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
