package job_test

import (
	"testing"

	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

func TestSkip(t *testing.T) {
	targets := job.Targets{
		{Broker: "rabbit", Topic: "orders", Dead: []string{"orders.dead", "all.dead"}},
		{Broker: "rabbit", Topic: "refunds", Dead: []string{"all.dead"}},
		{Broker: "kafka", Topic: "orders", Dead: []string{"orders.dead"}, Grouped: true, Groups: []string{"billing", "audit"}},
	}
	of := func(broker, source, topic, group string) store.Letter {
		return store.Letter{Broker: broker, Source: source, Topic: topic, Group: group, Reason: "poison", Format: "redrive"}
	}
	with := func(l store.Letter, f func(*store.Letter)) store.Letter {
		f(&l)
		return l
	}
	orders := of("rabbit", "orders.dead", "orders", "")
	tests := []struct {
		name   string
		letter store.Letter
		spec   job.Spec
		want   string
	}{
		{"to its topic", orders, job.Spec{}, ""},
		{"where a group means nothing", of("rabbit", "orders.dead", "orders", "\x00"), job.Spec{}, ""},
		{"from a source of two topics", of("rabbit", "all.dead", "refunds", ""), job.Spec{}, ""},
		{"a topic that is not configured", of("rabbit", "orders.dead", "payments", ""), job.Spec{Force: true, AllGroups: true}, job.SkipUnknownTopic},
		{"another spelling", of("rabbit", "orders.dead", "Orders", ""), job.Spec{}, job.SkipUnknownTopic},
		{"a broker that is not configured", of("sqs", "orders.dead", "orders", ""), job.Spec{}, job.SkipUnknownTopic},
		{"a topic of another broker", of("kafka", "all.dead", "refunds", "billing"), job.Spec{}, job.SkipUnknownTopic},
		{"a claim to be of another topic", of("rabbit", "orders.dead", "refunds", ""), job.Spec{Force: true}, job.SkipWrongSource},
		{"from nowhere", of("rabbit", "", "orders", ""), job.Spec{}, job.SkipWrongSource},
		{"no topic, and only one can be meant", of("rabbit", "orders.dead", "", ""), job.Spec{}, ""},
		{"no topic, and two can be meant", of("rabbit", "all.dead", "", ""), job.Spec{}, job.SkipUnknownTopic},
		{"no topic, and none can be meant", of("rabbit", "payments.dead", "", ""), job.Spec{}, job.SkipUnknownTopic},
		{"to its group", of("kafka", "orders.dead", "orders", "audit"), job.Spec{}, ""},
		{"a group that is not configured", of("kafka", "orders.dead", "orders", "reports"), job.Spec{AllGroups: true, Force: true}, job.SkipUnknownGroup},
		{"no group", of("kafka", "orders.dead", "orders", ""), job.Spec{}, job.SkipNoGroup},
		{"no group, to all", of("kafka", "orders.dead", "orders", ""), job.Spec{AllGroups: true}, ""},
		{"sent back twice", with(orders, func(l *store.Letter) { l.RedriveCount, l.Sends = 2, 2 }), job.Spec{}, ""},
		{"sent back three times", with(orders, func(l *store.Letter) { l.RedriveCount = 3 }), job.Spec{}, job.SkipRedriveLimit},
		{"sent from here three times", with(orders, func(l *store.Letter) { l.Sends = 3 }), job.Spec{}, job.SkipRedriveLimit},
		{"sent back three times, by force", with(orders, func(l *store.Letter) { l.RedriveCount, l.Sends = 3, 9 }), job.Spec{Force: true}, ""},
		{"sent back once, which is enough", with(orders, func(l *store.Letter) { l.RedriveCount = 1 }), job.Spec{MaxReturns: 1}, job.SkipRedriveLimit},
		{"a stub", with(orders, func(l *store.Letter) { l.Stub = true }), job.Spec{Force: true}, job.SkipStub},
		{"no message", with(orders, func(l *store.Letter) { l.Reason = "unreadable" }), job.Spec{Force: true}, job.SkipUnreadable},
		{"no letter", with(orders, func(l *store.Letter) { l.Format = "unreadable" }), job.Spec{Force: true}, job.SkipUnreadable},
	}
	for _, tt := range tests {
		if got := targets.Skip(tt.spec, tt.letter); got != tt.want {
			t.Errorf("%s: Skip = %q, want %q", tt.name, got, tt.want)
		}
	}
}
