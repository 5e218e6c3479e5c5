package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
)

// incident is what happens to the worker of the Deployment.
type incident struct {
	name    string
	lasts   time.Duration                           // for how long messages come
	orders  func(ctx context.Context, c call) error // the handler of orders; nil succeeds
	frozen  string                                  // the loop that freezes
	dies    bool                                    // the process is killed from outside
	deleted time.Duration                           // when the pod is deleted; never if 0
	slowEnd bool                                    // the source and the broker take all of their time to close
	away    span                                    // the broker refuses everything
	silent  span                                    // the broker does not answer an Open
	want    map[string]int                          // how often what is noted; 0 for the rest of counted
	holds   func(t *testing.T, k *kubelet)
}

const (
	trouble  = 5 * time.Minute  // when it begins
	loopFor  = 10 * time.Second // the default of health.Options
	stuckFor = 10 * time.Minute // the default of health.Options
	timeout  = 5 * time.Minute  // the default of consumer.Config.HandlerTimeout
)

// counted are the notes that an incident wants.
var counted = []string{started, killed, nowReady, nowUnready, livezFails, byLiveness, byStartup, readyInADrain}

// hangs is a handler whose first n runs ignore their context and never return.
func hangs(n int) func(context.Context, call) error {
	taken := make(chan struct{}, n)
	return func(_ context.Context, c call) error {
		if c.number > 1 || c.began < trouble || c.run > 1 {
			return nil
		}
		select {
		case taken <- struct{}{}:
			c.note("hangs")
			<-c.dead
		default:
		}
		return nil
	}
}

var errDown = classify.Transient(errors.New("status 503"))

