package kafka

import (
	"fmt"
	"sync"
	"testing"

	"github.com/redrive-go/redrive/integration/livetest"
)

// The rates of single calls on a real broker, with records of 256 bytes on a
// topic of four partitions: what a source can reach at most.

const (
	rateBody       = 256
	ratePartitions = 4
)

func rateTopic(b *testing.B) (*client, *producer, string) {
	b.Helper()
	o := clientOptions{brokers: []string{livetest.Address(b, "REDRIVE_KAFKA_URL")}}
	c, p, topic := newClient(o), newProducer(o), uniqueName("rates")
	if err := c.create(b.Context(), topic, ratePartitions, 1, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.close)
	return c, p, topic
}

func storeMany(b *testing.B, p *producer, topic string, n, together, writers int) {
	b.Helper()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			body := make([]byte, rateBody)
			for done := 0; done < n/writers; {
				out := make([]outgoing, min(together, n/writers-done))
				for i := range out {
					out[i] = outgoing{topic: topic, partition: byKey, record: record{key: fmt.Append(nil, w, done+i), value: body}}
				}
				if errs := p.produce(b.Context(), out); errs != nil {
					b.Error(errs[0])
					return
				}
				done += len(out)
			}
		})
	}
	wg.Wait()
}

func BenchmarkProduce(b *testing.B) {
	for _, shape := range []struct{ together, writers int }{{1, 1}, {1, 100}, {100, 1}, {1000, 1}, {4000, 1}, {4000, 4}} {
		b.Run(fmt.Sprintf("together=%d/writers=%d", shape.together, shape.writers), func(b *testing.B) {
			_, p, topic := rateTopic(b)
			storeMany(b, p, topic, shape.together*shape.writers, shape.together, shape.writers)
			b.ReportAllocs()
			b.ResetTimer()
			storeMany(b, p, topic, b.N, shape.together, shape.writers)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.StopTimer()
			if err := p.close(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	for _, maxBytes := range []int{1 << 20, 10 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", maxBytes), func(b *testing.B) {
			c, p, topic := rateTopic(b)
			storeMany(b, p, topic, b.N, 4000, 2)
			p.close(b.Context())
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for n := range ratePartitions {
				wg.Go(func() {
					for next := int64(0); ; {
						got, err := c.fetch(b.Context(), partition{topic, n}, next, maxBytes, 0)
						if err != nil {
							b.Error(err)
							return
						}
						if got.next == next {
							return
						}
						next = got.next
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
