package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

const getAttributes = "GetQueueAttributes"

// told says what a backlog has, "-" for what is not known.
func told(b brokers.Backlog) string {
	text := b.Topic
	for _, n := range []*int64{b.Ready, b.Taken, b.Delayed} {
		if n == nil {
			text += " -"
		} else {
			text += fmt.Sprint(" ", *n)
		}
	}
	return text
}

// TestBacklogs has a message that is held, one that waits for its retry in place, one
// that nobody has, and two dead letters. Each queue is asked once, and once again if
// that fails, at the next time.
func TestBacklogs(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"jobs", "other"}
		s.sub.DeadLetters = map[string]string{"jobs": "dead", "other": "dead"}
		src := s.open()
		src.Pause("other")
		s.publish("a", "b")
		s.settle(src, again(s.receive(src, 2)[0], time.Hour))
		s.publishTo("other", "c")
		s.publishTo("dead", "d", "e")
		var all []brokers.Backlog
		var err error
		s.costs(getAttributes, 3, 3, func() { all, err = src.Backlogs(s.Context()) })
		if err != nil || len(all) != 3 || told(all[0]) != "jobs 0 2 0" || told(all[1]) != "other 1 0 0" || told(all[2]) != "dead 2 0 0" || !all[2].DeadLetters || all[0].DeadLetters {
			s.Errorf("%v: %+v %q %q %q", err, all, told(all[0]), told(all[1]), told(all[2]))
		}
		defer s.server.Inject(sqstest.Fault{Operation: getAttributes, Queue: "other", Status: 503})()
		s.costs(getAttributes, 3, 3, func() { all, err = src.Backlogs(s.Context()) })
		if err == nil || len(all) != 2 || all[0].Topic != "jobs" || all[1].Topic != "dead" {
			s.Errorf("one queue does not answer: %v, %+v", err, all)
		}
	})
}
