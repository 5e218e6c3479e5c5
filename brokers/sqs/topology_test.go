package sqs

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestCheckName(t *testing.T) {
	for topic, ok := range map[string]bool{
		"orders":      true,
		"Or_ders-7":   true,
		"orders.fifo": true,
		"https://sqs.eu-central-1.amazonaws.com/123456789012/orders":      true,
		"https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo": true,
		"http://localhost:9324/000000000000/orders":                       true,
		"":                               false,
		".fifo":                          false,
		"orders.dead":                    false,
		"fifo.orders":                    false,
		"orders/dead":                    false,
		"orders dead":                    false,
		"zamówienia":                     false,
		"https://host/":                  false,
		"ftp://host/123456789012/orders": false,
		"https:///123456789012/orders":   false,
		"https://host/123456789012/orders?a=b%zz#/": false,
		strings.Repeat("x", 80):                     true,
		strings.Repeat("x", 81):                     false,
		strings.Repeat("x", 75) + ".fifo":           true,
		strings.Repeat("x", 76) + ".fifo":           false,
	} {
		if err := checkName(topic); (err == nil) != ok {
			t.Errorf("checkName(%q) = %v", topic, err)
		}
	}
}

// TestOpenRefuses lists what voids a promise. Each refusal names what to do, all at
// once, and has created nothing.
func TestOpenRefuses(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		change func(*brokers.Subscription)
		want   []string // in the error; none means that it is accepted
	}{
		"nothing": {},
		"no topic": {
			change: func(sub *brokers.Subscription) { sub.Topics = nil },
			want:   []string{"no topic"},
		},
		"bad names": {
			change: func(sub *brokers.Subscription) {
				sub.Topics = []string{"jobs.dead"}
				sub.DeadLetters = map[string]string{"jobs.dead": "a b", "other": ""}
			},
			want: []string{`"jobs.dead"`, `"a b"`, "letters, digits"},
		},
		"both kinds": {
			change: func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, "jobs.fifo") },
			want:   []string{`"jobs" is a standard queue`, "two consumers"},
		},
		"a dead-letter queue of the other kind": {
			change: func(sub *brokers.Subscription) { sub.DeadLetters["jobs"] = "dead.fifo" },
			want:   []string{`"dead.fifo"`, `"jobs"`, "make both of one type"},
		},
		"a lease of more than 12 h": {
			change: func(sub *brokers.Subscription) { sub.Lease = 12 * time.Hour },
			want:   []string{"12h0m0s", longestLease.String()},
		},
		"delays too long for FIFO": {
			change: func(sub *brokers.Subscription) {
				sub.Topics, sub.DeadLetters, sub.MaxDelay = []string{"jobs.fifo"}, nil, 12*time.Hour
			},
			want: []string{"12h0m0s", longestBlock.String(), "FIFO"},
		},
		"receipts of FIFO queues on a standard one": {
			change: func(sub *brokers.Subscription) {
				sub.Topics, sub.DeadLetters, sub.Receipts = []string{"jobs.fifo"}, nil, "dead"
			},
		},
		"a URL with a password": {
			change: func(sub *brokers.Subscription) { sub.Topics = []string{"https://me:hunter2@host/1/jobs"} },
			want:   []string{"https://…@host/1/jobs"},
		},
		"all that is missing, and all faults of what is there": {
			change: func(sub *brokers.Subscription) {
				sub.Topics = append(sub.Topics, "missing", "http://localhost/123456789012/far")
				sub.DeadLetters["jobs"], sub.DeadLetters["missing"], sub.Receipts = "gone", "dead", "told"
				sub.MaxAge, sub.MaxDelay = 4*day-time.Hour, 2*time.Hour
			},
			want: []string{`"missing": there is no such queue`, `/far": there is no such queue`, `"gone": there is no such queue`, `"told": there is no such queue`, "Options.Create",
				`"jobs": MessageRetentionPeriod is 345600, and should be 349200`, `{"MessageRetentionPeriod":"349200"}`},
		},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			for _, topic := range []string{"net", "dead", "dead.fifo", "jobs", "jobs.fifo"} {
				s.create(topic, nil)
			}
			s.sub.DeadLetters = map[string]string{"jobs": "dead"}
			if tt.change != nil {
				tt.change(&s.sub)
			}
			strict := s.start(Options{})
			strict.options.Create = false
			created := s.server.Count("CreateQueue")
			_, err := strict.Open(s.Context(), s.sub)
			if (err != nil) != (tt.want != nil) || err != nil && !errors.Is(err, brokers.ErrMisconfigured) {
				s.Fatalf("Open returned %v, want an error: %t", err, tt.want != nil)
			}
			for _, text := range tt.want {
				if n := strings.Count(err.Error(), text); n == 0 || n > 1 && strings.Contains(text, "is no such") {
					s.Errorf("Open returned\n%v\nwhich says %q %d times", err, text, n)
				}
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || errors.Is(err, brokers.ErrNotFound) != strings.Contains(err.Error(), "there is no")) {
				s.Errorf("Open returned\n%v\nwhich has the password, or is ErrNotFound: %t", err, errors.Is(err, brokers.ErrNotFound))
			}
			s.demand("CreateQueue", created)
		})
	}
}

