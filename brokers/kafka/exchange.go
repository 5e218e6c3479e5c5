package kafka

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const readCommitted = 1

// newFetch asks one broker for the records of partitions, and waits for the first
// one. Without a wait it returns at once.
func newFetch(wants []want, maxBytes int, wait time.Duration) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(wait.Milliseconds())
	req.MinBytes = 1
	if wait == 0 {
		req.MinBytes = 0
	}
	req.MaxBytes = int32(maxBytes)
	req.IsolationLevel = readCommitted
	req.SessionEpoch = noSession
	var topics byTopic[kmsg.FetchRequestTopic]
	for _, w := range wants {
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.FetchOffset, part.PartitionMaxBytes = int32(w.number), w.offset, int32(w.maxBytes)
		topic := topics.of(w.topic, kmsg.FetchRequestTopic{Topic: w.topic})
		topic.Partitions = append(topic.Partitions, part)
	}
	req.Topics = topics.list
	return req
}

// fetchAnswer is the answer to a fetch. Its records are in a buffer, which the last
// of its users gives back.
type fetchAnswer struct {
	*kmsg.FetchResponse
	buffer *bytes.Buffer
	users  atomic.Int32 // 0 if there is only one
}

// exchange sends a fetch to a node. When ctx ends, its answer still comes over the
// connection, which then serves others.
func (c *client) exchange(ctx context.Context, node int32, req *kmsg.FetchRequest) (*fetchAnswer, error) {
	wait := time.Duration(req.MaxWaitMillis) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, wait+c.options.CallTimeout)
	defer cancel()
	a := &fetchAnswer{buffer: buffers.get()}
	res, err := c.Ask(ctx, node, req, a.buffer)
	if err != nil {
		return nil, err // the call may still go on, and write into the buffer
	}
	a.FetchResponse = res.(*kmsg.FetchResponse)
	return a, nil
}

// release gives the buffer back: nothing of the answer may be used any more.
func (a *fetchAnswer) release() {
	if a.users.Add(-1) <= 0 && a.buffer != nil {
		buffers.put(a.buffer)
	}
}

// partition is what the answer says of the one that was asked for.
func (a *fetchAnswer) partition() (*kmsg.FetchResponseTopicPartition, error) {
	if len(a.Topics) == 0 || len(a.Topics[0].Partitions) == 0 {
		return nil, errors.Join(codeError(a.ErrorCode), errors.New("the answer is empty"))
	}
	p := &a.Topics[0].Partitions[0]
	return p, codeError(p.ErrorCode)
}
