package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/handling"
)

// Handler does the work of one message. Nil means done; any other error is
// classified (see classify.Of) and leads to a retry or a dead letter. Wrap the
// error in classify.Permanent, classify.RetryAfter, classify.Transient or
// classify.Skip to say what you know about it.
//
// The context ends when the time is up, the lease is lost or the worker must
// stop; context.Cause tells which. The message is the handler's to read, not
// to change. Handlers may panic: it counts as a failure, with the stack.
type Handler func(ctx context.Context, m *brokers.Message) error

// BatchHandler does the work of several messages of one topic at once and
// returns one result per message, in their order; nil means that all are
// done. Results of another length fail the whole batch.
type BatchHandler func(ctx context.Context, batch []brokers.Item) []error

// JSON adapts a function of T to a Handler. A body that is not one JSON value
// for T is poison: the message is dead-lettered at once, its bytes unchanged.
// Unknown object fields are ignored.
func JSON[T any](fn func(ctx context.Context, value T) error) Handler {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, m *brokers.Message) error {
		var value T
		if err := decodeJSON(m.Body, &value); err != nil {
			return classify.Undecodable(fmt.Errorf("decode the body as JSON for %s: %w", reflect.TypeFor[T](), err))
		}
		return fn(ctx, value)
	}
}

func decodeJSON(body []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(into); err != nil {
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("more data after the value, at byte %d", decoder.InputOffset())
	}
	return nil
}

// MessageFrom returns the message that the handler with this context works
// on, nil outside a handler and in one of batches.
func MessageFrom(ctx context.Context) *brokers.Message {
	if a := attemptFrom(ctx); a != nil && !a.isBatch() {
		return &a.message
	}
	return nil
}

// MetaFrom returns what the pipeline knows about the message: Attempt is the
// number of this run, counted from 1, and IdempotencyKey is always set. It is
// the zero value outside a handler and in one of batches: see [BatchHandler].
func MetaFrom(ctx context.Context) brokers.Meta {
	if a := attemptFrom(ctx); a != nil && !a.isBatch() {
		return a.runs()[0].metaOfRun()
	}
	return brokers.Meta{}
}

func attemptFrom(ctx context.Context) *attempt {
	a, _ := ctx.Value(handling.Key{}).(*attempt)
	return a
}
