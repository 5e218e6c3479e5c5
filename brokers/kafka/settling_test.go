package kafka_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestOnlyWhatIsUnackedComesBack(t *testing.T) {
	for name, end := range map[string]func(s *scene, w *worker){
		"Close": func(_ *scene, w *worker) { w.close() },
		"crash": func(s *scene, w *worker) {
			s.waitFor("the commit of what is acked", func() bool {
				committed, _ := kafka.ReadCommitted(0, s.stored(s.topic, 0).metadata)
				return !committed.IsDone(0) && committed.IsDone(99)
			})
			w.crash()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onKafka(t, 1, func(s *scene) {
				s.options.SessionTimeout = 5 * kafka.Patience // who leaves is gone at once
				s.writeNumbers(100)
				w := s.open()
				ds, _ := w.receive(100)
				acked := slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool { return number(d)%7 == 0 })
				rand.Shuffle(len(acked), func(i, j int) { acked[i], acked[j] = acked[j], acked[i] })
				for part := range slices.Chunk(acked, 10) {
					w.ack(part...)
				}
				end(s, w)
				var want []string
				for i := 0; i < 100; i += 7 {
					want = append(want, strconv.Itoa(i))
				}
				w = s.open()
				got := w.receiveAll(len(want))
				s.sameBodies("the next owner", got, want)
				for _, d := range got {
					if d.Abandoned > 0 && name == "Close" {
						s.Errorf("message %s counts %d lost owners after Close", d.Message.Body, d.Abandoned)
					}
				}
				w.close()
				if at := s.stored(s.topic, 0); at.offset != 100 || !closedInOrder(at) {
					s.Errorf("committed %+v at last, want 100 and nothing besides", at)
				}
			})
		})
	}
}

// What is handed out of a partition that moves ends, if it takes longer than a third of
// RebalanceTimeout.
func TestSettleAfterThePartitionMoved(t *testing.T) {
	onKafka(t, 2, func(s *scene) {
		s.options.RebalanceTimeout = 3 * time.Second          // handlers get 1 s
		s.store(partition{s.topic, 1}, 0, numbered(0, 10)...) // which moves
		one := s.open()
		ds, _ := one.receive(10)
		w := s.open()
		<-ds[0].Session.Done()
		if cause := context.Cause(ds[0].Session); !errors.Is(cause, brokers.ErrLeaseLost) {
			s.Errorf("the session ended with %v", cause)
		}
		for _, action := range []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release} {
			for i, err := range one.Settle(s.Context(), []brokers.Settlement{{Delivery: ds[action], Action: action}}) {
				if !errors.Is(err, brokers.ErrLeaseLost) {
					s.Errorf("%s of %d after the partition moved: %v", action, i, err)
				}
			}
		}
		for i, err := range one.Extend(s.Context(), 0, ds) {
			if !errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("extend of %d: %v", i, err)
			}
		}
		if at := s.stored(s.topic, 1); at.offset != 0 {
			s.Errorf("committed %+v, want 0", at)
		}
		one.close()
		ds, _ = w.receive(10)
		s.sameBodies("the other member", ds, numbers(0, 10))
		for _, d := range ds {
			if d.Abandoned != 0 {
				s.Errorf("message %s counts %d lost owners, but the group only changed", d.Message.Body, d.Abandoned)
			}
		}
		w.ack(ds...)
		w.close()
	})
}

// A member that waits for its handlers must not be taken for dead meanwhile.
func TestHandlersEndDuringARebalance(t *testing.T) {
	onKafka(t, 2, func(s *scene) {
		s.options.SessionTimeout, s.options.RebalanceTimeout = 5*time.Second, 30*time.Second
		s.store(partition{s.topic, 1}, 0, numbered(0, 10)...) // which moves
		one := s.open()
		ds, _ := one.receive(10)
		two := s.open()
		pause(7 * time.Second) // handlers at work, for more than a session
		one.ack(ds...)
		results := make(chan []*brokers.Delivery, 2)
		for _, w := range []*worker{one, two} {
			go func() {
				more, _ := w.drain(3 * time.Second)
				results <- more
			}()
		}
		more := append(<-results, <-results...)
		s.sameBodies("again, by the two", more, nil)
		one.close()
		two.close()
		if at := s.stored(s.topic, 1); at.offset != 10 {
			s.Errorf("committed %+v", at)
		}
	})
}

// A client that shares partitions out in another way cannot be in the group at
// the same time. Before and after, its commits count.
func TestAnotherClientInTheGroup(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.writeNumbers(20)
		w := s.open()
		ds, _ := w.receive(20)
		w.ack(ds[:5]...)
		stranger, err := kafkago.NewConsumerGroup(kafkago.ConsumerGroupConfig{
			ID: s.group, Brokers: s.options.Brokers, Topics: []string{s.topic}, JoinGroupBackoff: 100 * time.Millisecond,
		})
		if err != nil {
			s.Fatal(err)
		}
		defer stranger.Close()
		if _, err := stranger.Next(kafka.WithinTime(s.T)); !errors.Is(err, kafkago.InconsistentGroupProtocol) {
			s.Errorf("the other client joins: %v", err)
		}
		w.ack(ds[5:10]...)
		w.close()

		var theirs *kafkago.Generation
		for err = errors.New("none"); err != nil && s.Context().Err() == nil; {
			theirs, err = stranger.Next(kafka.WithinTime(s.T))
		}
		if at := theirs.Assignments[s.topic]; len(at) != 1 || at[0].Offset != 10 {
			s.Errorf("the other client begins at %+v, want offset 10", at)
		}
		b, _ := s.broker()
		if _, err := b.Open(kafka.WithinTime(s.T), s.subscription()); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "1 other consumers are in the group") {
			s.Errorf("while the other client is in the group: %v", err)
		}
		if err := theirs.CommitOffsets(map[string]map[int]int64{s.topic: {0: 15}}); err != nil {
			s.Error(err)
		}
		stranger.Close()
		w = s.open()
		ds, errs := w.receive(5)
		s.sameBodies("behind what the other client has committed", ds, numbers(15, 20))
		s.noErrors(errs)
		w.close()
	})
}
