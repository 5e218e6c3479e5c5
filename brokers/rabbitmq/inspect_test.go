package rabbitmq

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// cluster is a management API, as RabbitMQ documents it.
type cluster struct {
	nodes, queues, alarms string // answers; "" is 401
	off                   time.Duration
	asked                 []string
}

// healthy is a cluster of three nodes in which nothing is wrong.
func healthy() *cluster {
	return &cluster{
		nodes:  `[{"name":"rabbit@a","running":true},{"name":"rabbit@b","running":true},{"name":"rabbit@c","running":true}]`,
		queues: `{"filtered_count":1,"items":[{"name":"redrive.delay.v2.250","messages":0}],"page":1}`,
		alarms: `{"status":"ok"}`,
	}
}

func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked = append(c.asked, r.URL.EscapedPath())
	answer, status := httptest.NewRecorder(), http.StatusOK
	text := map[string]string{"/api/nodes": c.nodes, "/api/queues/%2Fshop": c.queues, "/api/health/checks/alarms": c.alarms}[r.URL.EscapedPath()]
	switch {
	case text == "":
		status, text = http.StatusUnauthorized, `{"error":"not_authorised","reason":"User is not authorised"}`
	case strings.Contains(text, "failed"):
		status = http.StatusServiceUnavailable
	}
	answer.Header().Set("Date", time.Now().Add(c.off).UTC().Format(http.TimeFormat))
	answer.WriteHeader(status)
	fmt.Fprint(answer, text)
	response := answer.Result()
	response.Request = r
	return response, nil
}

// TestInspectCluster plants each fault that Open does not look for.
func TestInspectCluster(t *testing.T) {
	on := func(role role, name string, nodes ...string) quality {
		return quality{queue: queue{name: name, role: role}, kind: typeQuorum, members: nodes, vhost: "/shop"}
	}
	spread := []quality{on(entry, "orders", "rabbit@a", "rabbit@b", "rabbit@c"), on(ours, "redrive.retry.v1.orders", "rabbit@a", "rabbit@b")}
	for _, tt := range []struct {
		name   string
		plant  func(c *cluster)
		queues []quality
		want   []string // parts of findings, one each
	}{
		{"nothing", func(*cluster) {}, spread, nil},
		{"one member of a topic", func(*cluster) {}, []quality{on(entry, "orders.eu", "rabbit@b")}, []string{
			`noted "orders.eu": members is rabbit@b, and should be 3 nodes: it is on one of 3 nodes: it stands still while that is down, and is lost with its disk. To mend it: ` +
				`rabbitmq-queues grow 'rabbit@a' all --vhost-pattern '^/shop$' --queue-pattern '^orders\.eu$' && rabbitmq-queues grow 'rabbit@c' all`}},
		{"one member of many", func(*cluster) {}, []quality{on(ours, "redrive.retry.v1.a", "rabbit@a"), on(ours, "redrive.delay.v2.250", "rabbit@a")}, []string{
			`noted "redrive.*": members is rabbit@a, and should be 3 nodes: each of 2 queues for retries is on one of 3 nodes`}},
		{"one member on one node", func(c *cluster) {
			c.nodes = `[{"name":"rabbit@a","running":true},{"name":"rabbit@b","running":false}]`
		}, []quality{on(entry, "orders", "rabbit@a")}, nil},
		{"a classic queue", func(*cluster) {}, []quality{{queue: queue{name: "orders", role: entry}, kind: typeClassic}}, nil},
		{"a delay queue of an earlier policy", func(c *cluster) {
			c.queues = `{"items":[{"name":"redrive.delay.v2.86400000","messages":0},{"name":"redrive.delay.v1.1000","messages":0}]}`
		}, nil, []string{
			`noted "redrive.delay.v2.86400000": it is empty, and no delay of these topics is so long`,
			`To mend it: rabbitmqctl delete_queue -p '/shop' 'redrive.delay.v1.1000'`}},
		{"delay queues that are in use, unknown or another's", func(c *cluster) {
			c.queues = `{"items":[{"name":"redrive.delay.v2.86400000","messages":1},{"name":"redrive.delay.v2.43200000"},{"name":"old-redrive.delay.v2.1","messages":0}]}`
		}, nil, nil},
		{"alarms", func(c *cluster) {
			c.alarms = `{"status":"failed","reason":"There are alarms in effect in the cluster","alarms":[{"resource":"memory","node":"rabbit@a"},{"resource":"disk space","node":"rabbit@b"}]}`
		}, nil, []string{`noted "rabbit@a": memory alarm is in effect, and should be none: nobody can publish`, `noted "rabbit@b": disk space alarm`}},
		{"a clock behind", func(c *cluster) { c.off = -time.Minute }, nil, []string{`noted "rabbit.shop.example:15671": clock is 59s behind this machine`}},
		{"a clock ahead", func(c *cluster) { c.off = 5 * time.Second }, nil, []string{`clock is 5s ahead of this machine, and should be within a second`}},
		{"a clock as good as HTTP tells", func(c *cluster) { c.off = time.Second }, nil, nil},
		{"rights are missing", func(c *cluster) { c.nodes, c.queues, c.alarms = "", "", "" }, spread, []string{
			`unverified "nodes": the management API at https://rabbit.shop.example:15671/api/nodes answers 401`, `unverified "delay queues"`, `unverified "alarms"`}},
		{"no JSON", func(c *cluster) { c.alarms = "failed" }, nil, []string{`unverified "alarms": read the answer of the management API`}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := healthy()
			tt.plant(c)
			b, err := New(Options{URLs: []string{"amqps://rabbit.shop.example/%2Fshop"}, ManagementURL: "https://rabbit.shop.example:15671/"})
			if err != nil {
				t.Fatal(err)
			}
			b.manager.Transport = c
			plan := b.names.plan(brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute}, planDelays(time.Minute))
			found := b.inspectCluster(t.Context(), "/shop", plan, survey{queues: tt.queues})
			if len(found) != len(tt.want) {
				t.Errorf("%s: found %v, want %q", tt.name, found, tt.want)
				return
			}
			for i, f := range found {
				if text := f.Severity.String() + " " + f.String(); !strings.Contains(text, tt.want[i]) || f.Why == "" || f.Fix == "" {
					t.Errorf("%s: found\n%s\nwant\n%s", tt.name, text, tt.want[i])
				}
			}
		})
	}
}

