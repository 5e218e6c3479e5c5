package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// The metadata of a commit cannot hold what is settled here, and done records
// do.
func TestDoneRecordsOutliveACrash(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		p := partition{s.delayTopic(), 0}
		const messages = 30_000
		w := s.open()
		var records []record
		for i := range messages {
			records = append(records, copied(brokers.Message{ID: fmt.Sprint(i), Topic: s.topic, Body: fmt.Append(nil, i)}, brokers.Meta{Attempt: 1, DueAt: time.Now()}))
		}
		for part := range slices.Chunk(records, 5000) {
			s.store(p, 0, part...)
		}
		ds, _ := w.receive(messages)
		settled := slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool { return number(d)%1000 == 0 || (number(d)*7919)%5 == 0 })
		w.ack(settled...)
		pause(2*kafka.DonePace + kafka.CommitPace)
		w.crash()
		w = s.open()
		want := messages - len(settled)
		got := make(map[int]int)
		ctx := kafka.WithinTime(s.T)
		for len(got) < want {
			ds, err := w.Receive(ctx, 1000)
			if ctx.Err() != nil {
				s.Fatalf("%d of %d came: %v", len(got), want, err)
			}
			for _, d := range ds {
				got[number(d)]++
			}
			w.ack(ds...)
		}
		for _, d := range settled {
			if got[number(d)] > 0 {
				s.Fatalf("message %d was settled, and came again", number(d))
			}
		}
		w.close()
	})
}

func TestRetryOfSomebodyElsesTopic(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		other := kafka.UniqueName("other")
		s.create(other, 1, nil)
		w := s.open()
		foreign := copied(brokers.Message{ID: "foreign", Topic: other, Key: "k", Body: []byte("0")}, brokers.Meta{Attempt: 1, DueAt: time.Now()})
		s.store(partition{s.delayTopic(), 0}, 0, foreign)
		var errs []error
		s.waitFor("the error that names the topic", func() bool {
			ds, more := w.drain(time.Second)
			if errs = append(errs, more...); len(ds) > 0 {
				s.Fatalf("received %v", kafka.Bodies(ds))
			}
			return kafka.AnyContains(errs, fmt.Sprintf("%q, which this worker does not subscribe to", other)) && kafka.AnyContains(errs, "same topics")
		})
		s.waitFor("the retry to be put back", func() bool { return s.stored(s.delayTopic(), 0).offset == 1 })
		w.close()
		got := s.read(partition{s.delayTopic(), 0}, 1)
		if len(got) != 1 {
			s.Fatalf("%d records were put back, want 1", len(got))
		}
		m, meta := kafka.Understood(got[0])
		if m.ID != "foreign" || m.Topic != other || m.Key != "k" || meta.Attempt != 1 || !meta.DueAt.After(got[0].Time) {
			s.Errorf("put back: %+v %+v", m, meta)
		}
	})
}

