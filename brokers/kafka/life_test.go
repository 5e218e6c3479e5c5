package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

func TestMessageThatKillsIsFoundOut(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.SessionTimeout = time.Second
		const messages, killer = 51, 20
		s.writeNumbers(messages)
		handled := make(map[int]bool)
		worst := 0
		for deaths := 0; len(handled) < messages; deaths++ {
			if deaths > 5 {
				s.Fatalf("message %d has killed %d workers", killer, deaths)
			}
			w := s.open()
			for alive := true; alive && len(handled) < messages; {
				ds, _ := w.receive(1)
				more, _ := w.take(9)
				for _, d := range append(ds, more...) {
					switch {
					case number(d) != killer:
						worst = max(worst, d.Abandoned)
					case d.Abandoned < 3:
						w.crash()
						alive = false
					}
					if !alive {
						break
					}
					w.settle(brokers.Ack, d)
					handled[number(d)] = true
				}
			}
			if len(handled) == messages {
				w.close()
			}
		}
		if worst >= 3 {
			s.Errorf("an innocent message counts %d lost workers", worst)
		}
		if at := s.stored(s.topic, 0); at.offset != messages {
			s.Errorf("committed %+v", at)
		}
	})
}

func TestMixedDelays(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		const messages = 2000
		s.options.DelayPartitions = 2
		w := s.open()
		s.writeNumbers(messages)
		ds, _ := w.receive(messages)
		dues := make(map[int]time.Time)
		for part := range slices.Chunk(ds, 100) {
			var batch []brokers.Settlement
			for _, d := range part {
				delay := time.Duration(number(d)*7919%5000) * time.Millisecond
				dues[number(d)] = time.Now().Add(delay)
				batch = append(batch, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: delay, Meta: brokers.Meta{Attempt: 1, DueAt: dues[number(d)]}})
			}
			if errs := w.Settle(s.Context(), batch); errs != nil {
				s.Fatal(errors.Join(errs...))
			}
		}
		seen := make(map[int]bool)
		ctx := withinTime(s.T)
		for len(seen) < messages {
			ds, err := w.Receive(ctx, 100)
			if err != nil {
				s.Fatalf("%d of %d came: %v", len(seen), messages, err)
			}
			now := time.Now()
			for _, d := range ds {
				if early := dues[number(d)].Sub(now); early > 0 {
					s.Errorf("message %d came %v early", number(d), early)
				}
				if seen[number(d)] {
					s.Errorf("message %d came twice", number(d))
				}
				seen[number(d)] = true
			}
			w.settle(brokers.Ack, ds...)
		}
		w.close()
		for n := range 2 {
			if at := s.stored(s.delayTopic(), n); !closedInOrder(at) {
				s.Errorf("committed of partition %d: %+v, want nothing open", n, at)
			}
		}
	})
}

// delayed puts n messages off until due, and returns when their originals are
// committed as done.
func (s *scene) delayed(w *worker, n int, due time.Time) {
	s.Helper()
	s.writeNumbers(n)
	ds, _ := w.receive(n)
	var batch []brokers.Settlement
	for _, d := range ds {
		batch = append(batch, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Until(due), Meta: brokers.Meta{Attempt: 1, DueAt: due}})
	}
	if errs := w.Settle(s.Context(), batch); errs != nil {
		s.Fatal(errors.Join(errs...))
	}
	s.waitFor("the commit of the originals", func() bool { return s.stored(s.topic, 0).offset == int64(n) })
}

