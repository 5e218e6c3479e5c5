package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

const (
	// A batch of the writer has at most so many messages and bytes; what is
	// larger than half of it travels alone.
	batchMessages = 250
	batchBytes    = 1_000_000
	aloneBytes    = batchBytes / 2

	allReplicas = -1 // in sync

	byKey    = -1
	anywhere = -2

	// newcomerWait is how long publish waits at most for a topic that the cluster does
	// not know.
	newcomerWait = 5 * time.Second
)

// outgoing is a record to store in a topic.
type outgoing struct {
	topic     string
	partition int // this one, or byKey, or anywhere
	record    record
}

// producer stores records, with the confirmation of all replicas in sync. It
// has connections of its own.
type producer struct {
	client *client

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

func newProducer(o Options) *producer { return &producer{client: newClient(o)} }

// balance spreads records without a key, and puts those with one where the Java
// client does.
func balance(m kafka.Message, partitions ...int) int {
	if number, ok := m.WriterData.(int); ok {
		if number == anywhere {
			return partitions[rand.N(len(partitions))]
		}
		return number
	}
	return kafka.Murmur2Balancer{}.Balance(m, partitions...)
}

// produce stores out and returns one error per entry, or nil if all are
// confirmed. An entry that is brokers.ErrUnknownOutcome may be stored, now or
// later; any other failed one is not. The records must not be changed after.
func (p *producer) produce(ctx context.Context, out []outgoing) []error {
	errs := make([]error, len(out))
	if err := p.enter(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer p.calls.Done()
	topics := make(map[string][]int) // the library refuses a whole call for one topic that it does not know
	for i, o := range out {
		topics[o.topic] = append(topics[o.topic], i)
	}
	var wg sync.WaitGroup
	for topic, indexes := range topics {
		wg.Go(func() { p.produceTo(ctx, topic, out, indexes, errs) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			errs[i] = undelivered(err, out[i])
		}
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// publish is produce for topics that not every broker knows yet: it waits for a
// topic that was just created, up to newcomerWait and up to the timeout of one call.
// It returns one error per entry, or nil.
func (p *producer) publish(ctx context.Context, out []outgoing) []error {
	errs := p.produce(ctx, out)
	over := time.Now().Add(min(newcomerWait, p.client.options.CallTimeout))
	for pause := newcomerPause / 2; ; pause = min(2*pause, time.Second) {
		var missed []int
		for i, err := range errs {
			if is(err, kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition) {
				missed = append(missed, i)
			}
		}
		if len(missed) == 0 || time.Now().Add(pause).After(over) || !adapter.Rest(ctx, pause) {
			return errs
		}
		again := make([]outgoing, len(missed))
		for n, i := range missed {
			again[n] = out[i]
		}
		later := p.produce(ctx, again)
		for n, i := range missed {
			if errs[i] = nil; later != nil {
				errs[i] = later[n]
			}
		}
	}
}

func (p *producer) enter(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return brokers.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.calls.Add(1)
	return nil
}

func (p *producer) produceTo(ctx context.Context, topic string, out []outgoing, indexes []int, errs []error) {
	var batch []kafka.Message
	var batched, alone []int
	for _, i := range indexes {
		if out[i].record.size() > aloneBytes {
			alone = append(alone, i)
			continue
		}
		batch, batched = append(batch, message(out[i])), append(batched, i)
	}
	var each []error
	err := retry(ctx, func() (err error) {
		each, err = p.client.Write(ctx, batch)
		return err
	})
	for n, i := range batched {
		if errs[i] = err; err == nil {
			errs[i] = each[n]
		}
		if isUnfit(errs[i]) {
			alone = append(alone, i) // the topic's limit is for the batch, which was not compressed
		}
	}
	for _, i := range alone {
		errs[i] = p.produceAlone(ctx, out[i])
	}
}

// produceAlone stores one record in a batch of its own. It compresses the record
// only to fit the topic. The limit of a topic is for the batch as it is sent, so
// the copy of a compressed message may not fit otherwise. Gzip comes first, as
// every client reads it without another package. Zstd takes less room.
func (p *producer) produceAlone(ctx context.Context, o outgoing) (err error) {
	refused := math.MaxInt // bytes of the smallest batch that was refused
	for _, codec := range []compress.Compression{compress.None, compress.Gzip, compress.Zstd} {
		if codec == compress.None && o.record.size() > batchBytes {
			continue // most topics refuse it
		}
		batch := batchOf(o.record, codec, time.Now())
		if len(batch) >= refused {
			continue
		}
		if err = p.send(ctx, o, batch); !isOversize(err) {
			return err
		}
		refused = len(batch)
	}
	return &tooLargeError{batch: refused, err: err}
}

// send stores a batch with the record of o.
func (p *producer) send(ctx context.Context, o outgoing, batch []byte) error {
	return retry(ctx, func() error {
		leaders, err := p.client.Leaders(ctx, o.topic)
		if err != nil {
			return err
		}
		numbers := make([]int, len(leaders))
		for i := range numbers {
			numbers[i] = i
		}
		if len(numbers) == 0 {
			return p.client.Reread(ctx, o.topic, kafka.UnknownTopicOrPartition)
		}
		at := partition{o.topic, balance(message(o), numbers...)}
		node, err := leading(leaders, at)
		if err == nil {
			err = p.sendTo(ctx, node, at, batch)
		}
		return p.client.Reread(ctx, o.topic, err)
	})
}

func (p *producer) sendTo(ctx context.Context, node int32, to partition, batch []byte) error {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = allReplicas, int32(p.client.options.CallTimeout.Milliseconds())
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: to.topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: int32(to.number), Records: batch}}}}
	res, err := p.client.ask(ctx, node, req)
	if err != nil {
		return err
	}
	for _, topic := range res.(*kmsg.ProduceResponse).Topics {
		for _, one := range topic.Partitions {
			return codeError(one.ErrorCode)
		}
	}
	return kafka.NetworkException // which leaves open what became of it
}

// tooLargeError says how large a record is as the broker counts it.
type tooLargeError struct {
	batch int // bytes
	err   error
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%d bytes as a batch of its own, compressed if that helps: %v", e.batch, e.err)
}

func (e *tooLargeError) Unwrap() error { return e.err }

// batchOf is a batch of one record, in the format of Kafka since 0.11. It is
// compressed only if that makes it smaller.
func batchOf(r record, codec compress.Compression, made time.Time) []byte {
	one := protocol.Record{Time: made, Key: protocol.NewBytes(r.key), Value: protocol.NewBytes(r.value), Headers: r.headers}
	batch := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(one)}
	var out bytes.Buffer
	batch.WriteTo(&out) // a write to memory does not fail
	if codec != compress.None && out.Len()-batchSize > r.size() {
		return batchOf(r, compress.None, made)
	}
	return out.Bytes()[batchSize:]
}

