package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
)

func TestCommit(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		group := uniqueName("group")
		p, q := partition{topic, 0}, partition{topic, 7}
		none, err := c.committed(withinTime(t), group, []partition{p})
		if err != nil || none[p] != (commitment{offset: -1}) {
			t.Fatalf("committed before: %+v, %v", none, err)
		}
		text := strings.Repeat("m", 4000)
		failed, err := c.commit(withinTime(t), group, -1, "", map[partition]commitment{p: {17, text}, q: {1, ""}})
		if err != nil || len(failed) != 1 || !errors.Is(failed[q], kafka.UnknownTopicOrPartition) || !errors.Is(failed[q], brokers.ErrMisconfigured) {
			t.Errorf("commit with an unknown partition: %v, %v", failed, err)
		}
		failed, err = c.commit(withinTime(t), group, -1, "", map[partition]commitment{p: {18, text + strings.Repeat("m", 97)}})
		if err != nil || !errors.Is(failed[p], kafka.OffsetMetadataTooLarge) {
			t.Errorf("commit of 4097 characters: %v, %v", failed, err)
		}
		failed, err = c.commit(withinTime(t), group, -1, "", map[partition]commitment{p: {18, strings.Repeat("m", 40_000)}, {topic, 8}: {1, ""}})
		if err != nil || len(failed) != 2 || !errors.Is(failed[p], kafka.OffsetMetadataTooLarge) {
			t.Errorf("commit of 40000 characters: %v, %v", failed, err)
		}
		failed, err = c.commit(withinTime(t), group, 3, "somebody", map[partition]commitment{p: {19, ""}})
		if err != nil || !errors.Is(failed[p], brokers.ErrLeaseLost) {
			t.Errorf("commit of a generation that never was: %v, %v", failed, err)
		}
		got, err := c.committed(withinTime(t), group, []partition{p, q})
		if err != nil || got[p] != (commitment{17, text}) || got[q].offset != -1 {
			t.Errorf("committed: %.60v, %v", got, err)
		}
	})
}

// TestCommitOfGenerations commits in the name of generations that live, and of
// one that has ended.
func TestCommitOfGenerations(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		group, p := uniqueName("group"), partition{topic, 0}
		join := func() *kafka.ConsumerGroup {
			g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
				ID: group, Brokers: c.options.brokers, Dialer: c.dialer(), Topics: []string{topic},
				HeartbeatInterval: 100 * time.Millisecond, JoinGroupBackoff: 100 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		next := func(g *kafka.ConsumerGroup) *kafka.Generation {
			for {
				generation, err := g.Next(withinTime(t))
				if err == nil {
					return generation
				}
				if withinTime(t).Err() != nil {
					t.Fatal(err)
				}
			}
		}
		one := join()
		defer one.Close()
		old := next(one)
		commit := func(g *kafka.Generation, member string, offset int64) error {
			failed, err := c.commit(withinTime(t), group, g.ID, member, map[partition]commitment{p: {offset, "text"}})
			return errors.Join(err, failed[p])
		}
		if err := commit(old, old.MemberID, 5); err != nil {
			t.Fatalf("commit of the generation: %v", err)
		}
		two := join()
		defer two.Close()
		joined := make(chan *kafka.Generation, 1)
		go func() { joined <- next(two) }()
		now := next(one)
		<-joined
		if err := commit(old, old.MemberID, 1); !errors.Is(err, brokers.ErrLeaseLost) {
			t.Errorf("commit of the generation before: %v", err)
		}
		if err := commit(now, now.MemberID, 6); err != nil {
			t.Errorf("commit of the generation: %v", err)
		}
		if err := commit(now, "nobody", 1); !errors.Is(err, brokers.ErrLeaseLost) {
			t.Errorf("commit of a stranger: %v", err)
		}
		if got, err := c.committed(withinTime(t), group, []partition{p}); err != nil || got[p] != (commitment{6, "text"}) {
			t.Errorf("committed: %+v, %v", got, err)
		}
	})
}