func TestRestartWithDelays(t *testing.T) {
	for name, end := range map[string]func(w *worker){
		"Close": (*worker).close,
		"crash": func(w *worker) {
			pause(2 * donePace)
			w.crash()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onKafka(t, 1, func(s *scene) {
				const messages = 300
				w := s.open()
				s.delayed(w, messages, time.Now().Add(time.Second))
				ds, _ := w.receive(messages)
				var acked, open []*brokers.Delivery
				for _, d := range ds {
					if number(d)%3 == 0 {
						open = append(open, d)
					} else {
						acked = append(acked, d)
					}
				}
				w.settle(brokers.Ack, acked...)
				end(w)
				w = s.open()
				var got []*brokers.Delivery
				for len(got) < len(open) {
					more, _ := w.receive(1)
					w.settle(brokers.Ack, more...)
					got = append(got, more...)
				}
				more, _ := w.drain(time.Second)
				s.sameBodies("the next owner", append(got, more...), bodies(open))
				w.close()
			})
		})
	}
}

// The metadata of a commit cannot hold what is settled here, and done records
// do.
func TestDoneRecordsOutliveACrash(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		p := partition{s.delayTopic(), 0}
		const messages = 30_000
		w := s.open()
		var records []record
		for i := range messages {
			records = append(records, copyOf(brokers.Message{ID: fmt.Sprint(i), Topic: s.topic, Body: fmt.Append(nil, i)}, brokers.Meta{Attempt: 1, DueAt: time.Now()}))
		}
		for part := range slices.Chunk(records, 5000) {
			store(s.T, s.admin, p, 0, part...)
		}
		ds, _ := w.receive(messages)
		settled := slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool { return number(d)%1000 == 0 || (number(d)*7919)%5 == 0 })
		w.settle(brokers.Ack, settled...)
		pause(2*donePace + commitPace)
		w.crash()
		w = s.open()
		want := messages - len(settled)
		got := make(map[int]int)
		ctx := withinTime(s.T)
		for len(got) < want {
			ds, err := w.Receive(ctx, 1000)
			if ctx.Err() != nil {
				s.Fatalf("%d of %d came: %v", len(got), want, err)
			}
			for _, d := range ds {
				got[number(d)]++
			}
			w.settle(brokers.Ack, ds...)
		}
		for _, d := range settled {
			if got[number(d)] > 0 {
				s.Fatalf("message %d was settled, and came again", number(d))
			}
		}
		w.close()
	})
}

func TestCloseTellsWhatSourcesTell(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		b, l := s.broker()
		if _, err := b.Open(withinTime(s.T), s.subscription()); err != nil {
			s.Fatal(err)
		}
		l.freeze()
		ctx, cancel := context.WithTimeout(s.Context(), 300*time.Millisecond)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "leave group") {
			s.Errorf("Close with a frozen broker: %v", err)
		}
		l.thaw()
	})
}

