// Joins measures what it costs a Kafka group that workers join and leave it,
// with one membership for all topics of a worker and with one for each topic.
// Workers read a steady stream; for each change of the group it prints for how
// long a topic stood still at most.
//
//	go run ./bench/cmd/joins -brokers localhost:9092 -topics 20 -workers 3
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// trial is one measurement.
type trial struct {
	addresses  []string
	topics     []string
	partitions int
	workers    int
	group      string
}

func main() {
	addresses := flag.String("brokers", "localhost:9092", "addresses of Kafka brokers, with commas")
	topics := flag.Int("topics", 20, "topics that each worker reads")
	partitions := flag.Int("partitions", 3, "of each topic")
	workers := flag.Int("workers", 3, "workers that join one after the other, and leave")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tag := "joins-" + strings.ToLower(rand.Text()[:8])
	t := trial{addresses: strings.Split(*addresses, ","), partitions: *partitions, workers: *workers}
	for i := range *topics {
		t.topics = append(t.topics, fmt.Sprintf("%s-%d", tag, i))
	}
	if err := t.run(ctx, os.Stdout, tag); err != nil {
		log.Fatal(err)
	}
}

func (t trial) run(ctx context.Context, out io.Writer, tag string) (err error) {
	admin := &kafkago.Client{Addr: kafkago.TCP(t.addresses...), Timeout: 30 * time.Second}
	var configs []kafkago.TopicConfig
	for _, topic := range t.topics {
		configs = append(configs, kafkago.TopicConfig{Topic: topic, NumPartitions: t.partitions, ReplicationFactor: -1})
	}
	created, err := admin.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: configs})
	if err != nil {
		return err
	}
	for _, e := range created.Errors {
		err = errors.Join(err, e)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, e := admin.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: t.topics})
		err = errors.Join(err, e)
	}()
	if err != nil {
		return err
	}
	wait(ctx, steady) // until the brokers know their new topics
	for _, memberships := range []struct {
		name   string
		topics [][]string
	}{
		{"one", [][]string{t.topics}},
		{"each", split(t.topics)},
	} {
		t.group = tag + "-" + memberships.name
		if err := t.measure(ctx, out, memberships.name, memberships.topics); err != nil {
			return err
		}
	}
	return nil
}

func split(topics []string) (each [][]string) {
	for _, topic := range topics {
		each = append(each, []string{topic})
	}
	return each
}

// clock knows when a message of each topic was last received.
type clock struct {
	mu   sync.Mutex
	last map[string]time.Time
	most time.Duration // between two of one topic
}

func (c *clock) tick(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if last, ok := c.last[topic]; ok {
		c.most = max(c.most, now.Sub(last))
	}
	c.last[topic] = now
}

// pause returns the longest pause of a topic since the last call, one that
// still lasts included.
func (c *clock) pause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, last := range c.last {
		c.most = max(c.most, now.Sub(last))
	}
	most := c.most
	c.most = 0
	return most
}

const (
	steady = 5 * time.Second // without a change, and after one
	pace   = 50 * time.Millisecond
)

// measure lets workers join and leave that have a membership for each of
// subscriptions.
func (t trial) measure(ctx context.Context, out io.Writer, name string, subscriptions [][]string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &clock{last: make(map[string]time.Time)}
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { t.produce(ctx) })
	var workers []*worker
	for n := range t.workers {
		began := time.Now()
		w, err := t.start(ctx, subscriptions, c)
		if err != nil {
			return err
		}
		workers = append(workers, w)
		opened := time.Since(began)
		if n == 0 {
			wait(ctx, 2*steady)
			c.pause()
			wait(ctx, steady)
			fmt.Fprintf(out, "%-5s steady         pause %v\n", name, c.pause().Round(time.Millisecond))
			continue
		}
		wait(ctx, steady)
		fmt.Fprintf(out, "%-5s worker %d joins pause %v, opened in %v\n", name, n+1, c.pause().Round(time.Millisecond), opened.Round(time.Millisecond))
	}
	for n, w := range workers {
		if n == len(workers)-1 {
			break
		}
		if err := w.close(ctx); err != nil {
			return err
		}
		wait(ctx, steady)
		fmt.Fprintf(out, "%-5s worker %d leaves pause %v\n", name, n+1, c.pause().Round(time.Millisecond))
	}
	stop()
	return workers[len(workers)-1].close(context.WithoutCancel(ctx))
}

// produce writes to all topics at a steady pace.
func (t trial) produce(ctx context.Context) {
	b, err := kafka.New(kafka.Options{Brokers: t.addresses})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	defer work.Wait()
	for _, topic := range t.topics {
		work.Go(func() {
			for ctx.Err() == nil {
				if err := b.Publish(ctx, topic, brokers.Message{}); err != nil && ctx.Err() == nil {
					log.Print(err)
				}
				wait(ctx, pace)
			}
		})
	}
}

// worker has one source or more, and acks what it receives.
type worker struct {
	broker *kafka.Broker
	work   sync.WaitGroup
	stop   context.CancelFunc
}

func (t trial) start(ctx context.Context, subscriptions [][]string, c *clock) (*worker, error) {
	w := &worker{}
	var err error
	if w.broker, err = kafka.New(kafka.Options{Brokers: t.addresses, Group: t.group}); err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	for _, topics := range subscriptions {
		source, err := w.broker.Open(ctx, brokers.Subscription{Topics: topics, InFlight: 100, MaxDelay: time.Minute, MaxAttempts: 10})
		if err != nil {
			return nil, errors.Join(err, w.close(ctx))
		}
		w.work.Go(func() {
			for ctx.Err() == nil {
				ds, err := source.Receive(ctx, 100)
				if err != nil && ctx.Err() == nil {
					log.Print(err)
					wait(ctx, pace)
				}
				for _, d := range ds {
					c.tick(d.Message.Topic)
					source.Settle(ctx, []brokers.Settlement{{Delivery: d}})
				}
			}
		})
	}
	return w, nil
}

func (w *worker) close(ctx context.Context) error {
	w.stop()
	w.work.Wait()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return w.broker.Close(ctx)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
