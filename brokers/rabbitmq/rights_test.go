package rabbitmq_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// manage calls the management API of the broker of w. Parts of path are escaped.
func (w *world) manage(method string, body any, path ...string) {
	w.Helper()
	if w.management == "" {
		if os.Getenv("CI") == "true" {
			w.Fatal("this test needs the management API of the broker")
		}
		w.Skip("this test needs the management API of the broker: make up prints its address")
	}
	target := w.management + "api"
	for _, part := range path {
		target += "/" + url.PathEscape(part)
	}
	text, err := json.Marshal(body)
	if err != nil {
		w.Fatal(err)
	}
	request, err := http.NewRequest(method, target, bytes.NewReader(text))
	if err != nil {
		w.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode >= 300 {
		w.Fatalf("%s %s: %s", method, path, answer.Status)
	}
}

func (w *world) vhost() string {
	uri, err := amqp.ParseURI(w.url)
	if err != nil {
		w.Fatal(err)
	}
	return uri.Vhost
}

// user creates a user with these rights, and returns the URL for it.
func (w *world) user(configure, write, read string) string {
	w.Helper()
	name := "u." + w.prefix + "." + time.Now().Format("150405.000000000")
	w.manage("PUT", map[string]string{"password": "s3cr3t", "tags": ""}, "users", name)
	w.Cleanup(func() { w.manage("DELETE", nil, "users", name) })
	w.manage("PUT", map[string]string{"configure": configure, "write": write, "read": read}, "permissions", w.vhost(), name)
	uri, err := amqp.ParseURI(w.url)
	if err != nil {
		w.Fatal(err)
	}
	uri.Username, uri.Password = name, "s3cr3t"
	return uri.String()
}

// options are those of a worker in this world at url.
func (w *world) options(url string, verify bool) rabbitmq.Options {
	return rabbitmq.Options{URLs: []string{url}, Prefix: w.prefix, Verify: verify}
}

// opens demands that a worker with these options can open the subscription.
func (w *world) opens(options rabbitmq.Options) brokers.Source {
	w.Helper()
	src, err := open(w.T, options).Open(w.Context(), w.subscription(w.topic))
	if err != nil {
		w.Fatalf("Open: %v", err)
	}
	return src
}

// noted demands that src has these findings and no others: severity, queue and
// setting of each.
func (w *world) noted(src brokers.Source, want ...string) {
	w.Helper()
	var got []string
	for _, f := range src.Capabilities().Findings {
		got = append(got, strings.TrimSpace(fmt.Sprint(f.Severity, " ", f.Topic, " ", f.Setting)))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("findings %q, want %q", got, want)
	}
}

// refuses demands that it cannot, and that the error says every part.
func (w *world) refuses(options rabbitmq.Options, parts ...string) {
	w.Helper()
	_, err := open(w.T, options).Open(w.Context(), w.subscription(w.topic))
	fault(w.T, err, parts...)
}

// What a user has no right to look at is said, and taken.
func TestRightsToVerify(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait, dead := w.prefix+".delay.v2.250", w.topic+".dead"
		for _, verify := range []bool{false, true} {
			src := w.opens(w.options(w.user("^$", ".*", ".*"), verify))
			if n := len(src.Capabilities().Findings); n < 10 {
				w.Errorf("%d findings for a user who may compare nothing", n)
			}
			src.Close(w.Context())

			src = w.opens(w.options(w.user(`^(?!.*delay\.v2\.250$)`, ".*", ".*"), verify))
			w.noted(src, "unverified "+wait, "unverified "+wait) // queue and exchange
			src.Close(w.Context())

			src = w.opens(w.options(w.user(".*", `^(?!.*\.dead$)`, ".*"), verify))
			w.noted(src, "unverified "+dead, "unverified "+dead) // two bindings
			src.Close(w.Context())
		}
		w.delete(dead)
		uses := w.user("^$", ".*", ".*")
		w.refuses(w.options(uses, true), dead, "no such queue")
		w.refuses(w.options(uses, false), dead, "grant the user the rights")
	})
}