func TestBodiesAreFetchedAgain(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w := s.open()
		s.delayed(w, 200, time.Now().Add(3*time.Second))
		w.close()
		b, _ := s.broker()
		b.memory = memory{bufferBytes, 50, 0, soonBytes}
		source, err := b.open(withinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		w = &worker{source: source, t: s.T}
		ds, errs := w.receive(200)
		s.sameBodies("with a full index and no room for bodies", ds, numbers(0, 200))
		if len(errs) > 0 {
			s.Errorf("errors: %v", errors.Join(errs...))
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}

func TestOverdueAfterAnOutage(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w := s.open()
		w.close()
		var records []record
		for i := range 500 {
			records = append(records, copyOf(brokers.Message{ID: fmt.Sprint(i), Topic: s.topic, Body: fmt.Append(nil, i)},
				brokers.Meta{Attempt: 2, DueAt: time.Now().Add(-time.Duration(i) * time.Hour)}))
		}
		store(s.T, s.admin, partition{s.delayTopic(), 0}, 0, records...)
		start := time.Now()
		w = s.open()
		reference := time.Since(start)
		start = time.Now()
		ds, _ := w.receive(500)
		if d := time.Since(start); d > 5*time.Second+10*reference {
			s.Errorf("what was overdue came after %v", d)
		}
		if ds[0].Meta.Attempt != 2 {
			s.Errorf("attempt %d, want 2", ds[0].Meta.Attempt)
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}

func TestRetryOfSomebodyElsesTopic(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		other := uniqueName("other")
		s.create(other, 1, nil)
		w := s.open()
		foreign := copyOf(brokers.Message{ID: "foreign", Topic: other, Key: "k", Body: []byte("0")}, brokers.Meta{Attempt: 1, DueAt: time.Now()})
		store(s.T, s.admin, partition{s.delayTopic(), 0}, 0, foreign)
		ds, errs := w.drain(2 * time.Second)
		if len(ds) != 0 || !anyContains(errs, fmt.Sprintf("%q, which this worker does not subscribe to", other)) || !anyContains(errs, "same topics") {
			s.Errorf("received %v, errors %v", bodies(ds), errs)
		}
		s.waitFor("the retry to be put back", func() bool { return s.stored(s.delayTopic(), 0).offset == 1 })
		w.close()
		got, err := s.admin.fetch(withinTime(s.T), partition{s.delayTopic(), 0}, 1, 1<<20, 0)
		if err != nil || len(got.records) != 1 {
			s.Fatalf("fetched %d records: %v", len(got.records), err)
		}
		m, meta := understood(*got.records[0], partition{s.delayTopic(), 0}, true, wire.Limits{Now: time.Now()})
		if m.ID != "foreign" || m.Topic != other || m.Key != "k" || meta.Attempt != 1 || meta.DueAt.Before(time.Now()) {
			s.Errorf("put back: %+v %+v", m, meta)
		}
	})
}

func TestPartitionGrowthIsNoticed(t *testing.T) {
	for name, settle := range map[string]time.Duration{"at once": 0, "later": watchPace + time.Second} {
		t.Run(name, func(t *testing.T) {
			onKafka(t, 1, func(s *scene) {
				w := s.open()
				if settle > 0 {
					s.write(s.topic, "0")
					ds, _ := w.receive(1)
					w.settle(brokers.Ack, ds...)
					pause(settle)
				}
				start := time.Now()
				s.grow(s.topic, 3)
				reference := time.Since(start)
				start = time.Now()
				store(s.T, s.admin, partition{s.topic, 2}, 0, record{value: []byte("1")})
				ds, errs := w.receive(1)
				s.sameBodies("from the new partition", ds, []string{"1"})
				if d := time.Since(start); d > 2*watchPace+10*reference {
					s.Errorf("noticed after %v", d)
				}
				if len(errs) > 0 {
					s.Errorf("errors: %v", errors.Join(errs...))
				}
				w.settle(brokers.Ack, ds...)
				w.close()
			})
		})
	}
}

func TestTopicDeletedAndMadeAnewUnderASource(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.CallTimeout = 3 * time.Second
		other := uniqueName("other")
		s.create(other, 1, nil)
		w := s.open(func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, other) })
		s.writeNumbers(100)
		ds, _ := w.receive(100)
		w.settle(brokers.Ack, ds...)
		s.waitFor("the commit", func() bool { return s.stored(s.topic, 0).offset == 100 })
		drop(s.T, s.admin, s.topic)
		before := w.current()
		_, errs := w.drain(watchPace + 2*time.Second)
		s.waitFor("the error after the topic was deleted", func() bool {
			_, more := w.drain(100 * time.Millisecond)
			errs = append(errs, more...)
			return anyContains(errs, "does not exist")
		})
		if w.current() != before {
			s.Error("the generation has changed because a topic is missing")
		}
		for _, err := range errs {
			if errors.Is(err, brokers.ErrMisconfigured) {
				s.Errorf("an error that ends the source: %v", err)
			}
		}
		w2 := s.open(func(sub *brokers.Subscription) { sub.Topics = []string{other} }) // the group changes meanwhile
		s.waitFor("the group to change", func() bool { return w2.current() != nil })
		s.write(other, "of the other topic")
		results := make(chan []*brokers.Delivery, 2)
		ctx, stop := context.WithCancel(withinTime(s.T))
		for _, w := range []*worker{w, w2} {
			go func() {
				for ctx.Err() == nil {
					if ds, _ := w.Receive(ctx, 10); len(ds) > 0 {
						w.Settle(ctx, acks(ds))
						results <- ds
					}
				}
			}()
		}
		select {
		case ds := <-results:
			s.sameBodies("while a topic is missing", ds, []string{"of the other topic"})
		case <-ctx.Done():
			s.Error("a missing topic keeps the others from being read")
		}
		s.create(s.topic, 1, nil)
		s.writeNumbers(10)
		seen := 0
		for seen < 10 {
			select {
			case ds := <-results:
				seen += len(ds)
			case <-ctx.Done():
				s.Fatalf("%d of 10 messages of the new topic came", seen)
			}
		}
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
		w.settle(brokers.Ack, ds[:60]...)
		w.close()
		before := s.stored(s.topic, 0)
		same := s.open()
		ds, errs := same.receive(40)
		s.sameBodies("of the same log", ds, numbers(60, 100))
		if len(errs) > 0 {
			s.Errorf("errors: %v", errs)
		}
		same.close()

		drop(s.T, s.admin, s.topic)
		s.create(s.topic, 1, nil)
		s.writeNumbers(200)
		s.commit(partition{s.topic, 0}, before)
		w = s.open()
		ds, errs = w.receive(200)
		s.sameBodies("of another log", ds, numbers(0, 200))
		if !anyContains(errs, "another log") || !anyContains(errs, s.topic) {
			s.Errorf("alarms: %v", errs)
		}
		w.settle(brokers.Ack, ds...)
		w.close()
		if at := s.stored(s.topic, 0); at.offset != 200 {
			s.Errorf("committed %+v, want 200", at)
		}
		again := s.open()
		if ds, errs := again.drain(2 * time.Second); len(ds) > 0 || len(errs) > 0 {
			s.Errorf("received %v again, errors %v", bodies(ds), errs)
		}
		again.close()
	})
}

