package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestQueuesThatExist has a worker on the default configuration take queues as they
// come: attempts are its own, and SQS ends no message.
func TestQueuesThatExist(t *testing.T) {
	t.Parallel()
	for name, receives := range map[string]int{"default settings": 0, "one receive": 1, "three receives": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			under(t, "jobs", Options{}, func(a *attack) {
				a.allow(receives)
				good := fill("good %d", 20)
				for i, body := range good {
					a.send("", body, nil)
					a.send("", fmt.Sprintf("slow %d", i), nil)
				}
				a.send("", "hopeless", nil)
				for m := range 4 * 60 { // failures count beside successes
					time.AfterFunc(time.Duration(m)*time.Minute, func() { a.send("", "later", nil) })
				}
				a.work(5*time.Hour, failing(errBusy, func(body string, run int) bool {
					return body == "hopeless" || strings.HasPrefix(body, "slow") && run < 8
				}))
				a.handled(time.Second, good...)
				a.eighth("slow")
				a.ended(1)
				if len(a.letters) != 1 || a.letters[0].Meta.Attempt != 10 || a.letters[0].Reason != "exhausted" {
					a.Errorf("dead letters: %+v, want one, of the tenth attempt", a.letters)
				}
			})
		})
	}
}

// allow creates the queues of a scene, whose policy lets messages be received so often;
// 0 means that there is none.
func (s *scene) allow(receives int) {
	s.Helper()
	dead, attributes := "dead", map[string]string{}
	if isFIFO(s.topic) {
		dead += fifoSuffix
	}
	if receives > 0 {
		attributes[namePolicy] = policy("arn:aws:sqs:us-east-1:123456789012:"+dead, receives)
	}
	s.create(dead, nil)
	s.create(s.topic, attributes)
}

// TestLowCountOfFIFO has a message fail at the head of its group: SQS ends it, as
// Open says, and none of those behind it.
func TestLowCountOfFIFO(t *testing.T) {
	t.Parallel()
	under(t, "jobs.fifo", Options{}, func(a *attack) {
		a.allow(1)
		good := fill("good %d", 9)
		a.send("g", "hopeless", nil)
		for _, body := range good {
			a.send("g", body, nil)
		}
		a.work(time.Hour, failing(errBusy, func(body string, _ int) bool { return body == "hopeless" }))
		for _, body := range good {
			if a.runs[body] != 1 {
				a.Errorf("%q had %d runs, want 1", body, a.runs[body])
			}
		}
		if dead := a.server.Messages(a.dead); len(dead) != 1 || dead[0].Body != "hopeless" {
			a.Errorf("dead letters: %v", dead)
		}
	})
}

// TestLittleIsPrefetched where SQS allows few receives: a worker takes what it has
// use for, however fast it was.
func TestLittleIsPrefetched(t *testing.T) {
	for receives, little := range map[int]bool{3: true, 40: false} {
		play(t, "jobs", Options{}, func(s *scene) {
			s.allow(receives)
			s.publish(fill("%d", 200)...)
			src := s.open()
			for range 10 {
				s.drain(src, 10)
			}
			time.Sleep(100 * time.Millisecond)
			before := s.server.Queue("jobs").InFlight
			s.receive(src, before+1) // what was fetched, and one more
			synctest.Wait()
			if more := s.server.Queue("jobs").InFlight - before; (more < 5) != little { // one, and what a poll brought that was open
				s.Errorf("with %d receives allowed one message was wanted and %d were fetched", receives, more)
			}
		})
	}
}

// TestGivenBackWhereFewReceivesAreAllowed gives a message back more often than SQS lets
// it be received: it comes again each time.
func TestGivenBackWhereFewReceivesAreAllowed(t *testing.T) {
	for _, receives := range []int{1, 3} {
		play(t, "jobs", Options{}, func(s *scene) {
			s.allow(receives)
			s.publish("m")
			src := s.open()
			for range 5 {
				s.settle(src, release(s.one(src)))
			}
			s.drain(src, 1)
			if n := len(s.server.Messages("dead")); n > 0 {
				s.Errorf("with %d receives allowed SQS dead-lettered %d messages that were given back", receives, n)
			}
		})
	}
}

// TestForgottenQueues restarts a server that keeps nothing, and deletes the
// dead-letter queue alone, under a worker that may create them.
func TestForgottenQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		defer func() { server.Close() }()
		var mu sync.Mutex
		config := server.Config()
		config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			next := server.Config().HTTPClient
			mu.Unlock()
			return next.Do(r)
		})
		w := employ(t, Options{Config: config, Create: true}, "")
		w.send("good 1", "slow 1")
		w.await("good 1")
		mu.Lock()
		server.Close()
		server = sqstest.New(sqstest.Options{})
		mu.Unlock()
		w.await(`the queues ["dead" "jobs"] were gone, with what was in them: they are created anew`)
		w.send("good 2", "bad 2")
		w.await("good 2", "bad 2")

		w.forget("dead")
		w.send("good 3", "bad 3")
		news := w.await("good 3", "bad 3")
		told := slices.DeleteFunc(news, func(one string) bool { return !strings.Contains(one, "created anew") })
		if want := `the queues ["dead"] were gone`; len(told) != 1 || !strings.Contains(told[0], want) {
			t.Errorf("told: %q, want %s once", told, want)
		}
		w.leave()
		if n := len(server.Messages("dead")); n != 1 {
			t.Errorf("%d dead letters, want the one since the dead-letter queue was deleted", n)
		}
	})
}