// TestProbes has the Deployment live through incidents. Its times are those of the
// manifest, the worker has the default Config, and good is a topic beside orders.
func TestProbes(t *testing.T) {
	var d apps.Deployment
	if err := yaml.UnmarshalStrict([]byte(read(t, "monitoring/kubernetes/worker.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	spec := d.Spec.Template.Spec
	c := spec.Containers[0]
	for _, p := range []core.Probe{*c.StartupProbe, *c.LivenessProbe, *c.ReadinessProbe} {
		p.HTTPGet, p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold = nil, 0, 0, 0
		if p != (core.Probe{}) {
			t.Fatalf("the kubelet of this test knows nothing of %+v", p)
		}
	}
	startup := patience(c.StartupProbe)
	failures := threshold(c.LivenessProbe)
	for _, i := range []incident{
		{name: "no trouble", lasts: time.Hour, want: map[string]int{started: 1, nowReady: 1}},
		{name: "killed", lasts: 15 * time.Minute, dies: true, want: map[string]int{started: 2, nowReady: 2},
			orders: func(_ context.Context, c call) error { c.sleep(4500 * time.Millisecond); return nil },
			holds: func(t *testing.T, k *kubelet) {
				within(t, "ready again", k.when(nowReady)[1], trouble, trouble+seconds(c.StartupProbe.PeriodSeconds+c.ReadinessProbe.PeriodSeconds))
				if k.again() == 0 {
					t.Error("the process is killed while no handler runs: this tests nothing")
				}
			}},
		{name: "all slots hang", lasts: time.Hour, orders: hangs(10),
			want: map[string]int{started: 2, nowReady: 2, nowUnready: 1, livezFails: failures, byLiveness: 1},
			holds: func(t *testing.T, k *kubelet) {
				since := k.when("hangs")[9] + timeout
				within(t, "restart", k.when(byLiveness)[0], since+stuckFor, since+stuckFor+patience(c.LivenessProbe)+5*time.Second)
				k.goodIsNeverLate(t, k.when(signalled)[0])
			}},
		{name: "all slots but one hang", lasts: 2 * time.Hour, orders: hangs(9), deleted: 100 * time.Minute,
			want:  map[string]int{started: 2, nowReady: 2, nowUnready: 1},
			holds: func(t *testing.T, k *kubelet) { k.goodIsNeverLate(t, k.deleted) }},
		{name: "the settle loop freezes", lasts: 20 * time.Minute, frozen: "settle",
			want: map[string]int{started: 2, nowReady: 2, nowUnready: 1, livezFails: failures, byLiveness: 1, killed: 1},
			holds: func(t *testing.T, k *kubelet) {
				since := k.when("frozen")[0]
				within(t, "restart", k.when(byLiveness)[0], since+loopFor, since+loopFor+patience(c.LivenessProbe)+seconds(c.LivenessProbe.TimeoutSeconds))
			}},
		{name: "the receive loop freezes", lasts: 20 * time.Minute, frozen: "receive",
			want: map[string]int{started: 2, nowReady: 2, nowUnready: 1, livezFails: failures, byLiveness: 1, killed: 1},
			holds: func(t *testing.T, k *kubelet) {
				since := k.when("frozen")[0]
				within(t, "restart", k.when(byLiveness)[0], since+loopFor, since+loopFor+patience(c.LivenessProbe)+seconds(c.LivenessProbe.TimeoutSeconds))
			}},
		{name: "broker away", lasts: time.Hour, away: span{trouble, trouble + 20*time.Minute}, want: map[string]int{started: 1, nowReady: 2, nowUnready: 1}, holds: func(t *testing.T, k *kubelet) {
			within(t, "not ready", k.when(nowUnready)[0], k.away.from, k.away.from+patience(c.ReadinessProbe))
			within(t, "ready", k.when(nowReady)[1], k.away.to, k.away.to+patience(c.ReadinessProbe))
		}},
		{name: "broker silent at the start, for 4 min", lasts: 20 * time.Minute, silent: span{0, 4 * time.Minute}, want: map[string]int{started: 1, nowReady: 1}},
		{name: "broker silent at the start, for 10 min", lasts: 20 * time.Minute, silent: span{0, 10 * time.Minute}, want: map[string]int{started: 3, nowReady: 1, byStartup: 2}, holds: func(t *testing.T, k *kubelet) {
			within(t, "restart", k.when(byStartup)[0], startup-seconds(c.StartupProbe.PeriodSeconds), startup)
		}},
		{name: "broker away at the start, for 10 min", lasts: 20 * time.Minute, away: span{0, 10 * time.Minute}, want: map[string]int{started: 8, nowReady: 1}, holds: func(t *testing.T, k *kubelet) {
			within(t, "ready", k.when(nowReady)[0], k.away.to, k.away.to+maxBackOff)
		}},
		{name: "dependency down", lasts: 2 * time.Hour, want: map[string]int{started: 1, nowReady: 1},
			orders: func(_ context.Context, c call) error {
				if (span{trouble, trouble + time.Hour}).has(c.began) {
					return errDown
				}
				return nil
			},
			holds: func(t *testing.T, k *kubelet) { k.goodIsNeverLate(t, k.lasts) }},
		{name: "deleted", lasts: 20 * time.Minute, deleted: trouble, slowEnd: true, want: map[string]int{started: 2, nowReady: 2, nowUnready: 1},
			orders: func(ctx context.Context, c call) error {
				if c.number > 1 || c.began < trouble-30*time.Second {
					return nil
				}
				c.note("slow")
				switch len(c.when("slow")) % 3 {
				case 0:
					<-ctx.Done()
					return context.Cause(ctx)
				case 1:
					<-c.dead
				case 2:
					c.sleep(20 * time.Second)
				}
				return nil
			},
			holds: func(t *testing.T, k *kubelet) {
				for _, r := range k.left {
					if r.Meta.Attempt > 0 || r.Abandoned > 0 {
						t.Errorf("%q is back with %d attempts and %d lost deliveries", r.Message.ID, r.Meta.Attempt, r.Abandoned)
					}
				}
				if n := k.again(); n < 2 || len(k.left) < n {
					t.Errorf("%d messages were interrupted, and %d are with the broker afterwards", n, len(k.left))
				}
			}},
	} {
		t.Run(i.name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { i.play(t, spec) }) })
	}
}

// patience is for how long p fails before it counts.
func patience(p *core.Probe) time.Duration {
	return seconds(p.PeriodSeconds) * time.Duration(threshold(p))
}

func within(t *testing.T, what string, at, from, to time.Duration) {
	t.Helper()
	if at < from || at > to {
		t.Errorf("%s after %v, want it between %v and %v", what, at, from, to)
	}
}

// goodIsNeverLate demands that the topic beside did not notice anything until then.
func (k *kubelet) goodIsNeverLate(t *testing.T, until time.Duration) {
	t.Helper()
	for id, m := range k.messages {
		if m.topic == "good" && m.published < until && m.end-m.published > time.Second {
			t.Errorf("%q, published at %v, ended at %v", id, m.published, m.end)
		}
	}
}

// again counts the messages that ran more than once.
func (k *kubelet) again() (n int) {
	for _, m := range k.messages {
		if m.runs > 1 {
			n++
		}
	}
	return n
}

// play lets i happen, and looks at what no incident may do.
func (i incident) play(t *testing.T, spec core.PodSpec) {
	k := &kubelet{incident: i, spec: spec, began: time.Now(), deletes: make(chan struct{}), messages: map[string]*message{}}
	k.broker = memory.New(memory.Options{Fault: k.fault})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.run(ctx) }()
	go func() {
		time.Sleep(trouble)
		if i.dies {
			k.mu.Lock()
			x := k.current
			k.mu.Unlock()
			x.die()
		}
		if i.deleted > 0 {
			time.Sleep(i.deleted - trouble)
			select {
			case k.deletes <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	if err := k.publish(ctx); err != nil {
		t.Fatal(err)
	}
	left := func() int { return k.broker.Len("orders") + k.broker.Len("good") }
	for until := k.now() + 2*time.Hour; left() > 0 && k.now() < until; {
		time.Sleep(time.Minute)
	}
	for _, what := range counted {
		if n := len(k.when(what)); n != i.want[what] {
			t.Errorf("%s: %d times, at %v, want %d", what, n, k.when(what), i.want[what])
		}
	}
	if dead := k.broker.Len("orders-dead") + k.broker.Len("good-dead"); left() > 0 || dead > 0 {
		t.Errorf("%d messages are left, %d are dead", left(), dead)
	}
	for id, m := range k.messages {
		if m.end == 0 {
			t.Errorf("%q, published at %v, is lost after %d runs", id, m.published, m.runs)
		}
	}
	if i.holds != nil && !t.Failed() {
		i.holds(t, k)
	}
	stop()
	<-ended
	if err := k.broker.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		for _, n := range k.notes {
			t.Log(n.at, n.what)
		}
	}
}