func TestTopicGrowsBeyondWhatItsSourceHadReached(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.CallTimeout = 3 * time.Second
		s.writeNumbers(100)
		w := s.open()
		ds, _ := w.receive(100)
		w.settle(brokers.Ack, ds...)
		s.waitFor("the commit", func() bool { return s.stored(s.topic, 0).offset == 100 })
		drop(s.T, s.admin, s.topic)
		s.waitFor("an error after the topic was deleted", func() bool {
			_, errs := w.drain(100 * time.Millisecond)
			return len(errs) > 0
		})
		s.create(s.topic, 1, nil)
		s.writeNumbers(300)
		ds, errs := w.receive(300)
		s.sameBodies("of the new log", ds, numbers(0, 300))
		if !anyContains(errs, "another log") {
			s.Errorf("alarms: %v", errs)
		}
		w.close()
	})
}

func TestCommittedBeyondTheEnd(t *testing.T) {
	const partitions = 3 * mostFailures // and none of the alarms is dropped
	onKafka(t, partitions, func(s *scene) {
		s.writeNumbers(10)
		for n := range partitions {
			s.commit(partition{s.topic, n}, commitment{500, ownerClean})
		}
		w := s.open()
		ds, errs := w.receive(10)
		s.sameBodies("from the beginning", ds, numbers(0, 10))
		for n := range partitions {
			if p := (partition{s.topic, n}); !anyContains(errs, p.String()+" has the offsets 0 to") || !anyContains(errs, "made anew") {
				s.Errorf("no alarm for %s: %v", p, errs)
			}
		}
		w.settle(brokers.Ack, ds...)
		w.close()
		if at := s.stored(s.topic, 0); at.offset != 10 {
			s.Errorf("committed %+v, want 10", at)
		}
	})
}