// batchSize is the size of a batch in a request, which comes before it.
const batchSize = 4

func message(o outgoing) kafka.Message {
	m := kafka.Message{Topic: o.topic, Key: o.record.key, Value: o.record.value, Headers: o.record.headers}
	if o.partition != byKey {
		m.WriterData = o.partition
	}
	return m
}

// isUnfit reports whether a topic refuses a batch for its size or its records.
func isUnfit(err error) bool {
	return isOversize(err) || errors.Is(err, kafka.InvalidRecord)
}

// isOversize reports whether a topic refuses a batch for its size.
func isOversize(err error) bool {
	return errors.Is(err, kafka.MessageSizeTooLarge) || errors.Is(err, kafka.RecordListTooLarge)
}

// undelivered says what err means for a record.
func undelivered(err error, o outgoing) error {
	switch {
	case isUnfit(err):
		return fmt.Errorf("store %d bytes in topic %q: %w: max.message.bytes of the topic may be less, or it takes no records without a key (cleanup.policy=compact): %w",
			o.record.size(), o.topic, brokers.ErrRefused, err)
	case isUnknown(err):
		return fmt.Errorf("store a record in topic %q: %w: %w", o.topic, brokers.ErrUnknownOutcome, err)
	}
	return explain(err, "store a record in topic %q", o.topic)
}

// isUnknown reports whether a record may be stored although err came back.
func isUnknown(err error) bool {
	return cluster.IsEnded(err) || cluster.IsConnectionLost(err) || errors.Is(err, kafka.RequestTimedOut) ||
		errors.Is(err, kafka.NotEnoughReplicasAfterAppend) || errors.Is(err, kafka.NetworkException) || errors.Is(err, kafka.Unknown)
}

// close waits for what is on its way, until ctx ends: then it cuts the
// connections, and what is not confirmed stays unknown. It may be called again.
func (p *producer) close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends soon after the connections, at the latest
		p.calls.Wait()
		p.client.Close()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		p.client.Cut()
		return fmt.Errorf("close the producer: records are not confirmed, and may or may not be stored: %w", context.Cause(ctx))
	}
}
