package rabbitmq

import (
	"maps"
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
			[]string{"blocking x-delivery-limit", "noted x-dead-letter-exchange"}},
		{"20 deliveries", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(20)}), read: true}, []string{"noted x-dead-letter-exchange"}},
		{"-1 on RabbitMQ 3 is less than 0", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(-1)}), read: true},
			[]string{"blocking x-delivery-limit", "noted x-dead-letter-exchange"}},
		{"-1 on RabbitMQ 4 is no limit", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(-1)}), read: true, drops: true}, []string{"noted x-dead-letter-exchange"}},
		{"3 deliveries, then a dead letter", quality{queue: topic, kind: typeQuorum, args: quorum(amqp.Table{argLimit: int64(3), argExchange: "x"}), read: true},
			[]string{"noted x-delivery-limit", "noted x-dead-letter-strategy"}},
		{"a limit of length that refuses", quality{queue: topic, kind: typeClassic, args: amqp.Table{argMaxLength: int64(9), argOverflow: overflowReject}, read: true}, []string{"noted x-queue-type"}},
		{"a limit of bytes that drops", quality{queue: topic, kind: typeClassic, args: amqp.Table{argMaxBytes: int64(9)}, read: true}, []string{"blocking x-overflow", "noted x-queue-type"}},
		{"everything", quality{queue: topic, kind: typeClassic, args: amqp.Table{propertyDurable: false, argTTL: int64(5), argExpires: int64(5)}, read: true},
			[]string{"blocking durable", "blocking x-message-ttl", "blocking x-expires", "noted x-queue-type"}},
		{"a stream", quality{queue: topic, kind: typeStream, args: amqp.Table{argTTL: int64(5)}}, []string{"blocking x-queue-type"}},
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
		set + `'{"dead-letter-exchange":"x","delivery-limit":3,"max-length":1000}'`,
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

// The remedy removes a setting where it is set. A new policy does not help
// against an argument, and a new queue does not help against a policy.
func TestExpiryIsTakenOutWhereItIsSet(t *testing.T) {
	ttl := object{"message-ttl": float64(5)}
	user := &policy{Name: "all", Pattern: ".*", Applies: "queues", Priority: 20, Definition: ttl}
	for _, tt := range []struct {
		name     string
		declared amqp.Table
		ruling   ruling
		want     string
	}{
		{"an argument", amqp.Table{argTTL: int64(5)}, ruling{}, another},
		{"a policy", nil, ruling{user: user},
			`rabbitmqctl set_policy -p '/' --priority 21 --apply-to queues 'q' '^q$' '{"overflow":"reject-publish"}'`},
		{"a policy with more", nil, ruling{user: &policy{Name: "some", Pattern: "^q", Applies: "all", Priority: 3, Definition: object{"message-ttl": float64(5), "max-length": float64(9)}}},
			`rabbitmqctl set_policy -p '/' --priority 10 --apply-to queues 'q' '^q$' '{"max-length":9}'`},
		{"an operator policy", nil, ruling{operator: &policy{Name: "cap", Pattern: "^", Applies: "queues", Definition: ttl}},
			`take message-ttl out of the operator policy "cap", which may rule other queues too: rabbitmqctl clear_operator_policy -p '/' 'cap'`},
		{"an operator policy with more", nil, ruling{operator: &policy{Name: "cap", Pattern: "^", Applies: "all", Priority: 2, Definition: object{"message-ttl": float64(5), "expires": float64(7)}}},
			`take message-ttl out of the operator policy "cap", which may rule other queues too: rabbitmqctl set_operator_policy -p '/' --priority 2 --apply-to all 'cap' '^' '{"expires":7}'`},
		{"both policies and an argument", amqp.Table{argTTL: int64(9)}, ruling{user: user, operator: &policy{Name: "cap", Definition: ttl}},
			`take message-ttl out of the operator policy "cap", which may rule other queues too: rabbitmqctl clear_operator_policy -p '/' 'cap'; and ` +
				`rabbitmqctl set_policy -p '/' --priority 21 --apply-to queues 'q' '^q$' '{"overflow":"reject-publish"}'; and ` + another},
	} {
		q := quality{queue: queue{"q", entry, true, nil}, kind: typeClassic, args: amqp.Table{argTTL: int64(5)}, declared: tt.declared, vhost: "/", read: true,
			ruling: tt.ruling, policy: tt.ruling.definition()}
		found := q.judge()
		if len(found) == 0 || found[0].Setting != argTTL || found[0].Fix != tt.want {
			t.Errorf("%s: %+v, want the remedy\n%s", tt.name, found, tt.want)
		}
	}
}

