package rabbitmq_test

import (
	"errors"
	"maps"
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
		{"another scheme", rabbitmq.Options{URLs: []string{"amqps://a", "http://user:s3cr3t@host/"}}, []string{"entry 1 of Options.URLs"}},
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
		{"too long", brokers.Subscription{Topics: []string{strings.Repeat("x", 250)}, MaxAttempts: 1}, "250 bytes"},
		{"too long to read", brokers.Subscription{Topics: []string{strings.Repeat("x", 256)}}, "256 bytes"},
		{"no dead-letter topic", brokers.Subscription{Topics: []string{"a"}, DeadLetters: map[string]string{"a": ""}}, `dead-letter topic of "a"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := b.Open(t.Context(), tt.sub)
			fault(t, err, tt.part)
		})
	}
}

// with returns the arguments of a queue, with some of them changed. A nil value
// leaves one out.
func with(args amqp.Table, changes amqp.Table) amqp.Table {
	args = maps.Clone(args)
	for name, value := range changes {
		if delete(args, name); value != nil {
			args[name] = value
		}
	}
	return args
}

func (w *world) topicArgs() amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-overflow": "reject-publish",
		"x-dead-letter-exchange": w.prefix + ".dead.v1", "x-dead-letter-routing-key": w.topic, "x-dead-letter-strategy": "at-least-once",
	}
}

func (w *world) delayArgs(ms int64) amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-message-ttl": ms, "x-overflow": "reject-publish",
		"x-dead-letter-exchange": w.prefix + ".return.v1", "x-dead-letter-strategy": "at-least-once",
	}
}

// What would lose messages is refused, whether Open declares or verifies, and
// nothing is created then.
func TestOpenRefusesOtherQueues(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait, dead := w.prefix+".delay.v2.1000", w.topic+".dead"
		for _, tt := range []struct {
			name  string
			queue string
			args  amqp.Table
			parts []string
		}{
			{"stream", w.topic, amqp.Table{"x-queue-type": "stream"}, []string{"stream"}},
			{"classic that expires", w.topic, amqp.Table{"x-message-ttl": int64(60000)}, []string{"x-message-ttl is 60000"}},
			{"classic that drops its head", w.topic, amqp.Table{"x-max-length": int64(10)}, []string{`x-overflow is drop-head`, "x-max-length of 10"}},
			{"dead letters that expire", dead, amqp.Table{"x-message-ttl": int64(60000)}, []string{"x-message-ttl is 60000"}},
			{"low limit", w.topic, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(3)}, []string{"x-delivery-limit is 3, and should be 20"}},
			{"drops what it has no room for", w.topic, with(w.topicArgs(), amqp.Table{
				"x-overflow": "drop-head", "x-max-length": int64(5), "x-dead-letter-strategy": "at-most-once",
			}), []string{`x-overflow is drop-head`}},
			{"expires", w.topic, with(w.topicArgs(), amqp.Table{"x-expires": int64(3600000)}), []string{"x-expires is 3600000"}},
			{"returns that expire", w.retries(), with(w.topicArgs(), amqp.Table{"x-message-ttl": int64(60000)}), []string{"x-message-ttl is 60000, and should be not set"}},
			{"returns on a classic queue", w.retries(), nil, []string{"x-queue-type is classic, and should be quorum"}},
			{"wait of another delay", wait, w.delayArgs(5), []string{"x-message-ttl is 5, and should be 1000"}},
			{"wait that returns at most once", wait, with(w.delayArgs(1000), amqp.Table{"x-dead-letter-strategy": nil}), []string{"x-dead-letter-strategy is not set"}},
		} {
			w.Run(tt.name, func(t *testing.T) {
				w := &world{admin: &admin{t, w.conn}, topic: w.topic, prefix: w.prefix, url: w.url}
				w.clean()
				w.redeclare(tt.queue, tt.args)
				for _, verify := range []bool{false, true} {
					w.refuses(w.options(w.url, verify), append(tt.parts, tt.queue)...)
				}
				for _, queue := range []string{w.topic, dead, w.retries(), wait, w.prefix + ".unroutable.v1"} {
					if queue != tt.queue && w.exists(queue) {
						t.Errorf("a refused Open has created the queue %q", queue)
					}
				}
				w.delete(tt.queue)
			})
		}
		w.redeclare(w.topic, amqp.Table{"x-message-ttl": int64(60000)})
		w.redeclare(dead, amqp.Table{"x-expires": int64(60000)})
		w.refuses(w.options(w.url, false), w.topic, "x-message-ttl", dead, "x-expires")
		for _, tt := range []struct {
			durable, autoDelete bool
			part                string
		}{{false, false, "durable"}, {true, true, "auto_delete"}} {
			w.delete(w.topic, dead)
			if err := w.do(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(w.topic, tt.durable, tt.autoDelete, false, false, nil)
				return err
			}); err != nil {
				w.Fatal(err)
			}
			w.refuses(w.options(w.url, false), w.topic, tt.part, "is lost when")
		}
	})
}

// exists reports whether there is a queue.
func (w *world) exists(queue string) bool {
	return w.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}) == nil
}

// What loses nothing is taken as it is, and what it cannot give is said.
func TestOpenTakesQueues(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait, dead := w.prefix+".delay.v2.250", w.topic+".dead"
		const policies = " policy"
		drops := w.drops()
		letters := []string{"unverified " + dead + policies}
		if drops {
			letters = append(letters, "noted "+dead+" x-delivery-limit")
		}
		for _, tt := range []struct {
			name  string
			queue string
			args  amqp.Table
			found []string
		}{
			{"classic", w.topic, nil, []string{"noted " + w.topic + " x-queue-type", "unverified " + w.topic + policies}},
			{"classic with priorities", w.topic, amqp.Table{"x-queue-type": "classic", "x-max-priority": int64(9), "x-dead-letter-exchange": "elsewhere"},
				[]string{"noted " + w.topic + " x-queue-type", "unverified " + w.topic + policies}},
			{"quorum without arguments", w.topic, amqp.Table{"x-queue-type": "quorum"},
				[]string{"noted " + w.topic + " x-dead-letter-exchange", "unverified " + w.topic + policies}},
			{"quorum as Spring has it", w.topic, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "amq.direct", "x-delivery-limit": int64(3)},
				[]string{"noted " + w.topic + " x-delivery-limit", "noted " + w.topic + " x-dead-letter-strategy", "unverified " + w.topic + policies}},
			{"classic dead letters", dead, nil, []string{"noted " + dead + " x-queue-type", "unverified " + dead + policies}},
			{"quorum dead letters", dead, amqp.Table{"x-queue-type": "quorum"}, letters},
			{"limits of length", w.topic, with(w.topicArgs(), amqp.Table{"x-max-length": int64(1000), "x-max-length-bytes": int64(1 << 30)}), []string{"unverified " + w.topic + policies}},
			{"single active consumer", w.topic, with(w.topicArgs(), amqp.Table{"x-single-active-consumer": true}), []string{"unverified " + w.topic + policies}},
			{"place in the cluster", w.topic, with(w.topicArgs(), amqp.Table{"x-queue-leader-locator": "client-local", "x-quorum-initial-group-size": int64(1)}), []string{"unverified " + w.topic + policies}},
			{"another limit", w.topic, with(w.topicArgs(), amqp.Table{"x-delivery-limit": int64(50)}), []string{"unverified " + w.topic + policies}},
			{"no limit", w.topic, with(w.topicArgs(), amqp.Table{"x-delivery-limit": nil}), []string{"unverified " + w.topic + policies}},
			{"own dead-letter exchange", w.topic, with(w.topicArgs(), amqp.Table{"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": nil}), []string{"unverified " + w.topic + policies}},
			{"returns", w.retries(), with(w.topicArgs(), amqp.Table{"x-max-length": int64(1000)}), nil},
			{"dead letters", dead, with(w.topicArgs(), amqp.Table{"x-dead-letter-routing-key": dead}), []string{"unverified " + dead + policies}},
			{"wait", wait, with(w.delayArgs(250), amqp.Table{"x-max-length": int64(1000), "x-quorum-initial-group-size": int64(1)}), nil},
		} {
			w.Run(tt.name, func(t *testing.T) {
				w := &world{admin: &admin{t, w.conn}, topic: w.topic, prefix: w.prefix, url: w.url, broker: w.broker}
				w.redeclare(tt.queue, tt.args)
				for _, verify := range []bool{true, false} {
					w.source = w.opens(w.options(w.url, verify))
					w.noted(w.source, tt.found...)
					w.publish("a")
					d := w.receive(1)[0]
					for range 2 { // to the delay queues, and held
						d = w.again(d)
					}
					if err := w.broker.Publish(t.Context(), dead, brokers.Message{ID: "a", Body: []byte("letter")}); err != nil {
						t.Errorf("dead letter: %v", err)
					}
					w.ack(d)
					w.closeSource()
					w.purge(dead)
				}
				w.delete(tt.queue)
				w.opens(w.options(w.url, false)).Close(w.Context())
			})
		}
	})
}

// drops reports whether the broker limits deliveries by default.
func (w *world) drops() bool {
	version, _ := w.conn.Properties["version"].(string)
	return !strings.HasPrefix(version, "3.")
}

func (w *world) purge(queue string) {
	w.do(func(ch *amqp.Channel) error {
		_, err := ch.QueuePurge(queue, false)
		return err
	})
}

func TestOpenRefusesOtherExchanges(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		for _, tt := range []struct {
			exchange, kind string
			durable        bool
		}{
			{w.prefix + ".dead.v1", "topic", true},
			{w.prefix + ".dead.v1", "direct", false},
			{w.prefix + ".return.v1", "direct", true}, // without its alternate
			{w.prefix + ".copy.v1", "fanout", true},
			{w.prefix + ".delay.v2.1000", "direct", true},
			{w.prefix + ".delay.v2.1000", "headers", true},
		} {
			w.deleteExchanges(tt.exchange)
			if err := w.do(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(tt.exchange, tt.kind, tt.durable, false, false, false, nil)
			}); err != nil {
				w.Fatal(err)
			}
			for _, verify := range []bool{false, true} {
				w.refuses(w.options(w.url, verify), tt.exchange, "delete it when it is empty")
			}
			w.deleteExchanges(tt.exchange)
			w.opens(w.options(w.url, false)).Close(w.Context())
		}
	})
}

// Whoever looks at dead letters by getting and requeueing them must not make
// the broker take them away.
func TestLookingAtDeadLetters(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		dead := w.topic + ".dead"
		if err := w.broker.Publish(w.Context(), dead, brokers.Message{Body: []byte("letter")}); err != nil {
			w.Fatal(err)
		}
		look := func() (found bool) {
			if err := w.do(func(ch *amqp.Channel) error {
				d, ok, err := ch.Get(dead, false)
				if found = ok; ok {
					err = d.Nack(false, true)
				}
				return err
			}); err != nil {
				w.Fatal(err)
			}
			return found
		}
		for range 50 {
			w.await("the letter can be looked at", look)
		}
		src, err := w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{dead}, InFlight: 1})
		if err != nil {
			w.Fatalf("Open the dead-letter queue: %v", err)
		}
		w.closeSource()
		w.source = src
		w.ack(w.receive(1)...)
	})
}

func TestVerifyMissesNothing(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait := w.prefix + ".delay.v2.500"
		for _, tt := range []struct {
			name   string
			remove func(...string)
		}{
			{w.topic, w.delete},
			{w.retries(), w.delete},
			{w.topic + ".dead", w.delete},
			{wait, w.delete},
			{wait, w.deleteExchanges},
			{w.prefix + ".dead.v1", w.deleteExchanges},
			{w.prefix + ".return.v1", w.deleteExchanges},
			{w.prefix + ".copy.v1", w.deleteExchanges}, // as before redrive had it
			{w.prefix + ".unroutable.v1", w.deleteExchanges},
			{w.prefix + ".unroutable.v1", w.delete},
		} {
			tt.remove(tt.name)
			for range 2 { // as it is not declared
				w.refuses(w.options(w.url, true), tt.name, "no such", "Options.Verify")
			}
			w.opens(w.options(w.url, false)).Close(w.Context())
			w.opens(w.options(w.url, true)).Close(w.Context())
		}
	})
}

// Workers of before there was an exchange of copies published to queues by their
// names. What they have left comes back, and they may go on beside newer ones.
func TestTakesOverFromOlderWorkers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.deleteExchanges(w.prefix + ".copy.v1")
		older := func(exchange, id string) {
			if err := w.do(func(ch *amqp.Channel) error {
				return ch.Publish(exchange, w.retries(), true, false, amqp.Publishing{
					MessageId: id, Body: []byte(id), DeliveryMode: amqp.Persistent, Headers: amqp.Table{"redrive-attempt": "3"},
				})
			}); err != nil {
				w.Fatal(err)
			}
		}
		older(w.prefix+".delay.v2.2000", "delayed")
		older("", "short")
		w.source = w.open(w.topic)
		older("", "beside it")
		for _, attempt := range []int{3, 4} {
			ds := w.receive(3)
			for _, d := range ds {
				if d.Meta().Attempt != attempt {
					w.Errorf("%q is at attempt %d, want %d", d.Message.Body, d.Meta().Attempt, attempt)
				}
			}
			if attempt == 4 {
				w.ack(ds...)
			} else if err := errors.Join(w.settle(retry(ds[0], 0), retry(ds[1], 300*time.Millisecond), retry(ds[2], 2*time.Second))...); err != nil {
				w.Fatalf("Retry: %v", err)
			}
		}
		if err := w.broker.Publish(w.Context(), w.topic+".dead", brokers.Message{Body: []byte("letter")}); err != nil {
			w.Fatal(err)
		}
	})
}

// Each queue has a channel. A connection that has too few says what to do.
func TestTooFewChannels(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		other := w.admin.topic("refunds")
		w.Cleanup(func() { w.delete(other, other+".dead", w.prefix+".retry.v1."+other) })
		b := open(w.T, w.options(w.url+"?channel_max=3", false)) // one is for requests
		if _, err := b.Open(w.Context(), w.subscription(w.topic)); err != nil {
			w.Errorf("Open of a topic on three channels: %v", err)
		}
		_, err := b.Open(w.Context(), w.subscription(w.topic, other))
		if !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "raise channel_max") {
			w.Errorf("Open of two topics on three channels: %v, want that it is misconfigured, and the fix", err)
		}
	})
}