func TestTopicDeletedAndMadeAnewUnderASource(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		other := kafka.UniqueName("other")
		s.create(other, 1, nil)
		w := s.open(func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, other) })
		s.writeNumbers(100)
		ds, _ := w.receive(100)
		w.ack(ds...)
		s.waitForCommit(s.topic, 100)
		s.drop(s.topic)
		before := w.current()
		var errs []error
		s.waitFor("the error after the topic was deleted", func() bool {
			_, more := w.drain(100 * time.Millisecond)
			errs = append(errs, more...)
			return kafka.AnyContains(errs, "does not exist any more")
		})
		if w.current() != before {
			s.Error("the generation has changed because a topic is missing")
		}
		lost := 0
		for _, err := range errs {
			if errors.Is(err, brokers.ErrMisconfigured) {
				s.Errorf("an error that ends the source: %v", err)
			}
			if gone, is := errors.AsType[*brokers.TopicError](err); is && gone.Topic == s.topic {
				lost++
			}
		}
		if lost != 1 {
			s.Errorf("%d errors name the lost topic, want 1 for now", lost)
		}
		w2 := s.open(func(sub *brokers.Subscription) { sub.Topics = []string{other} }) // the group changes meanwhile
		s.waitFor("the group to change", func() bool { return w2.isIn() })
		received := make(chan string, 100)
		ctx, stop := context.WithCancel(kafka.WithinTime(s.T))
		for _, w := range []*worker{w, w2} {
			go func() {
				for ctx.Err() == nil {
					ds, err := w.Receive(ctx, 10)
					if err != nil {
						s.Logf("%v: %v", time.Now().Format("05.000"), err)
					}
					w.Settle(ctx, kafka.Acks(ds))
					for _, d := range ds {
						received <- string(d.Message.Body)
					}
				}
			}()
		}
		expect := func(what string, want ...string) {
			s.Helper()
			for _, body := range want {
				select {
				case got := <-received:
					if got != body {
						s.Errorf("%s: received %q, want %q", what, got, body)
					}
				case <-ctx.Done():
					s.Fatalf("%s: %q does not come", what, body)
				}
			}
		}
		s.write(other, "of the other topic")
		expect("while a topic is missing", "of the other topic")
		s.create(s.topic, 1, nil)
		s.writeNumbers(10)
		expect("of the new topic", numbers(0, 10)...)
		stop()
		w.close()
		w2.close()
	})
}

// A log that took the place of another may have grown beyond what was committed
// for that one, as brokers that miss the deletion, and tools, leave it.
func TestCommittedForAnotherLog(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.writeNumbers(100)
		w := s.open()
		ds, _ := w.receive(100)
		w.ack(ds[:60]...)
		w.close()
		before := s.stored(s.topic, 0)
		s.drop(s.topic)
		s.create(s.topic, 1, nil)
		s.writeNumbers(200)
		s.commit(partition{s.topic, 0}, before)
		w = s.open()
		ds, errs := w.receive(200)
		s.sameBodies("of another log", ds, numbers(0, 200))
		if !kafka.AnyContains(errs, "another log") || !kafka.AnyContains(errs, s.topic) {
			s.Errorf("alarms: %v", errs)
		}
		w.ack(ds...)
		w.close()
		again := s.open()
		ds, errs = again.drain(time.Second)
		s.sameBodies("of the same log", ds, nil)
		s.noErrors(errs)
		again.close()
	})
}

func TestCommittedBeyondTheEnd(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.writeNumbers(10)
		s.commit(partition{s.topic, 0}, commitment{500, kafka.OwnerClean})
		w := s.open()
		ds, errs := w.receive(10)
		s.sameBodies("from the beginning", ds, numbers(0, 10))
		if !kafka.AnyContains(errs, "has the offsets 0 to 9, and 500 was asked for") || !kafka.AnyContains(errs, "made anew") {
			s.Errorf("alarms: %v", errs)
		}
		w.close()
	})
}

// Nothing acks where only copies are late: commits must not wait for them.
func TestCommitsDoNotWaitForDoneRecords(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		f := &fleet{t: s.T, options: s.options}
		f.Broker, _ = f.start()
		defer f.Close(context.Background())
		opened, err := f.Open(kafka.WithinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		w := &worker{Source: opened, t: s.T}
		s.writeNumbers(10)
		ds, _ := w.receive(10)
		w.retry(500*time.Millisecond, ds...)
		s.waitForCommit(s.topic, 10)
		ds, _ = w.receive(10)
		heal := f.lose(requests)
		w.ack(ds[1:]...) // for which a done record is due
		pause(kafka.DonePace)
		start := time.Now()
		s.writeNumbers(20)
		more, _ := w.receive(20)
		w.ack(more...)
		reference := time.Since(start)
		start = time.Now()
		s.waitForCommit(s.topic, 30)
		if d := time.Since(start); d > 2*time.Second+10*reference {
			s.Errorf("committed after %v", d)
		}
		heal()
		w.ack(ds[0])
		w.close()
	})
}

