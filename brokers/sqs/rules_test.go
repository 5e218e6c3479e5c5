package sqs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func TestRules(t *testing.T) {
	const day = 24 * time.Hour
	queue := func(name string, change func(a *attributes)) *site {
		a := attributes{arn: "arn:aws:sqs:us-east-1:123456789012:" + name, retention: 4 * day, limit: 1 << 20}
		if change != nil {
			change(&a)
		}
		return &site{topic: name, url: "https://host/123456789012/" + name, attrs: a}
	}
	keeps := func(d time.Duration) func(*attributes) { return func(a *attributes) { a.retention = d } }
	for _, tt := range []struct {
		name     string
		receives int // of the RedrivePolicy; 0 means none
		topic    string
		s        site
		sub      brokers.Subscription // zero means the defaults
		want     []string             // severity, topic and setting
	}{
		{name: "as a worker creates it", receives: 40},
		{name: "no RedrivePolicy", want: []string{"noted q RedrivePolicy"}},
		{name: "no dead letters are wanted", s: site{letters: nil, net: queue("x", nil)}},
		{name: "retries by copy", receives: 39, want: []string{"noted q maxReceiveCount"}},
		{name: "one receive of each copy", receives: 1, want: []string{"noted q maxReceiveCount"}},
		{name: "delays that are waited for with receives", receives: 1, sub: brokers.Subscription{MaxAttempts: 10, MaxDelay: time.Hour}, want: []string{"noted q maxReceiveCount"}},
		{name: "many attempts", receives: 1000, sub: brokers.Subscription{MaxAttempts: 331}, want: []string{"noted q maxReceiveCount"}},
		{name: "as many as fit", receives: 1000, sub: brokers.Subscription{MaxAttempts: 330}},
		{name: "whoever never retries", receives: 13, sub: brokers.Subscription{Receipts: "told"}},
		{name: "but is stopped now and then", receives: 12, sub: brokers.Subscription{Receipts: "told"}, want: []string{"noted q maxReceiveCount"}},
		{name: "FIFO as a worker creates it", topic: "q.fifo", receives: 130},
		{name: "FIFO, and attempts count", topic: "q.fifo", receives: 3, want: []string{"noted q.fifo maxReceiveCount"}},
		{name: "FIFO, with what SQS moves there as new", topic: "q.fifo", receives: 130, s: site{net: queue("net.fifo", keeps(day))}},
		{name: "retries that outlive the queue", receives: 40, sub: brokers.Subscription{MaxAttempts: 10, MaxAge: 4 * day, MaxDelay: time.Second}, want: []string{"blocking q MessageRetentionPeriod"}},
		{name: "retries that outlive any queue", receives: 40, sub: brokers.Subscription{MaxAttempts: 10, MaxAge: 15 * day}, want: []string{"blocking q MessageRetentionPeriod"}},
		{name: "nothing about retention is told", receives: 40, s: site{attrs: attributes{limit: 1 << 20}}, sub: brokers.Subscription{MaxAttempts: 10, MaxAge: 15 * day}},
		{name: "a dead-letter queue with less room", receives: 40, s: site{letters: queue("dead", func(a *attributes) { a.limit-- })}, want: []string{"blocking dead MaximumMessageSize"}},
		{name: "letters that go sooner", receives: 40, s: site{letters: queue("dead", keeps(day)), net: queue("net", nil)}, want: []string{"noted dead MessageRetentionPeriod"}},
		{name: "letters that come with their age", receives: 40, s: site{letters: queue("dead", keeps(day))}, want: []string{"blocking dead MessageRetentionPeriod"}},
		{name: "the same elsewhere", receives: 40, s: site{net: queue("net", keeps(day))}, want: []string{"blocking net MessageRetentionPeriod"}},
		{name: "a net that is gone", receives: 40, s: site{net: &site{topic: "net", missing: true}}, want: []string{"blocking q RedrivePolicy"}},
		{name: "a net that is gone with the letters", receives: 40, s: site{letters: &site{topic: "dead", missing: true}}},
		{name: "a net that nobody may look at", receives: 40, s: site{net: &site{topic: "net", hidden: true}}, want: []string{"unverified net"}},
		{name: "everything", receives: 1, s: site{letters: queue("dead", func(a *attributes) { a.limit, a.retention = 1024, day })}, sub: brokers.Subscription{MaxAttempts: 1, MaxAge: 5 * day, MaxDelay: day},
			want: []string{"blocking q MessageRetentionPeriod", "blocking dead MaximumMessageSize", "blocking dead MessageRetentionPeriod", "noted q maxReceiveCount"}},
	} {
		s := tt.s
		s.topic, s.url = "q", "https://host/123456789012/q"
		if tt.topic != "" {
			s.topic = tt.topic
		}
		if s.attrs == (attributes{}) {
			s.attrs = queue(s.topic, nil).attrs
		}
		if s.letters == nil && !strings.HasPrefix(tt.name, "no dead letters") {
			s.letters = queue("dead", nil)
		}
		if s.attrs.maxReceives = tt.receives; tt.receives > 0 {
			if s.net == nil {
				s.net = s.letters
			}
			s.attrs.deadLetter = "arn:aws:sqs:us-east-1:123456789012:" + s.net.topic
		} else {
			s.net = nil
		}
		sub := tt.sub
		if sub.MaxAttempts == 0 && sub.Receipts == "" {
			sub = brokers.Subscription{MaxAttempts: 10, MaxAge: day, MaxDelay: 15 * time.Minute} // the defaults of a worker
		}
		var got []string
		for _, f := range findingsOf(existing, s.judge(sub)...) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Severity, f.Topic, f.Setting)))
			if f.Why == "" || f.Fix == "" || f.See == "" {
				t.Errorf("%s: finding without reason or remedy: %+v", tt.name, f)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestMend(t *testing.T) {
	s := &site{topic: "orders", url: "https://host/1/o'rders"}
	const want = `aws sqs set-queue-attributes --queue-url 'https://host/1/o'\''rders' --attributes '{"RedrivePolicy":"{\"deadLetterTargetArn\":\"a:b\",\"maxReceiveCount\":\"40\"}"}'`
	if got := s.mend(namePolicy, policy("a:b", 40)); got != want {
		t.Errorf("command\n%s\nwant\n%s", got, want)
	}
}