// permissions are the commands that the documentation has for users.
var permissions = regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p / (\S+) '(.*)' '(.*)' '(.*)'$`)

// documented creates a user with the rights that the documentation gives it, to
// the names of this world, and returns the URL for it.
func (w *world) documented(user string) string {
	w.Helper()
	page, err := os.ReadFile("../../docs/reference/rabbitmq.md")
	if err != nil {
		w.Fatal(err)
	}
	names := strings.NewReplacer(
		"orders-dead", regexp.QuoteMeta(w.topic+".dead"), "orders", regexp.QuoteMeta(w.topic),
		`redrive\.`, regexp.QuoteMeta(w.prefix+"."), "shop", regexp.QuoteMeta(w.shop()),
	)
	for _, command := range permissions.FindAllStringSubmatch(string(page), -1) {
		if command[1] == user {
			return w.user(names.Replace(command[2]), names.Replace(command[3]), names.Replace(command[4]))
		}
	}
	w.Fatalf("the documentation has no rights for %q", user)
	return ""
}

// shop is an exchange of the producers.
func (w *world) shop() string { return w.prefix + ".shop" }

// forbidden demands that the broker refuses f to the user of url.
func (w *world) forbidden(what, url string, f func(ch *amqp.Channel) error) {
	w.Helper()
	err := newAdmin(w.T, url).do(f)
	if e, ok := errors.AsType[*amqp.Error](err); !ok || e.Code != amqp.AccessRefused {
		w.Errorf("%s: error %v, want that the broker refuses access", what, err)
	}
}

// A worker needs no more rights than the documentation lists, and with these it
// reaches no queue of anybody else.
func TestRightsOfWorkers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.clean() // for the first worker to declare everything
		stranger, dead := w.topic+".stranger", w.topic+".dead"
		w.Cleanup(func() { w.delete(stranger) })
		w.redeclare(stranger, amqp.Table{"x-queue-type": "quorum"})
		for letters, tt := range []struct {
			user   string
			verify bool
		}{
			{"worker", false},
			{"worker", true},
			{"verifier", true},
		} {
			url := w.documented(tt.user)
			b := open(w.T, w.options(url, tt.verify))
			src, err := b.Open(w.Context(), w.subscription(w.topic))
			if err != nil {
				w.Fatalf("%+v: Open: %v", tt, err)
			}
			w.source = src
			w.publish("a")
			d := w.receive(1)[0]
			for _, delay := range []time.Duration{300 * time.Millisecond, 2 * time.Second} { // the longer one goes to a delay queue
				if err := w.settle(retry(d, delay))[0]; err != nil {
					w.Fatalf("%+v: Retry after %v: %v", tt, delay, err)
				}
				d = w.receive(1)[0]
			}
			if err := b.Publish(w.Context(), dead, brokers.Message{ID: "a", Body: []byte("letter")}); err != nil {
				w.Fatalf("%+v: dead letter: %v", tt, err)
			}
			w.ack(d)
			w.await("the dead letter is there", func() bool { return w.depth(dead) == letters+1 })

			for _, queue := range []string{stranger, w.topic, w.retries()} {
				fault(w.T, b.Publish(w.Context(), queue, brokers.Message{Body: []byte("b")}), "grant the user the rights", "amq.default")
			}
			w.forbidden("read from a stranger", url, func(ch *amqp.Channel) error {
				_, _, err := ch.Get(stranger, false)
				return err
			})
			w.forbidden("lead copies to a stranger", url, func(ch *amqp.Channel) error {
				return ch.QueueBind(stranger, stranger, w.prefix+".copy.v1", false, nil)
			})
			w.closeSource()
		}
		for _, queue := range []string{stranger, w.topic, w.retries()} {
			if n := w.depth(queue); n != 0 {
				w.Errorf("%d messages in %q, want none", n, queue)
			}
		}
	})
}

// A producer can publish with the rights that the documentation lists, and no more
// than that.
func TestRightsOfProducers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.Cleanup(func() { w.deleteExchanges(w.shop()) })
		if err := w.do(func(ch *amqp.Channel) error {
			if err := ch.ExchangeDeclare(w.shop(), "topic", true, false, false, false, nil); err != nil {
				return err
			}
			return ch.QueueBind(w.topic, "order.*", w.shop(), false, nil)
		}); err != nil {
			w.Fatal(err)
		}
		producer, outsider := w.documented("producer"), w.documented("outsider")
		message := brokers.Message{ID: "a", Body: []byte("a")}
		if err := open(w.T, w.options(producer, false)).Publish(w.Context(), w.topic, message); err != nil {
			w.Fatalf("Publish: %v", err)
		}
		w.ack(w.receive(1)...)

		if err := newAdmin(w.T, outsider).do(func(ch *amqp.Channel) error {
			return ch.Publish(w.shop(), "order.placed", true, false, amqp.Publishing{MessageId: "b", Body: []byte("b"), DeliveryMode: amqp.Persistent})
		}); err != nil {
			w.Fatal(err)
		}
		w.ack(w.receive(1)...)
		fault(w.T, open(w.T, w.options(outsider, false)).Publish(w.Context(), w.topic, message), "grant the user the rights", "amq.default")
		for _, url := range []string{producer, outsider} {
			w.refuses(w.options(url, false), "grant the user the rights", w.topic)
			w.forbidden("read from the topic", url, func(ch *amqp.Channel) error {
				_, _, err := ch.Get(w.topic, false)
				return err
			})
		}
	})
}

// Whoever may declare nothing is told what is missing, as where a worker may not
// (Options.Verify).
func TestInspectWithoutRights(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		b := open(w.T, w.options(w.user("^$", ".*", ".*"), false))
		found, err := b.Inspect(w.Context(), w.subscription(w.topic+".missing"))
		missing := slices.DeleteFunc(found, func(f inspect.Finding) bool {
			return !f.Missing || f.Severity != inspect.Blocking || !strings.Contains(f.Why, "the user may not declare")
		})
		if err != nil || len(missing) != 3 { // of the topic, its retries and its dead letters
			w.Errorf("found %v, error %v, want 3 queues that are missing", found, err)
		}
	})
}

// A binding that is gone is back after Open, and it takes no right to
// configure.
func TestVerifyBinds(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait, dead := w.prefix+".delay.v2.2000", w.prefix+".dead.v1"
		for _, unbind := range []func(*amqp.Channel) error{
			func(ch *amqp.Channel) error { return ch.QueueUnbind(wait, "", wait, nil) },
			func(ch *amqp.Channel) error { return ch.QueueUnbind(w.topic+".dead", w.topic, dead, nil) },
		} {
			if err := w.do(unbind); err != nil {
				w.Fatal(err)
			}
		}
		w.source = w.opens(w.options(w.user("^$", ".*", ".*"), true))
		w.publish("a")
		if err := w.settle(retry(w.receive(1)[0], 2*time.Second))[0]; err != nil {
			w.Errorf("Retry over the delay queue that was not bound: %v", err)
		}
		w.ack(w.receive(1)...)
		if err := w.do(func(ch *amqp.Channel) error {
			return ch.Publish(dead, w.topic, true, false, amqp.Publishing{Body: []byte("b")})
		}); err != nil {
			w.Fatal(err)
		}
		w.await("what the broker gives up reaches the dead-letter queue", func() bool { return w.depth(w.topic+".dead") == 1 })
	})
}

// What a policy sets AMQP does not show. With the management API it counts.
func TestPolicies(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.redeclare(w.topic, amqp.Table{"x-queue-type": "quorum"})
		var policy string
		api := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			switch {
			case user != "guest" || password != "guest":
				answer.WriteHeader(http.StatusUnauthorized)
			case r.URL.EscapedPath() == "/api/queues/"+url.PathEscape(w.vhost())+"/"+w.topic:
				fmt.Fprintf(answer, `{"name": %q, "arguments": {"x-queue-type": "quorum"}%s}`, w.topic, policy)
			default:
				answer.WriteHeader(http.StatusNotFound)
			}
		}))
		defer api.Close()
		options := w.options(w.url, false)
		options.ManagementURL = api.URL + "/"
		for _, tt := range []struct {
			policy string
			found  []string // severities
			refuse string   // what is said if it is refused
		}{
			{`, "effective_policy_definition": {"dead-letter-exchange": "x", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}`, nil, ""},
			{`, "effective_policy_definition": []`, []string{"noted"}, ""},
			{"", []string{"noted", "unverified"}, ""}, // no statistics
			{`, "effective_policy_definition": {"max-length": 1000}`, nil, "oldest messages are lost"},
			{`, "effective_policy_definition": {"message-ttl": 1000}`, nil, "x-message-ttl is 1000"},
			{`, "effective_policy_definition": {"expires": 100000}`, nil, "x-expires is 100000"},
			{`, "effective_policy_definition": {"delivery-limit": 3}`, nil, "x-delivery-limit is 3"},
			{`, "effective_policy_definition": `, nil, "management API"},
		} {
			policy = tt.policy
			src, err := open(w.T, options).Open(w.Context(), w.subscription(w.topic))
			if tt.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refuse) || !strings.Contains(err.Error(), w.topic) {
					w.Errorf("%s: error %v, want %q and the name of the queue", tt.policy, err, tt.refuse)
				}
				continue
			}
			if err != nil {
				w.Errorf("%s: %v", tt.policy, err)
				continue
			}
			var found []string
			for _, f := range src.Capabilities().Findings {
				found = append(found, f.Severity.String())
			}
			if !slices.Equal(found, tt.found) {
				w.Errorf("%s: findings %v, want %v", tt.policy, src.Capabilities().Findings, tt.found)
			}
			src.Close(w.Context())
		}
		options.ManagementURL = strings.Replace(api.URL, "http://", "http://guest:s3cr3t@", 1)
		_, err := open(w.T, options).Open(w.Context(), w.subscription(w.topic))
		if err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "s3cr3t") {
			w.Errorf("error %v, want 401, and no password", err)
		}
	})
}

// setPolicy matches the command in a finding, which an operator would run.
var setPolicy = regexp.MustCompile(`rabbitmqctl set_policy -p '([^']*)'(?: --priority (\d+))? --apply-to queues '([^']*)' '([^']*)' '([^']*)'`)

// obey sets the policy of the command in err.
func (w *world) obey(err error) {
	w.Helper()
	parts := setPolicy.FindStringSubmatch(fmt.Sprint(err))
	if parts == nil {
		w.Fatalf("the error has no command that sets a policy: %v", err)
	}
	var definition map[string]any
	if err := json.Unmarshal([]byte(parts[5]), &definition); err != nil {
		w.Fatal(err)
	}
	priority, _ := strconv.Atoi(parts[2])
	w.setPolicy("policies", parts[3], parts[4], priority, definition)
}

func (w *world) setPolicy(kind, name, pattern string, priority int, definition map[string]any) {
	w.Helper()
	w.manage("PUT", map[string]any{"pattern": pattern, "definition": definition, "priority": priority, "apply-to": "queues"}, kind, w.vhost(), name)
	w.Cleanup(func() { w.unset(kind, name) })
}

// unset deletes a policy, if it is there.
func (w *world) unset(kind, name string) {
	target := w.management + "api/" + kind + "/" + url.PathEscape(w.vhost()) + "/" + url.PathEscape(name)
	if request, err := http.NewRequest(http.MethodDelete, target, nil); err == nil {
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
		}
	}
}

// A queue drops messages after three deliveries. Open refuses it, with the
// command for a policy that mends it. The next Open sees that policy, on a
// broker without statistics. It also sees policies that lose messages, of users
// and of operators.
func TestPoliciesWithoutStatistics(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.redeclare(w.topic, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(3)})
		blind := w.options(w.url, false)
		seeing := blind
		seeing.ManagementURL = w.management
		open1 := func(options rabbitmq.Options) (brokers.Source, error) {
			return open(w.T, options).Open(w.Context(), w.subscription(w.topic))
		}
		_, err := open1(seeing)
		fault(w.T, err, "x-delivery-limit is 3, and should be 20", "no dead-letter exchange", "rabbitmqctl set_policy", `"dead-letter-exchange":"`+w.prefix+`.dead.v1"`)
		_, err = open1(blind)
		fault(w.T, err, "rabbitmqctl set_policy", "unless a policy says otherwise", "Options.ManagementURL")
		w.obey(err)
		_, err = open1(blind)
		fault(w.T, err, "x-delivery-limit is 3")
		src, err := open1(seeing)
		if err != nil {
			w.Fatalf("Open with the policy: %v", err)
		}
		w.noted(src, "noted "+w.topic+" x-delivery-limit")
		src.Close(w.Context())

		w.publish("given back")
		w.await("the broker keeps the message that it gives up", func() bool {
			w.do(func(ch *amqp.Channel) error {
				d, ok, err := ch.Get(w.topic, false)
				if ok && err == nil {
					err = d.Nack(false, true)
				}
				return err
			})
			return w.depth(w.topic+".dead") == 1
		})

		w.setPolicy("operator-policies", w.prefix+".cap", "^"+regexp.QuoteMeta(w.topic)+"$", 0, map[string]any{"message-ttl": 3600000})
		_, err = open1(seeing)
		fault(w.T, err, "x-message-ttl is 3600000", "clear_operator_policy", w.prefix+".cap")
		w.unset("operator-policies", w.prefix+".cap")

		w.setPolicy("policies", w.prefix+".all", "^(?!redrive)"+regexp.QuoteMeta(w.topic)+"$", 30, map[string]any{"expires": 3600000})
		_, err = open1(seeing)
		fault(w.T, err, "x-expires is 3600000", "--priority 31", "x-delivery-limit is 3")
		for range 2 { // each command keeps the earlier settings, and the second one mends the rest
			w.obey(err)
			if src, err = open1(seeing); err == nil {
				break
			}
		}
		if err != nil {
			w.Fatalf("Open after both commands: %v", err)
		}
		src.Close(w.Context())

		w.redeclare(w.topic, with(w.topicArgs(), amqp.Table{"x-message-ttl": int64(3600000)}))
		_, err = open1(seeing)
		fault(w.T, err, "x-message-ttl is 3600000", "arguments cannot be changed")
		if strings.Contains(err.Error(), "policy") {
			w.Errorf("the error names a policy, but an argument is set: %v", err)
		}
	})
}

// redeclare puts another queue in the place of one.
func (w *world) redeclare(queue string, args amqp.Table) {
	w.Helper()
	w.delete(queue)
	if err := w.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		return err
	}); err != nil {
		w.Fatalf("declare queue %q: %v", queue, err)
	}
}