// TestGaps tells what the first worker declares from what nobody does.
func TestGaps(t *testing.T) {
	missing := survey{missing: []queue{{name: "orders"}}, absent: map[string]binding{"redrive.dead.v1": {}, "redrive.copy.v1": {}}}
	denied := missing
	denied.denied = []error{brokers.ErrMisconfigured}
	for _, tt := range []struct {
		name   string
		s      survey
		verify bool
		want   string
	}{
		{"nothing", survey{}, true, ""},
		{"declared", missing, false, `noted "NAME": there is no such WHAT: the first worker that starts declares it. To mend it: start a worker, or import the definitions`},
		{"with Verify", missing, true, `blocking "NAME": there is no such WHAT, and Options.Verify lets Run declare none. To mend it: import the definitions`},
		{"without rights", denied, false, `blocking "NAME": there is no such WHAT, and the user may not declare what is missing. To mend it: import the definitions`},
	} {
		var names []string
		for _, f := range tt.s.gaps(tt.verify) {
			names = append(names, f.Topic)
			what := "exchange"
			if f.Topic == "orders" {
				what = "queue"
			}
			want := strings.NewReplacer("NAME", f.Topic, "WHAT", what).Replace(tt.want)
			if text := f.Severity.String() + " " + f.String(); !f.Missing || !strings.HasPrefix(text, want) {
				t.Errorf("%s: found\n%s\nwant\n%s", tt.name, text, want)
			}
		}
		if want := []string{"orders", "redrive.copy.v1", "redrive.dead.v1"}; tt.want != "" && !slices.Equal(names, want) {
			t.Errorf("%s: found %q, want %q", tt.name, names, want)
		}
	}
}

func TestManagementURL(t *testing.T) {
	for _, tt := range []struct {
		address string
		plain   bool
		want    string // of the error
	}{
		{"https://rabbit.shop.example:15671", false, ""},
		{"http://127.0.0.1:15672/", false, ""},
		{"http://rabbit.shop.example:15672", true, ""},
		{"http://admin:s3cr3t@rabbit.shop.example:15672", false, "would send the password to another machine"},
		{"rabbit.shop.example:15672", false, "no address of a management API"},
		{"amqp://admin:s3cr3t@rabbit", false, "no address of a management API"},
		{"http://admin:s3cr3t%zz@rabbit", false, "no address of a management API"},
	} {
		_, err := New(Options{URLs: []string{"amqps://rabbit.shop.example"}, ManagementURL: tt.address, AllowPlaintext: tt.plain})
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want %q", tt.address, err, tt.want)
		case err != nil && strings.Contains(err.Error(), "s3cr3t"):
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestTopologyNames(t *testing.T) {
	b, err := New(Options{URLs: []string{"amqp://localhost/shop"}})
	if err != nil {
		t.Fatal(err)
	}
	orders := brokers.Subscription{Topics: []string{"orders"}, DeadLetters: map[string]string{"orders": "orders-dead"}, Receipts: "receipts", MaxDelay: 300 * time.Millisecond, MaxAttempts: 3}
	refunds := brokers.Subscription{Topics: []string{"refunds"}, MaxDelay: time.Second, MaxAttempts: 3}
	text, err := b.Topology(orders, refunds)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Queues []struct {
			Name, Vhost string
			Durable     bool
			AutoDelete  bool `json:"auto_delete"`
			Arguments   object
		}
		Exchanges, Bindings []object
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, q := range d.Queues {
		if names = append(names, q.Name); q.Vhost != "shop" || !q.Durable || q.AutoDelete || q.Arguments[argType] != typeQuorum {
			t.Errorf("queue %+v, want a durable quorum queue in shop", q)
		}
	}
	if want := []string{"orders", "redrive.retry.v1.orders", "orders-dead", "receipts", "redrive.unroutable.v1", "redrive.delay.v2.250",
		"refunds", "redrive.retry.v1.refunds", "redrive.delay.v2.500", "redrive.delay.v2.1000"}; !slices.Equal(names, want) {
		t.Errorf("queues %q, want %q", names, want)
	}
	seen := map[string]bool{}
	for _, x := range d.Bindings {
		seen[fmt.Sprint(x)] = true
	}
	if len(d.Exchanges) != 7 || len(d.Bindings) != 11 || len(seen) != 11 {
		t.Errorf("%d exchanges and %d bindings, want 7 and 11 different ones", len(d.Exchanges), len(d.Bindings))
	}
	if _, err := b.Topology(brokers.Subscription{}); err == nil {
		t.Error("there is a topology of nothing")
	}
}