func TestCloseOnAFrozenNetwork(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.CallTimeout = time.Hour // contexts end calls, and nothing else
		s.writeNumbers(10)
		for _, closeSource := range []bool{true, false} {
			b, l := s.broker()
			source, err := b.Open(kafka.WithinTime(s.T), s.subscription())
			if err != nil {
				s.Fatal(err)
			}
			s.waitFor("the group", func() bool { return (&worker{Source: source}).isIn() })
			end := b.Close // of the source, too
			if closeSource {
				end = source.Close
			}
			l.freeze()
			ctx, cancel := context.WithTimeout(s.Context(), 500*time.Millisecond)
			start := time.Now()
			err = end(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "leave group") || time.Since(start) > kafka.Patience {
				s.Errorf("Close returned %v after %v", err, time.Since(start))
			}
			l.thaw()
		}
	})
}

// A retry that waits in a topic that the policy does not need any more still
// comes.
func TestRetriesOfALongerPolicyAreRead(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.write(s.topic, "waiting")
		w := s.open(func(sub *brokers.Subscription) { sub.MaxDelay = 10 * time.Minute })
		ds, _ := w.receive(1)
		retry := brokers.Settlement{Delivery: ds[0], Action: brokers.Retry, Delay: 2 * time.Minute, Meta: brokers.Meta{Attempt: 1, DueAt: time.Now()}}
		if errs := w.Settle(kafka.WithinTime(t), []brokers.Settlement{retry}); errs != nil {
			t.Fatal(errs)
		}
		w.close()
		again := s.open() // of delays up to a minute
		ds, _ = again.receive(1)
		s.sameBodies("after the policy became shorter", ds, []string{"waiting"})
		again.ack(ds...)
	})
}

func TestGroupChangesDuringAPause(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		other := kafka.UniqueName("other")
		s.create(other, 1, nil)
		w := s.open(func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, other) })
		s.writeNumbers(20)
		ds, _ := w.receive(20)
		w.retry(3*time.Second, ds[:10]...)
		w.ack(ds[10:]...)
		w.Pause(s.topic)
		s.waitForCommit(s.topic, 20)
		before := w.current()
		before.End(errors.New("the test ends it"))
		s.waitFor("the next generation", func() bool { return w.isIn() && w.current() != before })
		fetches := w.link.fetches(s.topic)
		s.grow(s.topic, 3)
		s.store(partition{s.topic, 2}, 0, numbered(20, 10)...)
		s.store(partition{other, 0}, 0, record{value: []byte("other")})
		s.waitFor("the partitions to be noticed", func() bool { return len(kafka.Owned(w.Source)) >= 5 })
		ds, errs := w.drain(4 * time.Second)
		s.sameBodies("while the topic is paused", ds, []string{"other"})
		if n := fetches(); n != 0 {
			s.Errorf("%d fetches of the paused topic", n)
		}
		w.Pause()
		ds, more := w.receive(20)
		got := kafka.Bodies(ds)
		want := slices.DeleteFunc(numbers(0, 30), func(body string) bool { return len(body) == 2 && body[0] == '1' }) // 10 to 19 are done
		late, last := w.drain(time.Second)
		if slices.Sort(want); !slices.Equal(got, want) || len(late) > 0 {
			s.Errorf("received %v and %v, want %v", got, kafka.Bodies(late), want)
		}
		s.noErrors(slices.Concat(errs, more, last))
		w.ack(ds...)
		w.close()
	})
}

