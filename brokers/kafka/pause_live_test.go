package kafka

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// only returns those of ds that are of topic.
func only(topic string, ds []*brokers.Delivery) []*brokers.Delivery {
	return slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool { return d.Message.Topic != topic })
}

// openTwo opens a worker of the topic and another one.
func (s *scene) openTwo() (w *worker, other string) {
	s.Helper()
	other = uniqueName("other")
	s.create(other, 1, nil)
	return s.open(func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, other) }), other
}

func TestOneOfTwoTopicsIsPaused(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w, other := s.openTwo()
		s.writeNumbers(50)
		s.write(other, numbers(0, 50)...)
		start := time.Now()
		ds, _ := w.receive(100)
		reference := time.Since(start)
		w.retry(time.Second, ds...) // all to one delay partition
		before := w.current()
		w.Pause(s.topic)
		pause(2 * longestWait) // for the fetch that is on its way
		fetches := w.link.fetches(s.topic)
		store(s.T, s.admin, partition{s.topic, 0}, 0, numbered(50, 50)...)
		store(s.T, s.admin, partition{other, 0}, 0, numbered(50, 50)...)
		ds, errs := w.drain(3 * time.Second)
		s.sameBodies("while the topic is paused, of it", only(s.topic, ds), nil)
		s.sameBodies("while the topic is paused, of the other", only(other, ds), numbers(0, 100))
		if n := fetches(); n != 0 {
			s.Errorf("%d fetches of the paused topic", n)
		}
		w.settle(brokers.Ack, ds...)
		s.waitFor("the commit", func() bool { return s.stored(other, 0).offset == 100 })

		w.Pause()
		start = time.Now()
		ds, more := w.receive(100)
		if d := time.Since(start); d > 3*time.Second+10*reference {
			s.Errorf("what waited came after %v", d)
		}
		late, last := w.drain(time.Second)
		s.sameBodies("after that", append(ds, late...), numbers(0, 100))
		if errs = slices.Concat(errs, more, last); len(errs) > 0 {
			s.Errorf("errors: %v", errors.Join(errs...))
		}
		if w.current() != before || fetches() == 0 {
			s.Errorf("the generation has changed, or nothing was fetched: %d", fetches())
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}

func TestGroupChangesDuringAPause(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		w, other := s.openTwo()
		s.writeNumbers(20)
		ds, _ := w.receive(20)
		w.retry(3*time.Second, ds[:10]...)
		w.settle(brokers.Ack, ds[10:]...)
		w.Pause(s.topic)
		s.waitFor("the commit", func() bool { return s.stored(s.topic, 0).offset == 20 })
		before := w.current()
		before.end(errors.New("the test ends it"))
		s.waitFor("the next generation", func() bool { now := w.current(); return now != nil && now != before })
		fetches := w.link.fetches(s.topic)
		s.grow(s.topic, 3)
		store(s.T, s.admin, partition{s.topic, 2}, 0, numbered(20, 10)...)
		store(s.T, s.admin, partition{other, 0}, 0, record{value: []byte("other")})
		s.waitFor("the partitions to be noticed", func() bool { now := w.current(); return now != nil && len(now.readers) >= 5 })
		ds, errs := w.drain(4 * time.Second)
		s.sameBodies("while the topic is paused", ds, []string{"other"})
		if n := fetches(); n != 0 {
			s.Errorf("%d fetches of the paused topic", n)
		}
		w.Pause()
		ds, more := w.receive(20)
		got := bodies(ds)
		want := slices.DeleteFunc(numbers(0, 30), func(body string) bool { return len(body) == 2 && body[0] == '1' }) // 10 to 19 are done
		late, last := w.drain(time.Second)
		if slices.Sort(want); !slices.Equal(got, want) || len(late) > 0 {
			s.Errorf("received %v and %v, want %v", got, bodies(late), want)
		}
		if errs = slices.Concat(errs, more, last); len(errs) > 0 {
			s.Errorf("errors: %v", errors.Join(errs...))
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}

func TestTopicIsMadeAnewDuringAPause(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.CallTimeout = 3 * time.Second
		w, _ := s.openTwo()
		s.writeNumbers(100)
		ds, _ := w.receive(100)
		w.settle(brokers.Ack, ds...)
		s.waitFor("the commit", func() bool { return s.stored(s.topic, 0).offset == 100 })
		w.Pause(s.topic)
		pause(2 * longestWait)
		drop(s.T, s.admin, s.topic)
		s.create(s.topic, 1, nil)
		s.writeNumbers(300)
		ds, _ = w.drain(2 * time.Second)
		s.sameBodies("while the topic is paused", ds, nil)
		w.Pause()
		ds, errs := w.receive(300)
		s.sameBodies("of the new log", ds, numbers(0, 300))
		if !anyContains(errs, "another log") {
			s.Errorf("alarms: %v", errs)
		}
		w.settle(brokers.Ack, ds...)
		w.close()
	})
}
