package rabbitmq_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// inVhosts runs f on every broker, in a vhost of its own, where no worker was.
func inVhosts(t *testing.T, f func(w *world)) {
	each(t, func(t *testing.T, target livetest.Target) {
		uri, err := amqp.ParseURI(target.URL)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{admin: newAdmin(t, target.URL), url: target.URL, management: target.ManagementURL}
		uri.Vhost = w.admin.topic("vhost")
		w.manage("PUT", map[string]string{}, "vhosts", uri.Vhost)
		w.Cleanup(func() { w.manage("DELETE", nil, "vhosts", uri.Vhost) })
		w.manage("PUT", map[string]string{"configure": ".*", "write": ".*", "read": ".*"}, "permissions", uri.Vhost, uri.Username)
		w.url, w.prefix = uri.String(), uri.Vhost
		w.admin = newAdmin(t, w.url)
		f(w)
	})
}

// declared is what there is in the vhost of w, with the settings of each.
func (w *world) declared() (all []string) {
	w.Helper()
	for _, kind := range []string{"queues", "exchanges", "bindings"} {
		answer, err := http.Get(w.management + "api/" + kind + "/" + url.PathEscape(w.vhost()))
		if err != nil {
			w.Fatal(err)
		}
		var found []struct {
			Name, Source, Destination, Type string
			Arguments                       map[string]any
		}
		err = json.NewDecoder(answer.Body).Decode(&found)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			w.Fatalf("list %s: %s, %v", kind, answer.Status, err)
		}
		for _, f := range found {
			all = append(all, fmt.Sprintf("%s %+v", kind, f))
		}
	}
	slices.Sort(all)
	return all
}

// foreign queues, as others have them: a worker would take none of these.
var foreign = map[string]amqp.Table{
	"classic": {"x-message-ttl": int64(600_000), "x-dead-letter-exchange": "amq.topic"},
	"quorum":  {"x-queue-type": "quorum", "x-delivery-limit": int64(5), "x-overflow": "drop-head", "x-max-length": int64(5000)},
	"single":  {"x-single-active-consumer": true, "x-max-priority": int64(10)},

	"a name that leaves no room for one of retries" + strings.Repeat(".", 200): nil,
}

// A reader takes messages out of queues of any kind with the right to read alone,
// and leaves nothing behind.
func TestReadOnly(t *testing.T) {
	inVhosts(t, func(w *world) {
		sub := brokers.Subscription{InFlight: 10}
		for queue, args := range foreign {
			w.redeclare(queue, args)
			sub.Topics = append(sub.Topics, queue)
			for i := range 20 {
				w.foreign(queue, amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte(queue), DeliveryMode: amqp.Persistent})
			}
		}
		before := w.declared()
		var err error
		if w.source, err = open(w.T, w.options(w.user("^$", "^$", ".*"), false)).Open(w.Context(), sub); err != nil {
			w.Fatal(err)
		}
		for _, d := range w.receive(len(foreign)) {
			if errs := w.settle(release(d)); errs[0] != nil {
				w.Fatal(errs)
			}
		}
		for range 20 * len(foreign) {
			d := w.receive(1)[0]
			for _, end := range []brokers.Settlement{retry(d, 0), retry(d, time.Minute), {Delivery: d, Action: brokers.Reject}} {
				if err := w.settle(end)[0]; !errors.Is(err, brokers.ErrRefused) {
					w.Errorf("%s in %v: %v, want ErrRefused", end.Action, end.Delay, err)
				}
			}
			w.ack(d)
		}
		w.closeSource()
		for queue := range foreign {
			if n := w.depth(queue); n != 0 {
				w.Errorf("%d messages are left in %q", n, queue)
			}
		}
		if after := w.declared(); !slices.Equal(before, after) {
			w.Errorf("declared before:\n%s\nand after:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	})
}

// A reader of dead letters needs no more rights than the documentation lists.
func TestRightsOfReaders(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		dead := w.topic + ".dead"
		if err := w.broker.Publish(w.Context(), dead, brokers.Message{Body: []byte("letter")}); err != nil {
			w.Fatal(err)
		}
		w.closeSource()
		var err error
		if w.source, err = open(w.T, w.options(w.documented("reader"), false)).Open(w.Context(), brokers.Subscription{Topics: []string{dead}, InFlight: 10}); err != nil {
			w.Fatal(err)
		}
		w.ack(w.receive(1)...)
	})
}

// What has been given back often is no suspect of a reader, which has nothing to
// run, and no way to have it counted anew.
func TestReadOnlyReleasesOften(t *testing.T) {
	inVhosts(t, func(w *world) {
		w.redeclare("letters", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(100)})
		w.foreign("letters", amqp.Publishing{Body: []byte("a"), DeliveryMode: amqp.Persistent})
		b := open(w.T, w.options(w.user("^$", "^$", ".*"), false))
		var err error
		if w.source, err = b.Open(w.Context(), brokers.Subscription{Topics: []string{"letters"}, InFlight: 10}); err != nil {
			w.Fatal(err)
		}
		for range 30 {
			d := w.receive(1)[0]
			if d.Abandoned != 0 {
				w.Errorf("it is said to be abandoned %d times", d.Abandoned)
			}
			if err := w.settle(release(d))[0]; err != nil {
				w.Fatal(err)
			}
		}
		w.ack(w.receive(1)...)
	})
}

