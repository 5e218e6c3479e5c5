package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

func benchURL(b *testing.B) string { return livetest.Address(b, "REDRIVE_RABBITMQ4_URL") }

func message(n int) brokers.Message { return brokers.Message{Body: fmt.Appendf(nil, "%0256d", n)} }

// fill publishes n messages to a fresh queue, which a source is opened on and
// closed again for.
func fill(b *testing.B, broker *rabbitmq.Broker, topic string, n int) {
	msgs := make([]brokers.Message, n)
	for i := range msgs {
		msgs[i] = message(i)
	}
	if err := broker.Publish(b.Context(), topic, msgs...); err != nil {
		b.Fatal(err)
	}
}

func benchTopic(b *testing.B, url string) string {
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	topic := fmt.Sprintf("bench.%d", time.Now().UnixNano())
	b.Cleanup(func() {
		ch, err := conn.Channel()
		if err == nil {
			ch.QueueDelete(topic, false, false, false)
			ch.QueueDelete("redrive.retry.v1."+topic, false, false, false)
		}
		conn.Close()
	})
	return topic
}

func BenchmarkPublish(b *testing.B) {
	url := benchURL(b)
	topic := benchTopic(b, url)
	broker := open(b, rabbitmq.Options{URLs: []string{url}})
	src := subscribe(b, broker, topic, 200)
	src.Close(b.Context())
	b.ResetTimer()
	fill(b, broker, topic, b.N)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func subscribe(b *testing.B, broker *rabbitmq.Broker, topic string, inFlight int) brokers.Source {
	src, err := broker.Open(b.Context(), brokers.Subscription{Topics: []string{topic}, InFlight: inFlight, MaxDelay: 15 * time.Minute, MaxAttempts: 10})
	if err != nil {
		b.Fatal(err)
	}
	return src
}

// BenchmarkReceiveAck receives and acks, which is what the raw loop is
// compared with.
func BenchmarkReceiveAck(b *testing.B) {
	url := benchURL(b)
	topic := benchTopic(b, url)
	broker := open(b, rabbitmq.Options{URLs: []string{url}})
	subscribe(b, broker, topic, 1).Close(b.Context())
	fill(b, broker, topic, b.N)
	b.ResetTimer()
	src := subscribe(b, broker, topic, 300)
	for done := 0; done < b.N; {
		ds, err := src.Receive(b.Context(), 100)
		if err != nil {
			b.Fatal(err)
		}
		batch := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			batch[i].Delivery = d
		}
		if errs := src.Settle(b.Context(), batch); errs != nil {
			b.Fatal(errs)
		}
		done += len(ds)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkRawLoop consumes with the library alone: prefetch 300, one ack for
// a hundred.
func BenchmarkRawLoop(b *testing.B) {
	url := benchURL(b)
	topic := benchTopic(b, url)
	broker := open(b, rabbitmq.Options{URLs: []string{url}})
	subscribe(b, broker, topic, 1).Close(b.Context())
	fill(b, broker, topic, b.N)
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	if err := ch.Qos(300, 0, false); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	ds, err := ch.Consume(topic, "", false, false, false, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	for done := 1; done <= b.N; done++ {
		d := <-ds
		if done%100 == 0 || done == b.N {
			if err := d.Ack(true); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkRetry settles as retries, 64 at a time.
func BenchmarkRetry(b *testing.B) {
	url := benchURL(b)
	topic := benchTopic(b, url)
	broker := open(b, rabbitmq.Options{URLs: []string{url}})
	src := subscribe(b, broker, topic, 1000)
	fill(b, broker, topic, b.N)
	b.ResetTimer()
	for done := 0; done < b.N; {
		ds, err := src.Receive(b.Context(), 500)
		if err != nil {
			b.Fatal(err)
		}
		batch := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			batch[i] = brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Hour / 6, Meta: d.Meta}
		}
		if errs := src.Settle(b.Context(), batch); errs != nil {
			b.Fatal(errs)
		}
		done += len(ds)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
