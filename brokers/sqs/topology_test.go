package sqs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/redrive-go/redrive/brokers"
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

// TestOpenRefuses lists what voids a promise. Each refusal names what to do.
func TestOpenRefuses(t *testing.T) {
	const day = 24 * time.Hour
	policy := func(name string, count int) string {
		return fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:%s","maxReceiveCount":"%d"}`, name, count)
	}
	for name, tt := range map[string]struct {
		change func(*brokers.Subscription)
		queues map[string]map[string]string // attributes
		want   []string                     // in the error; none means that it is accepted
	}{
		"nothing": {},
		"a good policy": {
			queues: map[string]map[string]string{"jobs": {"RedrivePolicy": policy("net", 40)}, "net": {}},
		},
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
		"a queue that is missing": {
			change: func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, "missing") },
			want:   []string{`"missing"`, "create the queue"},
		},
		"a dead-letter queue that is missing": {
			change: func(sub *brokers.Subscription) { sub.DeadLetters["jobs"] = "missing" },
			want:   []string{`"missing"`, "create the queue"},
		},
		"a queue for receipts that is missing": {
			change: func(sub *brokers.Subscription) { sub.Receipts = "missing" },
			want:   []string{`"missing"`, "create the queue"},
		},
		"receipts of FIFO queues on a standard one": {
			change: func(sub *brokers.Subscription) {
				sub.Topics, sub.DeadLetters, sub.Receipts = []string{"jobs.fifo"}, nil, "dead"
			},
		},
		"retries that outlive the queue": {
			change: func(sub *brokers.Subscription) { sub.MaxAge, sub.MaxDelay = 4*day-time.Hour, 2*time.Hour },
			want:   []string{"97h0m0s", `"jobs"`, "96h0m0s", "MessageRetentionPeriod"},
		},
		"a dead-letter queue that forgets": {
			queues: map[string]map[string]string{"dead": {"MessageRetentionPeriod": "3600"}},
			want:   []string{`"dead"`, "1h0m0s", "at least 345600"},
		},
		"a policy that ends messages early": {
			queues: map[string]map[string]string{"jobs": {"RedrivePolicy": policy("dead", 39)}},
			want:   []string{`"jobs"`, "maxReceiveCount 39", "set it to 40"},
		},
		"a policy to a queue that forgets": {
			queues: map[string]map[string]string{
				"jobs": {"RedrivePolicy": policy("net", 40)}, "net": {"MessageRetentionPeriod": "3600"},
			},
			want: []string{`"net"`, "1h0m0s"},
		},
		"several faults": {
			change: func(sub *brokers.Subscription) { sub.MaxAge = 10 * day },
			queues: map[string]map[string]string{
				"jobs": {"RedrivePolicy": policy("dead", 3)}, "dead": {"MessageRetentionPeriod": "3600"},
			},
			want: []string{"retries may take", "maxReceiveCount 3", `the dead-letter queue "dead" keeps messages for 1h0m0s`},
		},
		"a dead-letter queue with less room": {
			queues: map[string]map[string]string{"dead": {"MaximumMessageSize": "262144"}},
			want:   []string{`"dead" takes messages of up to 262144 bytes`, `"jobs" of up to 1048576`, "MaximumMessageSize", "at least 1048576"},
		},
		"both with less room": {
			queues: map[string]map[string]string{"dead": {"MaximumMessageSize": "262144"}, "jobs": {"MaximumMessageSize": "262144"}},
		},
		"a URL with a password": {
			change: func(sub *brokers.Subscription) { sub.Topics = []string{"https://me:hunter2@host/1/jobs"} },
			want:   []string{"https://…@host/1/jobs"},
		},
		"several that are missing": {
			change: func(sub *brokers.Subscription) {
				sub.Topics = append(sub.Topics, "missing")
				sub.DeadLetters["jobs"] = "gone"
			},
			want: []string{`"missing"`, `"gone"`},
		},
		"a policy that ends what came with others of its group": {
			change: func(sub *brokers.Subscription) { sub.Topics, sub.DeadLetters = []string{"jobs.fifo"}, nil },
			queues: map[string]map[string]string{"jobs.fifo": {"RedrivePolicy": policy("dead.fifo", 399)}},
			want:   []string{`"jobs.fifo"`, "maxReceiveCount 399", "set it to 400"},
		},
		"a good policy of a FIFO queue": {
			change: func(sub *brokers.Subscription) { sub.Topics, sub.DeadLetters = []string{"jobs.fifo"}, nil },
			queues: map[string]map[string]string{"jobs.fifo": {"RedrivePolicy": policy("dead.fifo", 400)}},
		},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			for _, topic := range []string{"net", "dead", "dead.fifo", "jobs", "jobs.fifo"} {
				s.create(topic, tt.queues[topic])
			}
			s.sub.DeadLetters = map[string]string{"jobs": "dead"}
			if tt.change != nil {
				tt.change(&s.sub)
			}
			strict := s.start(Options{})
			strict.options.Create = false
			_, err := strict.Open(s.Context(), s.sub)
			if (err != nil) != (tt.want != nil) || err != nil && !errors.Is(err, brokers.ErrMisconfigured) {
				s.Fatalf("Open returned %v, want an error: %t", err, tt.want != nil)
			}
			for _, text := range tt.want {
				if !strings.Contains(err.Error(), text) {
					s.Errorf("Open returned\n%v\nwhich does not say %q", err, text)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				s.Errorf("Open returned\n%v\nwhich has the password", err)
			}
			if err != nil && strings.Count(err.Error(), "the dead-letter queue \"dead\" keeps") > 1 {
				s.Errorf("Open returned\n%v\nwhich says one thing twice", err)
			}
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

// TestPolicyOfTheOtherKind cannot be set up on SQS, but on other servers.
func TestPolicyOfTheOtherKind(t *testing.T) {
	faults := verifyQueue("jobs", brokers.Subscription{MaxAttempts: 1}, attributes{deadLetter: "arn:aws:sqs:us-east-1:123456789012:dead.fifo", maxReceives: 1000})
	if len(faults) != 1 || !strings.Contains(faults[0].Error(), "make both of one type") {
		t.Errorf("faults = %v", faults)
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
				q, err := s.broker.queue(s.Context(), topic)
				if err != nil {
					s.Fatal(err)
				}
				a, err := s.broker.client.inspect(s.Context(), q.url)
				if err != nil {
					s.Fatal(err)
				}
				return a
			}
			jobs, letters := attrs(s.topic), attrs(dead)
			if jobs.deadLetter != letters.arn || jobs.maxReceives != map[string]int{"": 40, fifoSuffix: 400}[suffix] || jobs.retention < s.sub.MaxAge+s.sub.MaxDelay {
				s.Errorf("created a queue with %+v", jobs)
			}
			if letters.retention != 14*24*time.Hour || letters.deadLetter != "" {
				s.Errorf("created a dead-letter queue with %+v", letters)
			}
			created := s.server.Count("CreateQueue")
			s.open()
			s.demand("CreateQueue", created)
			if caps := s.open().Capabilities(); caps.Ordered != (suffix != "") || caps.MessageLimit != messageLimit(1<<20) || caps.Lease != 30*time.Second || caps.Granularity != time.Second {
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
	play(t, "jobs", Options{}, func(s *scene) { // another worker, with other settings, was first
		s.create("jobs", map[string]string{"MessageRetentionPeriod": "1209600"})
		s.server.Inject(sqstest.Fault{Operation: "GetQueueUrl", Queue: "jobs", Code: "AWS.SimpleQueueService.NonExistentQueue", Times: 1})
		s.open()
		s.demand("CreateQueue", 2)
	})
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.DeadLetters = map[string]string{"jobs": "dead"}
		heal := s.server.Inject(sqstest.Fault{Operation: "CreateQueue", Queue: "dead", Code: "AccessDenied"})
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), `"jobs" is missing`) || !strings.Contains(err.Error(), "AccessDenied") {
			s.Errorf("Open without the right to create the dead-letter queue returned %v, want ErrMisconfigured, and what else is missing", err)
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
		if err := s.broker.Publish(s.Context(), url, brokers.Message{Body: []byte("a")}); err != nil {
			s.Fatal(err)
		}
		d := s.one(src)
		if d.Message.Topic != url {
			s.Errorf("the topic is %q, want %q", d.Message.Topic, url)
		}
		s.settle(src, again(d, 13*time.Hour))
		s.settle(src, ack(s.one(src)))
		s.sub.Topics = []string{url + "-missing"}
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrMisconfigured) {
			s.Errorf("Open of a URL without a queue returned %v, want ErrMisconfigured", err)
		}
	})
}

