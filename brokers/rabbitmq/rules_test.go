package rabbitmq

import (
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRules(t *testing.T) {
	n := names{"redrive"}
	net := n.topicArgs("q", deliveryLimit)
	topic := queue{"q", entry, true, net}
	unkept := queue{"q", entry, false, n.topicArgs("q", unlimited)}
	dead := queue{"q-dead", letters, false, n.topicArgs("q-dead", unlimited)}
	quorum := func(args amqp.Table) amqp.Table {
		all := amqp.Table{argType: typeQuorum}
		for name, value := range args {
			all[name] = value
		}
		return all
	}
	for _, tt := range []struct {
		name string
		q    quality
		want []string // severity and setting
	}{
		{"as declared", quality{queue: topic, kind: typeQuorum, args: net}, nil},
		{"bare quorum on RabbitMQ 4", quality{queue: topic, kind: typeQuorum, args: quorum(nil), drops: true}, []string{"noted x-dead-letter-exchange", "unverified policy"}},
		{"its policies were read", quality{queue: topic, kind: typeQuorum, args: quorum(nil), read: true}, []string{"noted x-dead-letter-exchange"}},
		{"no dead letters are wanted", quality{queue: unkept, kind: typeQuorum, args: quorum(nil), read: true}, nil},
		{"19 deliveries and the end", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(19)}), read: true},
			[]string{"refused x-delivery-limit", "noted x-dead-letter-exchange"}},
		{"20 deliveries", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(20)}), read: true}, []string{"noted x-dead-letter-exchange"}},
		{"-1 on RabbitMQ 3 is less than 0", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(-1)}), read: true},
			[]string{"refused x-delivery-limit", "noted x-dead-letter-exchange"}},
		{"-1 on RabbitMQ 4 is no limit", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(-1)}), read: true, drops: true}, []string{"noted x-dead-letter-exchange"}},
		{"3 deliveries, then a dead letter", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(3), argExchange: "x"}), read: true},
			[]string{"noted x-delivery-limit", "noted x-dead-letter-strategy"}},
		{"a limit of length that refuses", quality{queue: topic, kind: typeClassic, args: amqp.Table{argMaxLength: int64(9), argOverflow: overflowReject}, read: true}, []string{"noted x-queue-type"}},
		{"a limit of bytes that drops", quality{queue: topic, kind: typeClassic, args: amqp.Table{argMaxBytes: int64(9)}, read: true}, []string{"refused x-overflow", "noted x-queue-type"}},
		{"everything", quality{queue: topic, kind: typeClassic, flaws: []string{"durable"}, args: amqp.Table{argTTL: int64(5), argExpires: int64(5)}, read: true},
			[]string{"refused durable", "refused x-message-ttl", "refused x-expires", "noted x-queue-type"}},
		{"a stream", quality{queue: topic, kind: typeStream, args: amqp.Table{argTTL: int64(5)}}, []string{"refused x-queue-type"}},
		{"looks at letters are counted", quality{queue: dead, kind: typeQuorum, args: quorum(nil), read: true, drops: true}, []string{"noted x-delivery-limit"}},
		{"and on RabbitMQ 3 they are not", quality{queue: dead, kind: typeQuorum, args: quorum(nil), read: true}, nil},
		{"nothing is known", quality{queue: topic, unknown: true}, []string{"unverified"}},
	} {
		var got []string
		for _, f := range tt.q.judge() {
			got = append(got, strings.TrimSpace(f.Severity.String()+" "+f.Setting))
			if f.Topic != tt.q.name || f.Why == "" || f.Fix == "" {
				t.Errorf("%s: finding without name, reason or remedy: %+v", tt.name, f)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestMend(t *testing.T) {
	q := quality{queue: queue{name: "o'rders.eu"}, vhost: "/", wanted: object{}}
	if got, want := q.mend(map[string]any{"overflow": overflowReject}),
		`rabbitmqctl set_policy -p '/' --apply-to queues 'o'\''rders.eu' '^o'\''rders\.eu$' '{"overflow":"reject-publish"}'`; got != want {
		t.Errorf("command\n%s\nwant\n%s", got, want)
	}
	q.declared = amqp.Table{argOverflow: overflowDrop}
	if got := q.mend(map[string]any{"overflow": overflowReject}); got != another {
		t.Errorf("a policy is to win over an argument: %s", got)
	}
}

// A second policy takes the place of the first, and the commands of two findings are
// given one after the other: neither may undo what was set before, nor set again what
// is to be taken out.
func TestMendUndoesNothing(t *testing.T) {
	args := amqp.Table{argType: typeQuorum, argTTL: int64(5), argMaxLength: int64(1000), argLimit: int64(3), argExchange: "x"}
	q := quality{queue: queue{"q", entry, true, nil}, kind: typeQuorum, args: args, declared: amqp.Table{argType: typeQuorum}, read: true, vhost: "/",
		policy: object{"message-ttl": float64(5), "max-length": float64(1000), "delivery-limit": float64(3), "dead-letter-exchange": "x"}}
	var got []string
	for _, f := range q.judge() {
		got = append(got, f.Fix)
	}
	const set = `rabbitmqctl set_policy -p '/' --priority 10 --apply-to queues 'q' '^q$' `
	want := []string{
		"take it out of the policy; " + another,
		set + `'{"dead-letter-exchange":"x","delivery-limit":3,"max-length":1000,"overflow":"reject-publish"}'`,
		set + `'{"dead-letter-exchange":"x","delivery-limit":20,"max-length":1000,"overflow":"reject-publish"}'`,
		set + `'{"dead-letter-exchange":"x","dead-letter-strategy":"at-least-once","delivery-limit":20,"max-length":1000,"overflow":"reject-publish"}'`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("commands\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := q.policy["delivery-limit"]; n != float64(3) {
		t.Errorf("the policy that was read has a delivery limit of %v now, want 3", n)
	}
}