// Nothing acks where only copies are late: commits must not wait for them.
func TestCommitsDoNotWaitForDoneRecords(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		f := &fleet{t: s.T, options: s.options}
		b, l := f.start()
		defer b.Close(context.Background())
		f.Broker, f.link = b, l
		source, err := b.open(withinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		w := &worker{source: source, link: l, t: s.T}
		s.delayed(w, 10, time.Now().Add(500*time.Millisecond))
		ds, _ := w.receive(10)
		heal := f.lose(requests)
		w.settle(brokers.Ack, ds[1:]...) // for which a done record is due
		pause(donePace)
		start := time.Now()
		s.writeNumbers(20)
		more, _ := w.receive(20)
		w.settle(brokers.Ack, more...)
		reference := time.Since(start)
		start = time.Now()
		s.waitFor("the commit", func() bool { return s.stored(s.topic, 0).offset == 30 })
		if d := time.Since(start); d > 2*time.Second+10*reference {
			s.Errorf("committed after %v", d)
		}
		heal()
		w.settle(brokers.Ack, ds[0])
		w.close()
	})
}

func TestCloseOnAFrozenNetwork(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.CallTimeout = time.Hour // contexts end calls, and nothing else
		s.writeNumbers(10)
		b, l := s.broker()
		source, err := b.Open(withinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		if _, err := source.Receive(withinTime(s.T), 1); err != nil {
			s.Fatal(err)
		}
		l.freeze()
		for i, end := range []func(context.Context) error{source.Close, b.Close} {
			ctx, cancel := context.WithTimeout(s.Context(), 500*time.Millisecond)
			start := time.Now()
			err := end(ctx)
			cancel()
			if d := time.Since(start); d > patience || i == 0 && err == nil { // it could not leave the group
				s.Errorf("Close returned %v after %v", err, d)
			}
		}
		l.thaw()
	})
}

func TestReceiveEndsWithItsContextAndItsBroker(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		b, _ := s.broker()
		source, err := b.Open(withinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(s.Context())
		ended := make(chan error, 1)
		go func() { _, err := source.Receive(ctx, 1); ended <- err }()
		cancel(why)
		if err := <-ended; !errors.Is(err, why) {
			s.Errorf("Receive: %v, want the cause of its context", err)
		}
		if _, err := source.Receive(s.Context(), 0); err == nil {
			s.Error("Receive of 0 messages works")
		}
		go func() { _, err := source.Receive(s.Context(), 1); ended <- err }()
		pause(50 * time.Millisecond)
		if err := b.Close(withinTime(s.T)); err != nil {
			s.Errorf("Close: %v", err)
		}
		if err := <-ended; !errors.Is(err, brokers.ErrClosed) {
			s.Errorf("Receive after Close of the broker: %v", err)
		}
		if _, err := b.Open(s.Context(), s.subscription()); !errors.Is(err, brokers.ErrClosed) {
			s.Errorf("Open after Close: %v", err)
		}
		if err := b.Publish(s.Context(), s.topic, brokers.Message{}); !errors.Is(err, brokers.ErrClosed) {
			s.Errorf("Publish after Close: %v", err)
		}
		if err := source.Close(withinTime(s.T)); err != nil {
			s.Errorf("Close of the source again: %v", err)
		}
	})
}

