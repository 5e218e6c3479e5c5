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

// batchSize is the most entries that SQS takes.
const batchSize = 10

// entryIDs name the entries of a batch.
var entryIDs = [batchSize]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

// remove deletes messages. It returns one error for each, as hide and send do.
func (c *client) remove(ctx context.Context, url string, entries []*entry) []error {
	return inBatches(ctx, c, removing, url, tens(entries), callsAtOnce, func(ctx context.Context, part []*entry, errs []error) error {
		in := &awssqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: make([]types.DeleteMessageBatchRequestEntry, len(part))}
		for i, e := range part {
			in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &e.record.handle}
		}
		out, err := c.settles.DeleteMessageBatch(ctx, in)
		if err == nil {
			note(errs, removing, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		}
		return err
	})
}

// hide changes visibility timeouts, with so many calls at once.
func (c *client) hide(ctx context.Context, url string, entries []*entry, atOnce int) []error {
	return inBatches(ctx, c, hiding, url, tens(entries), atOnce, func(ctx context.Context, part []*entry, errs []error) error {
		in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))}
		var options []func(*awssqs.Options)
		for i, e := range part {
			if e.seconds == 0 && options == nil {
				// Once it is visible, another worker may have it.
				options = append(options, func(o *awssqs.Options) { o.Retryer = cautious{o.Retryer.(aws.RetryerV2)} })
			}
			in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: &entryIDs[i], ReceiptHandle: &e.record.handle, VisibilityTimeout: e.seconds}
		}
		out, err := c.settles.ChangeMessageVisibilityBatch(ctx, in, options...)
		if err == nil {
			note(errs, hiding, url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		}
		return err
	})
}

// send stores messages, on FIFO queues in the order of out.
func (c *client) send(ctx context.Context, q *queue, out []outgoing) []error {
	return inBatches(ctx, c, sending, q.url, parcels(out), q.atOnce(), func(ctx context.Context, part []outgoing, errs []error) error {
		in := &awssqs.SendMessageBatchInput{QueueUrl: &q.url, Entries: make([]types.SendMessageBatchRequestEntry, len(part))}
		for i := range part {
			in.Entries[i] = part[i].entry
			in.Entries[i].Id = &entryIDs[i]
		}
		out, err := c.sends.SendMessageBatch(ctx, in)
		if err != nil {
			return err
		}
		note(errs, sending, q.url, out.Failed, len(out.Successful), func(i int) *string { return out.Successful[i].Id })
		for _, done := range out.Successful {
			if i := entryOf(done.Id, len(part)); i >= 0 && errs[i] == nil {
				errs[i] = verify(*in.Entries[i].MessageBody, done.MD5OfMessageBody, q.url)
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

// tens splits items into batches that SQS takes.
func tens[T any](items []T) [][]T { return slices.Collect(slices.Chunk(items, batchSize)) }

// parcels is tens of messages, which may not be too large together.
func parcels(out []outgoing) (parts [][]outgoing) {
	for len(out) > 0 {
		n, size := 1, out[0].size
		for n < min(len(out), batchSize) && size+out[n].size <= largest {
			size += out[n].size
			n++
		}
		parts, out = append(parts, out[:n]), out[n:]
	}
	return parts
}

// inBatches makes the calls of an operation, one for each part and so many at once.
// It returns one error for each item. Call sets those of its part, unless it fails as
// a whole. A queue that is not there, or not for us, gets one call to send and not one
// for each ten messages.
func inBatches[T any](ctx context.Context, c *client, o operation, url string, parts [][]T, atOnce int, call func(context.Context, []T, []error) error) []error {
	errs := make([][]error, len(parts))
	run := func(i int) {
		errs[i] = make([]error, len(parts[i]))
		attempt(parts[i], errs[i], func(part []T, errs []error) error {
			return c.call(ctx, o, queueName(url), c.timeout, func(ctx context.Context) error { return call(ctx, part, errs) })
		})
	}
	begun := 0
	if o == sending && len(parts) > 1 {
		begun = 1
		if run(0); errors.Is(errs[0][0], brokers.ErrMisconfigured) {
			run = func(i int) { errs[i] = slices.Repeat(errs[0][:1], len(parts[i])) }
		}
	}
	each(len(parts)-begun, atOnce, func(i int) { run(begun + i) })
	return slices.Concat(errs...)
}

// each calls f with every number below n, at most so many at once, and in order if
// that is one.
func each(n, atOnce int, f func(i int)) {
	if n <= 1 {
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
func attempt[T any](part []T, errs []error, f func([]T, []error) error) {
	err := f(part, errs)
	if err == nil {
		return
	}
	if len(part) > 1 && (errors.Is(err, brokers.ErrRefused) || errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, errPastTotal)) {
		middle := len(part) / 2
		attempt(part[:middle], errs[:middle], f)
		attempt(part[middle:], errs[middle:], f)
		return
	}
	for i := range part {
		errs[i] = err
	}
}
