package sqs

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/health"
)

// TestConnection has the service away for a time: the source says so by the outcomes of
// its polls, with the last error, and says when an answer comes again.
func TestConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		fault sqstest.Fault
		text  string
		after time.Duration // when it must have said so at the latest
	}{
		"refused": {sqstest.Fault{Cut: true}, "connection reset", longestPollWait + awayAfter + longestPollWait},
		"failing": {sqstest.Fault{Status: 503}, "503", longestPollWait + awayAfter + longestPollWait},
		"silent":  {sqstest.Fault{Latency: time.Hour}, "no answer within 30s", longestPollWait + 2*(longestPollWait+defaultCallTimeout) + longestPollWait},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			src := s.open()
			s.publish("a")
			s.settle(src, ack(s.one(src)))
			s.is(src, health.Running, "")
			heal := s.server.Inject(tt.fault)
			s.nothingBut(src, awayAfter-time.Second)
			s.is(src, health.Running, "")
			s.nothingBut(src, tt.after-awayAfter+time.Second)
			s.is(src, health.Opening, tt.text)
			heal()
			s.nothingBut(src, longestPollWait+2*(longestPollWait+defaultCallTimeout))
			s.is(src, health.Running, tt.text)
		})
	}
}

// TestConnectionBeforeTheFirstAnswer counts a worker whose first poll fails as not
// connected at once: a rollout would go on with one that may not receive. A first poll
// that waits in vain, or a pause, keeps it waiting no longer than Open.
func TestConnectionBeforeTheFirstAnswer(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.is(src, health.Running, "")
		heal := s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Code: "AccessDenied", Status: 403})
		s.nothingBut(src, time.Second)
		s.is(src, health.Opening, "grant the identity")
		heal()
		s.nothingBut(src, lookPace+longestPollWait+time.Second)
		s.is(src, health.Running, "grant the identity")
	})
}

// TestConnectionOfTwoQueues takes any answer for one of the service: that a queue is
// gone, or that nothing is asked as all is paused, is no lost connection.
func TestConnectionOfTwoQueues(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"jobs", "other"}
		src := s.open()
		s.nothingBut(src, 2*longestPollWait)
		heal := s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Queue: "other", Code: "RequestThrottled"})
		for range 10 {
			s.nothingBut(src, 30*time.Second)
			s.is(src, health.Running, "")
		}
		src.Pause("jobs", "other")
		s.nothingBut(src, 10*time.Minute)
		s.is(src, health.Running, "")
		heal()
	})
}

// is demands a state of the connection, and an error that has a text in it.
func (s *scene) is(src *source, state health.State, text string) {
	s.Helper()
	c := src.Connection()
	if c.State != state || !strings.Contains(c.Error, text) || c.Since.IsZero() {
		s.Errorf("the connection is %+v, want %s and %q", c, state, text)
	}
}