func TestBadInput(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w := s.open()
		forged := copyOf(brokers.Message{ID: "forged", Topic: "elsewhere", Body: []byte("forged")},
			brokers.Meta{Attempt: 9, Throttles: 3, DueAt: time.Now().Add(time.Hour), Class: "poison"})
		in := []record{
			{value: nil},
			{value: []byte{}},
			{key: []byte{}, value: []byte("empty key")},
			{key: []byte("k"), value: nil},
			{key: []byte{0xff, 0}, value: []byte{0xfe, 0}},
			{value: []byte("headers"), headers: []kafka.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}}, {Key: "a", Value: []byte("2")}}},
			{value: []byte("mark"), headers: []kafka.Header{{Key: doneHeader, Value: []byte(doneMark)}}},
			forged,
		}
		store(s.T, s.admin, partition{s.topic, 0}, 0, in...)
		ds, errs := w.receive(len(in))
		for i, d := range ds {
			if d.Message.Topic != s.topic || d.Meta.Attempt != 0 || !d.Meta.DueAt.IsZero() || d.Meta.Throttles != 0 || d.Meta.Class != "" {
				s.Errorf("record %d: %+v %+v", i, d.Message, d.Meta)
			}
			if (d.Message.Body == nil) != (in[i].value == nil) {
				s.Errorf("record %d: a body of %#v became %#v", i, in[i].value, d.Message.Body)
			}
		}
		w.retry(100*time.Millisecond, ds...)
		again, more := w.receive(len(in))
		slices.SortFunc(again, func(a, b *brokers.Delivery) int {
			return int(a.Token.(*token).record.offset - b.Token.(*token).record.offset)
		})
		byID := make(map[string]*brokers.Delivery)
		for _, d := range again {
			byID[d.Message.ID] = d
		}
		for i, first := range ds {
			d := byID[first.Message.ID]
			if d == nil {
				s.Errorf("record %d did not come again", i)
				continue
			}
			if d.Message.Key != first.Message.Key || string(d.Message.Body) != string(first.Message.Body) || (d.Message.Body == nil) != (first.Message.Body == nil) ||
				!slices.Equal(d.Message.Headers, first.Message.Headers) || d.Message.Topic != s.topic || d.Meta.Attempt != 1 {
				s.Errorf("record %d: %+v became %+v, attempt %d", i, first.Message, d.Message, d.Meta.Attempt)
			}
		}
		if errs = append(errs, more...); len(errs) > 0 {
			s.Errorf("errors: %v", errors.Join(errs...))
		}
		w.settle(brokers.Ack, again...)
		w.close()
	})
}

// A message as large as its topic takes must reach the delay topic and the dead
// letters with all the headers that are added on the way.
func TestLargestMessages(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		const limit = 1_048_588 // the default of a broker
		dead := uniqueName("dead")
		b, l := s.broker()
		sub := s.subscription()
		sub.DeadLetters = map[string]string{s.topic: dead}
		source, err := b.open(withinTime(s.T), sub)
		if err != nil {
			s.Fatal(err)
		}
		w := &worker{source: source, link: l, t: s.T}
		large := record{key: []byte("k"), headers: []kafka.Header{{Key: "trace", Value: []byte("1")}}}
		large.value = []byte(strings.Repeat("x", limit-2*len("trace")-100))
		for large.size() < limit {
			large.value = append(large.value, make([]byte, limit-large.size())...)
		}
		store(s.T, s.admin, partition{s.topic, 0}, 0, large)
		ds, _ := w.receive(1)
		w.retry(50*time.Millisecond, ds...)
		ds, _ = w.receive(1)
		if len(ds[0].Message.Body) != len(large.value) || ds[0].Meta.Attempt != 1 {
			s.Errorf("%d bytes came again, want %d; attempt %d", len(ds[0].Message.Body), len(large.value), ds[0].Meta.Attempt)
		}
		letter := ds[0].Message
		letter.Headers = append(letter.Headers, brokers.Header{Name: "redrive-dead-error", Value: strings.Repeat("e", 16<<10)})
		if err := b.Publish(withinTime(s.T), dead, letter); err != nil {
			s.Errorf("dead letter: %v", err)
		}
		if err := b.Publish(withinTime(s.T), s.topic, letter); !errors.Is(err, brokers.ErrRefused) {
			s.Errorf("publish of more than Options.MessageLimit: %v", err)
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}

func TestSourcesLeaveNothing(t *testing.T) { // not at the same time as others
	alone(t, 2, func(s *scene) {
		s.writeNumbers(100)
		b, _ := s.broker()
		source, err := b.open(withinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		w := &worker{source: source, t: s.T}
		ds, _ := w.receive(100)
		w.settle(brokers.Ack, ds[:50]...)
		w.retry(time.Hour, ds[50:70]...)
		w.settle(brokers.Release, ds[70:80]...)
		w.close()
		if err := b.Close(withinTime(s.T)); err != nil {
			s.Errorf("Close: %v", err)
		}
		s.store.close(withinTime(s.T))
		s.admin.close()
		noLeftovers(s.T)
	})
}