// What a reader holds is bounded by InFlight, however fast it is: its death is
// charged to all of that, and a limit of the queue may end what is charged often.
func TestReadOnlyPrefetch(t *testing.T) {
	inVhosts(t, func(w *world) {
		const queue, messages, inFlight = "letters", 3000, 50
		w.redeclare(queue, amqp.Table{"x-queue-type": "quorum"})
		w.broker = open(w.T, w.options(w.url, false))
		w.number(queue, 0, messages)
		var err error
		if w.source, err = w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{queue}, InFlight: inFlight}); err != nil {
			w.Fatal(err)
		}
		for taken := 0; taken < messages; {
			ds := w.receive(1)
			taken += len(ds)
			if left := w.depth(queue); taken%50 == 0 && left < messages-taken-inFlight {
				w.Fatalf("%d of %d messages were handed out, and only %d are left: more than %d are buffered", taken, messages, left, inFlight)
			}
			w.settleAll(ds)
		}
	})
}

// A reader that keeps the order holds as much as any other, also of a queue with a
// single active consumer.
func TestReadOnlyInOrder(t *testing.T) {
	inVhosts(t, func(w *world) {
		const queue, inFlight = "letters", 500
		w.redeclare(queue, amqp.Table{"x-single-active-consumer": true})
		w.broker = open(w.T, w.options(w.url, false))
		w.number(queue, 0, 2*inFlight)
		var err error
		if w.source, err = w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{queue}, InFlight: inFlight, Ordered: true}); err != nil {
			w.Fatal(err)
		}
		for next := range 2 {
			ds := w.receive(inFlight)
			w.inOrder(ds, next*inFlight)
			w.settleAll(ds)
		}
	})
}

// A stream never loses what is read, and what deletes itself loses what is not. With
// no more than the right to read, the latter goes unseen.
func TestReadOnlyRefuses(t *testing.T) {
	inVhosts(t, func(w *world) {
		w.redeclare("classic", nil)
		w.redeclare("stream", amqp.Table{"x-queue-type": "stream"})
		for _, durable := range []bool{true, false} {
			if err := w.do(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(fmt.Sprintf("brief-%t", durable), durable, true, false, false, nil)
				return err
			}); err != nil {
				w.Fatal(err)
			}
		}
		before := w.declared()
		reader := w.user("^$", "^$", ".*")
		for _, tt := range []struct{ url, queue, says string }{
			{w.url, "missing", "create what is missing"},
			{reader, "missing", "create what is missing"},
			{w.url, "stream", "it is a stream"},
			{reader, "stream", "it is a stream"},
			{w.url, "brief-true", "deletes itself"},
			{w.url, "brief-false", "deletes itself"},
			{w.user(".*", ".*", "^$"), "classic", "grant the user the rights"},
		} {
			b := open(w.T, rabbitmq.Options{URLs: []string{tt.url}})
			_, err := b.Open(w.Context(), brokers.Subscription{Topics: []string{tt.queue}, InFlight: 10})
			fault(w.T, err, `queue "`+tt.queue+`"`, tt.says)
		}
		if after := w.declared(); !slices.Equal(before, after) {
			w.Errorf("declared before:\n%s\nand after:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	})
}