func TestConfigs(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		other := uniqueName("configured")
		if err := c.create(withinTime(t), other, 0, 0, map[string]string{"retention.ms": "7200000", "cleanup.policy": "delete"}); err != nil {
			t.Fatal(err)
		}
		defer drop(t, c, other)
		got, err := c.configs(withinTime(t), topic, other)
		if err != nil {
			t.Fatal(err)
		}
		if got[other]["retention.ms"] != "7200000" || got[topic]["retention.bytes"] != "-1" || got[topic]["max.message.bytes"] == "" {
			t.Errorf("configs of %s: %v", other, got[other])
		}
		if _, err := c.configs(withinTime(t), "nobody-made-this"); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("configs of a missing topic: %v", err)
		}
		for name, err := range map[string]error{
			"invalid name":   c.create(withinTime(t), "a b", 1, 1, nil),
			"invalid config": c.create(withinTime(t), uniqueName("x"), 1, 1, map[string]string{"cleanup.policy": "eat"}),
			"replicas":       c.create(withinTime(t), uniqueName("x"), 1, 99, nil),
		} {
			if !errors.Is(err, brokers.ErrMisconfigured) && (name == "replicas" || !onFake()) {
				t.Errorf("create with %s: %v", name, err)
			}
		}
	})
}

func TestProduceKeepsRecords(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		records := []record{
			{},
			{key: []byte{}, value: []byte{}},
			{key: []byte("k"), value: nil},
			{key: []byte{0xff, 0}, value: []byte{0, 1, 2}, headers: []kafka.Header{
				{Key: "a", Value: []byte("1")}, {Key: "b", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte{0xff}}, {Key: "a", Value: []byte("1")},
			}},
			{value: bytes.Repeat([]byte("l"), 1_048_516)}, // the largest that there is
		}
		pr := newProducer(c.options)
		defer pr.close(t.Context())
		for _, r := range records {
			if errs := pr.produce(withinTime(t), []outgoing{{topic: topic, partition: byKey, record: r}}); errs != nil {
				t.Fatal(errs)
			}
		}
		got, _, _ := drain(t, c, partition{topic, 0}, 0)
		if len(got) != len(records) {
			t.Fatalf("%d records, want %d", len(got), len(records))
		}
		for i, r := range got {
			if d := time.Since(r.time); d < -time.Second || d > time.Minute {
				t.Errorf("record %d was stored %v ago by its time, from which retention counts", i, d)
			}
			r.offset, r.time = 0, time.Time{}
			if !reflect.DeepEqual(*r, records[i]) {
				t.Errorf("record %d\n got %.200s\nwant %.200s", i, fmt.Sprint(*r), fmt.Sprint(records[i]))
			}
		}
		if size := records[4].size(); size != 1_048_588 {
			t.Errorf("the size of the largest record is %d, and the broker takes 1048588", size)
		}
	})
}

func TestProduceErrorsPerRecord(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		small := uniqueName("small")
		if err := c.create(withinTime(t), small, 1, 1, map[string]string{"max.message.bytes": "2000"}); err != nil {
			t.Fatal(err)
		}
		defer drop(t, c, small)
		pr := newProducer(c.options)
		defer pr.close(t.Context())
		of := func(topic string, n int) outgoing {
			return outgoing{topic: topic, partition: byKey, record: record{value: make([]byte, n)}}
		}
		out := []outgoing{
			of(topic, 10), of("nobody-made-this", 10), of(small, 1500), of(small, 3000), of(small, 1500), of(topic, 2_000_000), of("a b", 1), of(topic, 10),
		}
		errs := pr.produce(withinTime(t), out)
		want := []error{nil, brokers.ErrMisconfigured, nil, brokers.ErrRefused, nil, brokers.ErrRefused, brokers.ErrMisconfigured, nil}
		if len(errs) != len(want) {
			t.Fatalf("%d errors: %v", len(errs), errs)
		}
		for i, err := range errs {
			if !errors.Is(err, want[i]) && !(out[i].topic == "a b" && onFake()) {
				t.Errorf("record %d: %v, want %v", i, err, want[i])
			}
		}
		if got, _, _ := drain(t, c, partition{small, 0}, 0); len(got) != 2 {
			t.Errorf("%d records in the topic that takes small ones, want 2", len(got))
		}
		if got, _, _ := drain(t, c, partition{topic, 0}, 0); len(got) != 2 {
			t.Errorf("%d records in the other topic, want 2", len(got))
		}
	})
}