// create creates a queue with attributes.
func (s *scene) create(name string, attrs map[string]string) {
	s.Helper()
	if isFIFO(name) {
		attrs = maps.Clone(attrs)
		if attrs == nil {
			attrs = map[string]string{}
		}
		attrs["FifoQueue"] = "true"
	}
	client := awssqs.NewFromConfig(s.server.Config())
	if _, err := client.CreateQueue(s.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attrs}); err != nil {
		s.Fatalf("create %q: %v", name, err)
	}
}

// TestOpenCreates creates what is missing, so that it can be verified, and
// changes nothing that exists.
func TestOpenCreates(t *testing.T) {
	for _, suffix := range []string{"", fifoSuffix} {
		playAs(t, suffix, "jobs"+suffix, Options{}, func(s *scene) {
			dead := "dead" + suffix
			s.sub.DeadLetters = map[string]string{s.topic: dead}
			s.sub.MaxAge = 9 * 24 * time.Hour
			s.open()
			attrs := func(topic string) attributes {
				a, err := s.broker.client.inspect(s.Context(), s.server.Queue(topic).URL)
				if err != nil {
					s.Fatal(err)
				}
				return a
			}
			jobs, letters := attrs(s.topic), attrs(dead)
			if jobs.deadLetter != letters.arn || jobs.maxReceives != map[string]int{"": 40, fifoSuffix: 130}[suffix] || jobs.retention < s.sub.MaxAge+s.sub.MaxDelay {
				s.Errorf("created a queue with %+v", jobs)
			}
			if letters.retention != 14*24*time.Hour || letters.deadLetter != "" {
				s.Errorf("created a dead-letter queue with %+v", letters)
			}
			created := s.server.Count("CreateQueue")
			s.open()
			s.demand("CreateQueue", created)
			if caps := s.open().Capabilities(); caps.Ordered != (suffix != "") || caps.MessageLimit != new(queue).messageLimit() || caps.Lease != 30*time.Second || caps.Granularity != time.Second {
				s.Errorf("capabilities = %+v", caps)
			}
		})
	}
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.MaxAge = 15 * 24 * time.Hour
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrMisconfigured) {
			s.Errorf("Open for retries of 15 days returned %v, want ErrMisconfigured: no queue can keep them", err)
		}
		s.demand("CreateQueue", 0)
	})
	for keep, refused := range map[string]bool{"1209600": false, "3600": true} { // another worker, with other settings, was first
		play(t, "jobs", Options{}, func(s *scene) {
			s.create("jobs", map[string]string{"MessageRetentionPeriod": keep})
			s.server.Inject(sqstest.Fault{Operation: "GetQueueUrl", Queue: "jobs", Code: "AWS.SimpleQueueService.NonExistentQueue", Times: 1})
			if _, err := s.broker.Open(s.Context(), s.sub); errors.Is(err, brokers.ErrMisconfigured) != refused || refused && strings.Contains(err.Error(), "nothing was created") {
				s.Errorf("Open of what keeps messages for %s s returned %v, want ErrMisconfigured: %t", keep, err, refused)
			}
			s.demand("CreateQueue", 2)
		})
	}
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.DeadLetters = map[string]string{"jobs": "dead"}
		heal := s.server.Inject(sqstest.Fault{Operation: "CreateQueue", Queue: "dead", Code: "AccessDenied"})
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "AccessDenied") {
			s.Errorf("Open without the right to create the dead-letter queue returned %v, want ErrMisconfigured", err)
		}
		s.demand("CreateQueue", 1) // without its dead-letter queue "jobs" would have no policy for ever
		heal()
		s.open()
	})
}