// TestUnverified goes on without the attributes of a queue, or of the target of
// its RedrivePolicy, only if it is told to, and not while a server is in trouble.
func TestUnverified(t *testing.T) {
	for _, tt := range []struct {
		fault     sqstest.Fault
		forbidden bool
		says      string
	}{
		{sqstest.Fault{Code: "AccessDenied"}, true, `"jobs"`},
		{sqstest.Fault{Code: "AccessDenied", Queue: "net"}, true, ":net"},
		{sqstest.Fault{Status: 503}, false, `"jobs"`},
	} {
		for _, allow := range []bool{false, true} {
			play(t, "jobs", Options{AllowUnverified: allow}, func(s *scene) {
				s.create("net", nil)
				s.create("dead", nil)
				s.create("jobs", map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:net","maxReceiveCount":40}`})
				tt.fault.Operation = "GetQueueAttributes"
				s.server.Inject(tt.fault)
				s.sub.DeadLetters = map[string]string{"jobs": "dead"}
				src, err := s.broker.Open(s.Context(), s.sub)
				if tt.forbidden && allow {
					if err != nil {
						s.Fatalf("Open, with %+v: %v", tt.fault, err)
					}
					s.publish("a")
					s.settle(src, ack(s.one(src)))
					return
				}
				if err == nil || errors.Is(err, brokers.ErrMisconfigured) != tt.forbidden || !strings.Contains(err.Error(), tt.says) {
					s.Errorf("Open, with %+v, returned %v; want an error about %s", tt.fault, err, tt.says)
				}
			})
		}
	}
	if _, err := (&Broker{}).native(context.Background(), site{attrs: attributes{deadLetter: "net"}}, nil); err == nil {
		t.Error("a target that is no ARN was taken for one")
	}
}

// TestManyTopics asks about many queues at a time.
func TestManyTopics(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = fill("topic-%d", 50)
		s.server.Inject(sqstest.Fault{Latency: 20 * time.Millisecond})
		begun := time.Now()
		s.open()
		if took := time.Since(begun); took > time.Second {
			s.Errorf("Open of 50 topics took %v with calls of 20 ms", took)
		}
		ctx, cancel := context.WithCancelCause(s.Context())
		cancel(errStop)
		if _, err := s.broker.Open(ctx, s.sub); !errors.Is(err, errStop) {
			s.Errorf("Open with an ended context returned %v, want its cause", err)
		}
	})
}
