package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// store has a producer send bodies as one compressed batch, to partition 0.
func (w *world) store(topic string, codec kafkago.Compression, bodies ...[]byte) {
	w.Helper()
	client := &kafkago.Client{Addr: kafkago.TCP(w.cluster.ListenAddrs()...)}
	records := make([]kafkago.Record, len(bodies))
	for i, body := range bodies {
		records[i].Value = kafkago.NewBytes(body)
	}
	res, err := client.Produce(w.Context(), &kafkago.ProduceRequest{
		Topic: topic, RequiredAcks: kafkago.RequireAll, Compression: codec, Records: kafkago.NewRecordReader(records...),
	})
	if err == nil {
		err = res.Error
	}
	must(w, err)
}

// deadLetters reads what is in a dead-letter topic, until there are n.
func (w *world) deadLetters(topic string, n int) (all []dlq.Entry) {
	w.Helper()
	b := w.broker(func(o *kafka.Options) { o.Group = "reader" })
	c, err := consumer.New(b, consumer.Config{DeadLetter: dlq.Discard})
	must(w, err)
	ctx, cancel := context.WithTimeout(w.Context(), limit)
	defer cancel()
	c.Handle(topic, func(_ context.Context, m *brokers.Message) error {
		e, err := dlq.Decode(*m)
		if err != nil {
			w.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if all = append(all, e); len(all) == n {
			cancel()
		}
		return nil
	})
	if err := c.Run(ctx); err != nil || len(all) != n {
		w.Fatalf("%d dead letters, want %d: %v\n%s", len(all), n, err, w.log())
	}
	return all
}

// With the defaults a bomb becomes one dead letter without a body, which says
// where it is, and all others are handled: those beside it, and of other
// partitions and topics.
func TestAttackBombBecomesADeadLetter(t *testing.T) {
	w := newWorld(t)
	w.create("orders")
	w.create("refunds")
	bomb := make([]byte, 10<<20)
	b := w.broker()
	w.store("orders", 0, []byte("before"))
	w.store("orders", kafkago.Gzip, bomb, bomb, bomb)
	w.store("orders", 0, []byte("behind"), []byte("retry behind"))
	w.publish(b, "orders", "a", "b", "c", "d", "retry e")
	w.publish(b, "refunds", "f")
	w.run(w.broker(), "orders", "refunds")
	innocents := []string{"before", "behind", "retry behind", "a", "b", "c", "d", "retry e", "f"}
	harmed := len(innocents)
	defer func() { t.Attr("innocents_harmed", strconv.Itoa(harmed)) }()
	for _, body := range innocents {
		w.until(body, func() bool { return w.succeeded(body) })
		harmed--
	}
	e := w.deadLetters("orders-dead", 1)[0]
	if e.Reason != "unreadable" || len(e.Message.Body) > 0 || e.Message.ID != "orders/0/1" || e.Meta.Origin.Get("last-offset") != "3" || e.Meta.Origin.Get("codec") != "gzip" {
		t.Errorf("%+v", e)
	}
	if !strings.Contains(e.ErrorText, "kafka-console-consumer.sh --topic orders --partition 0 --offset 1 --max-messages 3") {
		t.Errorf("the dead letter does not say how to read it: %q", e.ErrorText)
	}
}

// A message that its producer compressed to fit its topic fits the topics for
// copies, also those of the same limit, and says so where others do not.
func TestAttackCompressedMessageEnds(t *testing.T) {
	w := newWorld(t)
	w.create("orders")
	w.create("orders-dead")
	body := []byte("dead " + strings.Repeat("0", 3<<20))
	again := []byte("retry " + strings.Repeat("1", 3<<20))
	w.store("orders", kafkago.Zstd, body, again)
	w.run(w.broker(), "orders")
	w.until("the retry", func() bool { return w.succeeded(string(again)) })
	if e := w.deadLetters("orders-dead", 1)[0]; e.Reason != "poison" || string(e.Message.Body) != string(body) {
		t.Errorf("%s, with a body of %d bytes", e.Reason, len(e.Message.Body))
	}
	if text := w.log(); !strings.Contains(text, "orders-dead") || !strings.Contains(text, "leaves no room") || !strings.Contains(text, fmt.Sprint(1_048_588+64<<10)) {
		t.Errorf("nothing says that the dead-letter topic is too small:\n%s", text)
	}
}