// Without statistics the management API does not name the policy in force. It is found
// by the broker's own rules, or counts as unknown where these leave a doubt.
func TestPolicyInForce(t *testing.T) {
	const uncertain = "?"
	net := object{"dead-letter-exchange": "x"}
	with := func(name, pattern, applies string, priority float64, definition object) policy {
		return policy{Name: name, Pattern: pattern, Applies: applies, Priority: priority, Definition: definition}
	}
	for name, tt := range map[string]struct {
		policies []policy
		want     string
	}{
		"none":                         {nil, ""},
		"its name":                     {[]policy{with("a", "^orders$", "queues", 0, net)}, "a"},
		"a part of its name":           {[]policy{with("a", "rder", "all", 0, net)}, "a"},
		"another name":                 {[]policy{with("a", "^order$", "queues", 0, net)}, ""},
		"exchanges":                    {[]policy{with("a", "", "exchanges", 0, net)}, ""},
		"quorum queues":                {[]policy{with("a", "", "quorum_queues", 0, net)}, "a"},
		"classic queues":               {[]policy{with("a", "", "classic_queues", 0, net)}, ""},
		"a kind that is new":           {[]policy{with("a", "", "fancy_queues", 0, net)}, uncertain},
		"the highest priority":         {[]policy{with("a", "", "all", 0, net), with("b", "", "all", 7, net), with("c", "", "all", 3, net)}, "b"},
		"the highest that matches":     {[]policy{with("a", "", "all", 0, net), with("b", "refunds", "all", 7, net)}, "a"},
		"two of one priority":          {[]policy{with("a", "", "all", 1, net), with("b", "", "all", 1, object{"max-length": 1.0})}, uncertain},
		"two of equal settings":        {[]policy{with("a", "", "all", 1, net), with("b", "", "all", 1, net)}, "a"},
		"two below another":            {[]policy{with("a", "", "all", 1, net), with("b", "", "all", 0, net), with("c", "", "all", 0, object{"max-length": 1.0})}, "a"},
		"a key of classic queues":      {[]policy{with("a", "", "all", 1, object{"ha-mode": "all", "message-ttl": 1.0}), with("b", "", "all", 0, net)}, "b"},
		"a key of streams":             {[]policy{with("a", "", "queues", 1, object{"max-age": "1D"})}, ""},
		"a key that is not known":      {[]policy{with("a", "", "queues", 1, object{"federation-upstream": "all"}), with("b", "", "all", 0, net)}, uncertain},
		"all but a few":                {[]policy{with("a", `^(?!redrive\.).*`, "queues", 0, net)}, "a"},
		"all but this one":             {[]policy{with("a", "^(?!amq|orders).*$", "queues", 0, net)}, ""},
		"all but some, and some":       {[]policy{with("a", "^(?!redrive)x|y", "queues", 0, net)}, uncertain},
		"a pattern that Go lacks":      {[]policy{with("a", "(?<=or)ders", "queues", 0, net)}, uncertain},
		"a policy above it":            {[]policy{with("a", "(?<=or)ders", "queues", 0, net), with("b", "", "queues", 1, net)}, "b"},
		"such a pattern, of exchanges": {[]policy{with("a", "(?<=or)ders", "exchanges", 0, net)}, ""},
	} {
		in, certain := inForce(tt.policies, "orders", typeQuorum)
		got := ""
		switch {
		case !certain:
			got = uncertain
		case in != nil:
			got = in.Name
		}
		if got != tt.want {
			t.Errorf("%s: %q is in force, want %q", name, got, tt.want)
		}
	}
	both := ruling{&policy{Definition: object{"max-length": 9.0, "expires": 9.0, "delivery-limit": -1.0, "overflow": "drop-head"}},
		&policy{Definition: object{"max-length": 7.0, "expires": 10.0, "delivery-limit": 3.0, "message-ttl": 1.0}}}
	if got, want := both.definition(), (object{"max-length": 7.0, "expires": 9.0, "delivery-limit": 3.0, "message-ttl": 1.0, "overflow": "drop-head"}); !maps.Equal(got, want) {
		t.Errorf("together they set %v, want %v", got, want)
	}
}