func TestBadInput(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w := s.open()
		forged := copied(brokers.Message{ID: "forged", Topic: "elsewhere", Body: []byte("forged")},
			brokers.Meta{Attempt: 9, Throttles: 3, DueAt: time.Now().Add(time.Hour), Class: "poison"})
		in := []record{
			{value: nil},
			{value: []byte{}},
			{key: []byte{}, value: []byte("empty key")},
			{key: []byte{0xff, 0}, value: []byte{0xfe, 0}},
			{value: []byte("headers"), headers: []kafkago.Header{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Value: []byte{}}}},
			{value: []byte("mark"), headers: []kafkago.Header{{Key: kafka.DoneHeader, Value: []byte(kafka.DoneMark)}}},
			forged,
		}
		s.store(partition{s.topic, 0}, 0, in...)
		ds, errs := w.receive(len(in))
		before := make(map[string]brokers.Message)
		for i, d := range ds {
			if d.Message.Topic != s.topic || d.Meta().Attempt != 0 || !d.Meta().DueAt.IsZero() || d.Meta().Throttles != 0 || d.Meta().Class != "" {
				s.Errorf("record %d: %+v %+v", i, d.Message, d.Meta())
			}
			if (d.Message.Body == nil) != (in[i].value == nil) {
				s.Errorf("record %d: a body of %#v became %#v", i, in[i].value, d.Message.Body)
			}
			before[d.Message.ID] = d.Message
		}
		w.retry(100*time.Millisecond, ds...)
		again, more := w.receive(len(in))
		for _, d := range again {
			was, now := before[d.Message.ID], d.Message
			now.PublishedAt = was.PublishedAt // which is the same instant
			if !reflect.DeepEqual(now, was) || d.Meta().Attempt != 1 {
				s.Errorf("%+v became %+v, attempt %d", was, now, d.Meta().Attempt)
			}
			delete(before, d.Message.ID)
		}
		if len(before) > 0 {
			s.Errorf("%v did not come again", before)
		}
		s.noErrors(append(errs, more...))
		w.ack(again...)
		w.close()
	})
}

// A message as large as its topic takes must reach the delay topic and the dead
// letters with all the headers that are added on the way.
func TestLargestMessages(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		const limit = 1_048_588 // the default of a broker
		dead := kafka.UniqueName("dead")
		w := s.open(func(sub *brokers.Subscription) { sub.DeadLetters = map[string]string{s.topic: dead} })
		large := record{headers: []kafkago.Header{{Key: "trace", Value: []byte("1")}}}
		large.value = []byte(strings.Repeat("x", limit-2*len("trace")-100))
		for size := 0; size < limit; size = kafka.SizeOf(kafkago.Message{Value: large.value, Headers: large.headers}) {
			large.value = append(large.value, make([]byte, max(0, limit-kafka.SizeOf(kafkago.Message{Value: large.value, Headers: large.headers})))...)
		}
		s.store(partition{s.topic, 0}, 0, large)
		ds, _ := w.receive(1)
		w.retry(50*time.Millisecond, ds...)
		ds, _ = w.receive(1)
		if m := ds[0].Message; len(m.Body) != len(large.value) || !slices.Equal(m.Headers, brokers.Headers{{Name: "trace", Value: "1"}}) || ds[0].Meta().Attempt != 1 {
			s.Errorf("%d bytes came again, want %d; headers %v, attempt %d", len(m.Body), len(large.value), m.Headers, ds[0].Meta().Attempt)
		}
		letter := ds[0].Message
		letter.Headers = append(letter.Headers, brokers.Header{Name: "redrive-dead-error", Value: strings.Repeat("e", 16<<10)})
		if err := w.broker.Publish(kafka.WithinTime(s.T), dead, letter); err != nil {
			s.Errorf("dead letter: %v", err)
		}
		if err := w.broker.Publish(kafka.WithinTime(s.T), s.topic, letter); !errors.Is(err, brokers.ErrRefused) {
			s.Errorf("publish of more than Options.MessageLimit: %v", err)
		}
		w.ack(ds...)
		w.close()
	})
}

func TestCompressedBatches(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		for i, codec := range []kafkago.Compression{0, kafkago.Gzip, kafkago.Snappy, kafkago.Lz4, kafkago.Zstd} {
			base := s.store(partition{s.topic, 0}, codec, numbered(100*i, 100)...)
			s.group = kafka.UniqueName("group") // which begins within the batch
			s.options.Group = s.group
			s.commit(partition{s.topic, 0}, commitment{offset: base + 57})
			w := s.open()
			ds, errs := w.receive(43)
			s.sameBodies(fmt.Sprintf("codec %d", codec), ds, numbers(100*i+57, 100*i+100))
			s.noErrors(errs)
			w.close()
		}
	})
}