// TestQueueURL takes a URL for a topic, and keeps it as the topic.
func TestQueueURL(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.create("jobs", nil)
		url := s.server.Queue("jobs").URL
		s.sub.Topics = []string{url}
		src := s.open()
		s.publishTo(url, "a")
		d := s.one(src)
		if d.Message.Topic != url {
			s.Errorf("the topic is %q, want %q", d.Message.Topic, url)
		}
		s.settle(src, again(d, 13*time.Hour))
		s.drain(src, 1)
	})
}

// TestUnverified goes on without the attributes of a queue, or of the target of its
// RedrivePolicy, but not while a server is in trouble.
func TestUnverified(t *testing.T) {
	for _, tt := range []struct {
		fault sqstest.Fault
		topic string // of the one finding; "" means that Open fails
	}{
		{sqstest.Fault{Code: "AccessDenied", Queue: "jobs"}, "jobs"},
		{sqstest.Fault{Code: "AccessDenied", Queue: "dead"}, "dead"},
		{sqstest.Fault{Code: "AccessDenied", Queue: "net"}, "net"},
		{sqstest.Fault{Status: 503}, ""},
	} {
		play(t, "jobs", Options{}, func(s *scene) {
			s.create("net", nil)
			s.create("dead", nil)
			s.create("jobs", map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:net","maxReceiveCount":40}`})
			tt.fault.Operation = "GetQueueAttributes"
			s.server.Inject(tt.fault)
			s.sub.DeadLetters = map[string]string{"jobs": "dead"}
			src, err := s.broker.Open(s.Context(), s.sub)
			if tt.topic == "" {
				if err == nil || errors.Is(err, brokers.ErrMisconfigured) {
					s.Errorf("Open, with %+v, returned %v; want a temporary error", tt.fault, err)
				}
				return
			}
			if err != nil {
				s.Fatalf("Open, with %+v: %v", tt.fault, err)
			}
			if got := src.Capabilities().Findings; len(got) != 1 || got[0].Severity != inspect.Unverified || got[0].Topic != tt.topic {
				s.Errorf("found %v, want that %q was not looked at", got, tt.topic)
			}
			s.publish("a")
			d := s.one(src)
			s.settle(src, again(d, time.Minute)) // whether SQS ends messages early is not known of jobs
			s.demand(sendBatch, map[string]int{"jobs": 2, "dead": 1, "net": 1}[tt.topic])
			s.drain(src, 1)
		})
	}
}

// TestManyTopics asks about many queues at a time.
func TestManyTopics(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = fill("topic-%d", 50)
		s.server.Inject(sqstest.Fault{Latency: 20 * time.Millisecond})
		begun := time.Now()
		s.open()
		s.within(begun, time.Second)
		ctx, cancel := context.WithCancelCause(s.Context())
		cancel(errStop)
		if _, err := s.broker.Open(ctx, s.sub); !errors.Is(err, errStop) {
			s.Errorf("Open with an ended context returned %v, want its cause", err)
		}
	})
}