// TestGoneQueue deletes the only queue of a worker that may not create it. The worker
// waits for the queue, and stops within 30 s when it is told to.
func TestGoneQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		w := employ(t, Options{Config: server.Config(), Create: true}, "")
		w.send("good 1")
		w.await("good 1")
		w.broker.options.Create = false
		w.send(fill("slow %d", 30)...)
		time.Sleep(time.Second)
		w.forget("jobs")
		w.await("the messages that were in it are lost")
		time.Sleep(time.Hour)
		begun := time.Now()
		if w.leave(); time.Since(begun) > 30*time.Second {
			t.Errorf("Run ended after %v, want it not to wait for messages that cannot be settled", time.Since(begun))
		}
	})
}

// workman is a worker on the default configuration on two queues of its own, "jobs"
// and "dead" unless they have a suffix.
type workman struct {
	testing.TB
	broker     *Broker
	jobs, dead string
	ended      chan error
	stop       context.CancelFunc
	news       chan string // bodies that were handled or dead-lettered, and errors
}

// employ starts one, and ends it with the test.
func employ(t testing.TB, o Options, suffix string) *workman {
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &workman{TB: t, broker: b, jobs: "jobs" + suffix, dead: "dead" + suffix, ended: make(chan error, 1), news: make(chan string, 1000)}
	c, err := consumer.New(b, consumer.Config{DeadLetter: w.dead, Logger: slog.New(slog.DiscardHandler), Observers: []consumer.Observer{w}})
	if err != nil {
		t.Fatal(err)
	}
	c.Handle(w.jobs, func(_ context.Context, m *brokers.Message) error {
		switch body := string(m.Body); {
		case strings.HasPrefix(body, "bad"):
			return errUnwanted
		case strings.HasPrefix(body, "slow"):
			time.Sleep(2 * time.Second)
		default:
			w.news <- body
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	go func() { w.ended <- c.Run(ctx) }()
	t.Cleanup(func() { b.Close(context.Background()) })
	return w
}

// Observe implements consumer.Observer.
func (w *workman) Observe(_ context.Context, e consumer.Event) {
	switch e.Kind {
	case consumer.EventDeadLettered:
		w.news <- string(e.Message.Body)
	case consumer.EventError:
		w.news <- e.Err.Error()
	}
}

// send sends as soon as there is a queue.
func (w *workman) send(bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		err := brokers.ErrNotFound
		for tries := 0; errors.Is(err, brokers.ErrNotFound) && tries < 100; tries++ {
			if err = w.broker.Publish(w.Context(), w.jobs, brokers.Message{Body: []byte(body)}); err != nil {
				time.Sleep(time.Second)
			}
		}
		if err != nil {
			w.Fatalf("send %q: %v", body, err)
		}
	}
}

// await waits for news with each of these texts, and returns all that there was.
func (w *workman) await(texts ...string) (news []string) {
	w.Helper()
	timeout := time.After(10 * time.Minute)
	for len(texts) > 0 {
		select {
		case one := <-w.news:
			news = append(news, one)
			texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(one, text) })
		case err := <-w.ended:
			w.Fatalf("Run ended with %v; still awaited: %q", err, texts)
		case <-timeout:
			w.Fatalf("still awaited: %q; there was %q", texts, news)
		}
	}
	return news
}

// forget deletes a queue.
func (w *workman) forget(topic string) {
	w.Helper()
	if err := w.broker.client.drop(w.Context(), topic); err != nil {
		w.Fatal(err)
	}
}

// leave ends the worker.
func (w *workman) leave() {
	w.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		w.Errorf("Run: %v", err)
	}
}

// TestExistingOnServers takes queues with the settings that a server gives them, and
// one that ends messages early, and creates one again that was deleted.
func TestExistingOnServers(t *testing.T) {
	t.Parallel()
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		config := aws.Config{Region: "us-east-1", Credentials: anyCredentials()}
		o := Options{Config: config, Endpoint: target.URL, Create: true, PollWait: time.Second, CallTimeout: time.Minute} // for a busy machine
		for name, receives := range map[string]int{"default settings": 0, "one receive": 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, suffix := t.Context(), "-"+rand.Text()
				client := awssqs.NewFromConfig(config, func(o *awssqs.Options) { o.BaseEndpoint = &target.URL })
				attributes := map[string]string{}
				for _, queue := range []string{"dead" + suffix, "jobs" + suffix} {
					made, err := client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &queue, Attributes: attributes})
					if err != nil {
						t.Fatal(err)
					}
					defer client.DeleteQueue(context.WithoutCancel(ctx), &awssqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
					got, err := client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl, AttributeNames: []types.QueueAttributeName{"QueueArn"}})
					if err != nil {
						t.Fatal(err)
					}
					if receives > 0 {
						attributes = map[string]string{namePolicy: policy(got.Attributes["QueueArn"], receives)}
					}
				}
				w := employ(t, o, suffix)
				w.send("good 1", "bad 1", "flaky")
				w.await("good 1", "bad 1", "flaky")
				w.forget(w.jobs)
				w.await("created anew")
				w.send("good 2", "bad 2")
				w.await("good 2", "bad 2")
				w.leave()
			})
		}
	})
}
