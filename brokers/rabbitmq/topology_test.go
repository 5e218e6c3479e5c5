package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// fault demands that err is ErrMisconfigured and says every part.
func fault(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, brokers.ErrMisconfigured) {
		t.Errorf("error %v, want ErrMisconfigured", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options rabbitmq.Options
		parts   []string
	}{
		{"no endpoint", rabbitmq.Options{}, []string{"at least one in Options.URLs"}},
		{"no URL", rabbitmq.Options{URLs: []string{"amqp://user:s3cr3t@host:x/"}}, []string{"entry 0 of Options.URLs"}},
		{"another scheme", rabbitmq.Options{URLs: []string{"amqp://a", "http://user:s3cr3t@host/"}}, []string{"entry 1 of Options.URLs"}},
		{"a password that is not encoded", rabbitmq.Options{URLs: []string{"amqp://user:s3cr3t#%zz@host/"}}, []string{"percent-encoded"}},
		{"everything", rabbitmq.Options{
			ConsumerTimeout: time.Millisecond, ConfirmTimeout: -1, CallTimeout: -1, Heartbeat: 1, MessageLimit: -1,
			Prefix: strings.Repeat("x", 200),
		}, []string{"URLs", "ConsumerTimeout", "ConfirmTimeout", "CallTimeout", "Heartbeat", "MessageLimit", "Prefix"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rabbitmq.New(tt.options)
			fault(t, err, tt.parts...)
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestOpenRefusesSubscriptions(t *testing.T) {
	b := open(t, rabbitmq.Options{URLs: []string{"amqp://127.0.0.1:1/"}})
	for _, tt := range []struct {
		name string
		sub  brokers.Subscription
		part string
	}{
		{"no topic", brokers.Subscription{}, "no topic"},
		{"no name", brokers.Subscription{Topics: []string{"a", ""}}, "no name"},
		{"twice", brokers.Subscription{Topics: []string{"a", "b", "a"}}, "twice"},
		{"too long", brokers.Subscription{Topics: []string{strings.Repeat("x", 250)}}, "250 bytes"},
		{"no dead-letter topic", brokers.Subscription{Topics: []string{"a"}, DeadLetters: map[string]string{"a": ""}}, `dead-letter topic of "a"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := b.Open(t.Context(), tt.sub)
			fault(t, err, tt.part)
		})
	}
}

func TestConnectFails(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		uri, err := amqp.ParseURI(url)
		if err != nil {
			t.Fatal(err)
		}
		wrong := func(change func(*amqp.URI)) string {
			uri := uri
			change(&uri)
			return uri.String()
		}
		sub := brokers.Subscription{Topics: []string{"test.never"}}
		check := func(options rabbitmq.Options, parts ...string) {
			t.Helper()
			_, err := open(t, options).Open(t.Context(), sub)
			fault(t, err, parts...)
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the error shows the password: %v", err)
			}
		}
		check(rabbitmq.Options{URLs: []string{wrong(func(u *amqp.URI) { u.Password = "s3cr3t" })}}, "check user and password")
		check(rabbitmq.Options{URLs: []string{url}, Credentials: func() (string, string) { return "nobody", "s3cr3t" }}, "check user and password")
		check(rabbitmq.Options{URLs: []string{wrong(func(u *amqp.URI) { u.Vhost = "test.missing" })}}, `vhost "test.missing"`, "create the vhost")

		b := open(t, rabbitmq.Options{URLs: []string{wrong(func(u *amqp.URI) { u.Port = 1; u.Password = "s3cr3t" })}})
		_, err = b.Open(t.Context(), sub)
		if err == nil || errors.Is(err, brokers.ErrMisconfigured) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("Open where nobody listens: error %v, want a temporary one without the password", err)
		}
		err = b.Publish(t.Context(), "test.never", brokers.Message{})
		if perr, ok := errors.AsType[*brokers.PublishError](err); !ok || len(perr.Failed) != 1 || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("Publish where nobody listens: error %v, want a *PublishError without the password", err)
		}

		b = open(t, rabbitmq.Options{URLs: []string{"amqp://127.0.0.1:1/", url, "amqp://127.0.0.1:2/"}})
		a := newAdmin(t, url)
		src, err := b.Open(t.Context(), brokers.Subscription{Topics: []string{a.topic("orders")}})
		if err != nil {
			t.Fatalf("Open with one good endpoint of three: %v", err)
		}
		src.Close(t.Context())
	})
}

// What exists with other arguments is refused, whether Open declares or
// verifies: it would void a promise.
func TestOpenRefusesOtherQueues(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		shelf := w.prefix + ".delay.v1.1000"
		for _, tt := range []struct {
			name  string
			queue string
			args  amqp.Table
			part  string
		}{
			{"classic", w.topic, amqp.Table{"x-queue-type": "classic"}, "x-"},
			{"no dead letters", w.topic, amqp.Table{"x-queue-type": "quorum"}, "x-dead-letter-exchange"},
			{"another delay", shelf, amqp.Table{
				"x-queue-type": "quorum", "x-message-ttl": int64(5), "x-dead-letter-exchange": "",
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			}, "x-message-ttl"},
			{"at most once", shelf, amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(1000), "x-dead-letter-exchange": ""}, "x-"},
		} {
			w.Run(tt.name, func(t *testing.T) {
				w.delete(tt.queue)
				err := w.do(func(ch *amqp.Channel) error {
					_, err := ch.QueueDeclare(tt.queue, true, false, false, false, tt.args)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, verify := range []bool{false, true} {
					b := open(t, rabbitmq.Options{URLs: []string{w.url}, Prefix: w.prefix, Verify: verify})
					_, err := b.Open(t.Context(), w.subscription(w.topic))
					fault(t, err, tt.queue, tt.part, "delete it when it is empty")
				}
				w.delete(tt.queue)
			})
		}
	})
}

func TestVerifyDeclaresNothing(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		b := open(w.T, rabbitmq.Options{URLs: []string{w.url}, Prefix: w.prefix, Verify: true})
		src, err := b.Open(w.Context(), w.subscription(w.topic))
		if err != nil {
			w.Fatalf("Open with Verify, after one without: %v", err)
		}
		src.Close(w.Context())
		missing := w.topic + ".missing"
		_, err = b.Open(w.Context(), w.subscription(missing))
		fault(w.T, err, missing, "Options.Verify")
		if err := w.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(missing, true, false, false, false, nil)
			return err
		}); err == nil {
			w.Errorf("Open with Verify declared %q", missing)
		}
	})
}
