package kafka_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// A group goes on where it has committed, and begins elsewhere as it is told, once.
func TestStart(t *testing.T) {
	for name, tt := range map[string]struct {
		start func(between time.Time) kafka.Start
		want  []string // of partitions 1 and 2
		says  string
	}{
		"oldest": {func(time.Time) kafka.Start { return kafka.Start{} }, []string{"b1", "a1", "a2", "b2"}, "they begin at the oldest message"},
		"newest": {func(time.Time) kafka.Start { return kafka.StartNewest() }, nil, "they begin at the newest message"},
		"a time": {kafka.StartAt, []string{"b1", "b2"}, "they begin at 20"},
		"future": {func(at time.Time) kafka.Start { return kafka.StartAt(at.Add(time.Hour)) }, nil, "they begin at 20"},
	} {
		t.Run(name, func(t *testing.T) {
			onKafka(t, 4, func(s *scene) { // the last of which is empty
				write := func(values ...string) {
					for n, value := range values {
						s.store(partition{s.topic, n}, 0, record{value: []byte(value)})
					}
				}
				write("a0", "a1", "a2")
				pause(5 * time.Millisecond) // timestamps are in milliseconds
				s.options.Start = tt.start(time.Now())
				pause(5 * time.Millisecond)
				write("b0", "b1", "b2")
				s.commit(partition{s.topic, 0}, commitment{offset: 1})
				w := s.open()
				s.waitFor("the group", func() bool { return w.isIn() })
				write("c0", "c1", "c2")
				ds, errs := w.receive(4 + len(tt.want))
				s.noErrors(errs)
				s.sameBodies("from a partition with a commit and two without", ds, append([]string{"b0", "c0", "c1", "c2"}, tt.want...))
				if found := uncommitted(w); len(found) != 1 || found[0].Severity != inspect.Noted ||
					!strings.Contains(found[0].Why, "2 of 4 partitions") || !strings.Contains(found[0].Why, tt.says) || !strings.Contains(found[0].Fix, s.topic+":1,2 ") {
					s.Errorf("findings: %v", found)
				}
				w.close() // and settles nothing
				w = s.open()
				ds, _ = w.receive(4 + len(tt.want))
				s.sameBodies("from the next worker", ds, append([]string{"b0", "c0", "c1", "c2"}, tt.want...))
				if found := uncommitted(w); len(found) != 0 {
					s.Errorf("findings of a group that has committed everywhere: %v", found)
				}
			})
		})
	}
}

// A partition that is added while a worker runs has nothing that is old.
func TestStartOfAPartitionThatIsAdded(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.Start = kafka.StartNewest()
		s.write(s.topic, "old")
		w := s.open()
		s.waitFor("the group", func() bool { return w.isIn() })
		s.grow(s.topic, 2)
		s.store(partition{s.topic, 1}, 0, record{value: []byte("new")})
		ds, _ := w.receive(1)
		s.sameBodies("of a partition that was added", ds, []string{"new"})
	})
}

func TestStartRefuses(t *testing.T) {
	onKafka(t, 3, func(s *scene) {
		s.options.Start = kafka.StartCommitted()
		s.write(s.topic, "a")
		b, _ := s.broker()
		_, err := b.Open(kafka.WithinTime(s.T), s.subscription())
		if refused, ok := errors.AsType[*brokers.TopologyError](err); !ok || len(refused.Findings) != 1 || !strings.Contains(err.Error(), "1 of 3 partitions") ||
			!strings.Contains(err.Error(), "--group "+s.group+" --topic "+s.topic+":0 --reset-offsets") {
			s.Errorf("Open without a commit: %v", err)
		}
		s.commit(partition{s.topic, 0}, commitment{offset: 0})
		ds, _ := s.open().receive(1)
		s.sameBodies("after a reset", ds, []string{"a"})
	})
}

// uncommitted are the findings about commits: a cluster has others, of replicas.
func uncommitted(w *worker) []inspect.Finding {
	return slices.DeleteFunc(slices.Clone(w.Capabilities().Findings), func(f inspect.Finding) bool {
		return !strings.Contains(f.Why, "commit of the group")
	})
}