func TestConnectionsLost(t *testing.T) {
	live(t, func(t *testing.T, plain *client, topic string) {
		cut := newNetwork()
		o := plain.options
		o.dial = cut.dial
		c, pr := newClient(o), newProducer(o)
		defer c.close()
		p := partition{topic, 0}
		one := []outgoing{{topic: topic, partition: byKey, record: record{value: []byte("x")}}}
		steps := map[string]func() error{
			"fetch":  func() error { _, err := c.fetch(withinTime(t), p, 0, 1000, 0); return err },
			"bounds": func() error { _, err := c.bounds(withinTime(t), []partition{p}); return err },
			"commit": func() error {
				_, err := c.commit(withinTime(t), topic, -1, "", map[partition]commitment{p: {}})
				return err
			},
			"committed": func() error { _, err := c.committed(withinTime(t), topic, []partition{p}); return err },
			"topics":    func() error { _, err := c.topics(withinTime(t), topic); return err },
			"configs":   func() error { _, err := c.configs(withinTime(t), topic); return err },
			"produce":   func() error { return errors.Join(pr.produce(withinTime(t), one)...) },
		}
		for round := range 3 {
			for name, step := range steps {
				if err := step(); err != nil {
					t.Errorf("round %d, %s after all connections were lost: %v", round, name, err)
				}
				cut.sever()
			}
		}
		if err := pr.close(withinTime(t)); err != nil {
			t.Error(err)
		}
		c.close()
		for range 100 {
			if cut.open() == 0 {
				break
			}
			pause(10 * time.Millisecond)
		}
		if n := cut.open(); n != 0 {
			t.Errorf("%d connections are open after close", n)
		}
	})
}

func TestFrozenBroker(t *testing.T) { // not at the same time as others
	liveAlone(t, func(t *testing.T, plain *client, topic string) {
		cut := newNetwork()
		o := plain.options
		o.dial, o.timeout = cut.dial, time.Hour // contexts end calls, and nothing else
		c, pr := newClient(o), newProducer(o)
		one := []outgoing{{topic: topic, partition: byKey, record: record{value: []byte("x")}}}
		if errs := pr.produce(withinTime(t), one); errs != nil {
			t.Fatal(errs)
		}
		mustFetch(t, c, partition{topic, 0}, 0, 1000, 0)
		cut.freeze()
		defer cut.thaw()
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if errs := pr.produce(short, one); errs == nil || !errors.Is(errs[0], brokers.ErrUnknownOutcome) {
			t.Errorf("produce to a frozen broker: %v", errs)
		}
		if _, err := c.fetch(short, partition{topic, 0}, 0, 1000, 0); err == nil {
			t.Error("fetch from a frozen broker went well")
		}
		short2, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := pr.close(short2); err == nil {
			t.Error("close with a record unconfirmed says nothing")
		}
		c.close()
		if d := time.Since(start); d > patience {
			t.Errorf("produce, fetch and close took %v", d)
		}
		if _, err := c.fetch(t.Context(), partition{topic, 0}, 0, 1000, 0); !errors.Is(err, brokers.ErrClosed) {
			t.Errorf("fetch after close: %v", err)
		}
		if errs := pr.produce(t.Context(), one); !errors.Is(errs[0], brokers.ErrClosed) {
			t.Errorf("produce after close: %v", errs)
		}
		plain.close()
		noLeftovers(t)
	})
}

func TestCancelledFetchesShareConnections(t *testing.T) {
	live(t, func(t *testing.T, plain *client, topic string) {
		cut := newNetwork()
		o := plain.options
		o.dial = cut.dial
		c := newClient(o)
		defer c.close()
		for { // a fresh topic may have no leader yet
			if _, err := c.fetch(t.Context(), partition{topic, 0}, 0, 1000, time.Millisecond); !errors.Is(err, kafka.NotLeaderForPartition) {
				break
			}
		}
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(5*time.Millisecond, cancel)
			got, err := c.fetch(ctx, partition{topic, 0}, 0, 1000, 100*time.Millisecond)
			if err != nil || got.next != 0 {
				t.Errorf("a cancelled fetch: %+v, %v", got, err)
			}
			stop.Stop()
			cancel()
		}
		if n := cut.dialed(); n > 3 {
			t.Errorf("%d connections for 10 cancelled fetches", n)
		}
	})
}
