package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers/wire"
)

// sqsTap reads along what one process says to SQS, as wiretap does. What a call
// is for it learns from the context of the request.
type sqsTap struct {
	next   aws.HTTPClient
	trap   *trap
	polled func(id string, err error) // a poll has brought this message, or nobody knows what
	buried sync.Map                   // IDs of messages whose dead letter is confirmed, and whose ack comes next
}

// intent is what the worker wants with the calls of one settlement or publish.
type intent struct {
	buries, retries bool
	copied          atomic.Bool // the worker knows of a copy or dead letter, and is about to delete the original
}

type intentKey struct{}

const targetPrefix = "AmazonSQS."

// Do stops before the message is deleted that the worker knows to be copied, and
// after a confirm has come, before the worker sees it.
func (t *sqsTap) Do(req *http.Request) (*http.Response, error) {
	operation := strings.TrimPrefix(req.Header.Get("X-Amz-Target"), targetPrefix)
	in, _ := req.Context().Value(intentKey{}).(*intent)
	if operation == "DeleteMessageBatch" && in != nil && in.copied.Swap(false) {
		t.trap.reach(beforeAck)
	}
	resp, err := t.next.Do(req)
	if operation == "ReceiveMessage" {
		return t.receive(resp, err)
	}
	if err != nil || resp.StatusCode != http.StatusOK || in == nil {
		return resp, err
	}
	switch {
	case operation == "SendMessageBatch" && in.buries:
		t.trap.reach(inBurial)
	case operation == "SendMessageBatch" && in.retries:
		t.trap.reach(beforeConfirm)
		in.copied.Store(true)
	case operation == "ChangeMessageVisibilityBatch" && in.retries:
		t.trap.reach(beforeConfirm)
	}
	return resp, err
}

// receive notes what a poll has brought before the worker sees it.
func (t *sqsTap) receive(resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		t.polled("", err)
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
	switch {
	case err != nil:
		t.polled("", err)
	case resp.StatusCode != http.StatusOK:
		t.polled("", errors.New(resp.Status))
	default:
		ids, err := messageIDs(body)
		for _, id := range ids {
			t.polled(id, nil)
		}
		if err != nil {
			t.polled("", err)
		}
	}
	return resp, nil
}

// failing is the end of a body that was not read to its end, or the end.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// messageIDs finds the IDs in the answer to a poll.
func messageIDs(body []byte) (ids []string, err error) {
	var answer struct {
		Messages []struct {
			MessageAttributes map[string]struct{ StringValue string }
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	for _, m := range answer.Messages {
		h, err := wire.Unpack(m.MessageAttributes[wire.Packed].StringValue)
		if err != nil {
			return ids, err
		}
		ids = append(ids, h.Get("redrive-id"))
	}
	return ids, nil
}
