package rabbitmq

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// checking is the page about what Inspect finds beyond Open.
const checking = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/check-a-set-up.md#rabbitmq"

// Inspect returns what Open would find of the queues and exchanges that sub needs,
// and changes nothing. What does not exist is noted where Open would declare it, and
// blocking where it would not: with Options.Verify, or without the right to.
//
// With Options.ManagementURL it finds more. All of that is noted, since no message is
// lost by it alone: quorum queues with one member in a cluster of several nodes;
// alarms, during which publishing waits and the originals stay in their queues; delay
// queues of the prefix that are empty and that no delay of sub reaches; and a clock
// that differs from this machine's by more than a second. What of these the user may
// not see is unverified.
func (b *Broker) Inspect(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	found, err := b.inspect(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: inspect %q: %w", sub.Topics, err)
	}
	return found, nil
}

func (b *Broker) inspect(ctx context.Context, sub brokers.Subscription) (found []inspect.Finding, err error) {
	if err := b.names.check(sub); err != nil {
		return nil, err
	}
	err = b.bounded(ctx, "inspection", func(l *link) error {
		t := b.names.plan(sub, planDelays(sub.MaxDelay))
		s, err := l.survey(ctx, t, b)
		if err != nil {
			return err
		}
		found = append(s.findings, s.gaps(b.options.Verify)...)
		if b.options.ManagementURL != "" {
			found = append(found, b.inspectCluster(ctx, l.vhost, t, s)...)
		}
		return context.Cause(ctx)
	})
	return found, err
}

// inspectCluster looks at what Open does not.
func (b *Broker) inspectCluster(ctx context.Context, vhost string, t topology, s survey) (found []inspect.Finding) {
	unseen := func(what string, err error) {
		if err != nil {
			found = append(found, inspect.Finding{Severity: inspect.Unverified, Topic: what, Why: err.Error(), See: checking,
				Fix: "see to it that the user may use the management API: nodes need the tag monitoring"})
		}
	}
	nodes, err := b.runningNodes(ctx)
	unseen("nodes", err)
	found = append(found, b.lonely(s.queues, nodes)...)
	unused, err := b.unused(ctx, vhost, t)
	unseen("delay queues", err)
	found = append(found, unused...)
	health, err := b.health(ctx)
	unseen("alarms", err)
	return append(found, health...)
}

func (b *Broker) runningNodes(ctx context.Context) (names []string, err error) {
	var nodes []struct {
		Name    string `json:"name"`
		Running bool   `json:"running"`
	}
	_, err = b.ask(ctx, &nodes, nil, "nodes")
	for _, n := range nodes {
		if n.Running {
			names = append(names, n.Name)
		}
	}
	return names, err
}

// lonely are the quorum queues with one member where there are more nodes: those
// that workers made count as one.
func (b *Broker) lonely(queues []quality, nodes []string) (found []inspect.Finding) {
	if len(nodes) < 2 {
		return nil
	}
	made := 0
	var first quality
	for _, q := range queues {
		switch {
		case q.kind != typeQuorum || len(q.members) != 1:
		case q.role != ours:
			found = append(found, onOneNode(q, nodes, "it", "^"+regexp.QuoteMeta(q.name)+"$"))
		default:
			first, made = q, made+1
		}
	}
	if made > 0 {
		first.name = b.names.prefix + ".*"
		found = append(found, onOneNode(first, nodes, fmt.Sprintf("each of %d queues for retries", made), "^"+regexp.QuoteMeta(b.names.prefix)+`\.`))
	}
	return found
}

// replicas are the members that a quorum queue has by default, if there are as many
// nodes.
const replicas = 3

func onOneNode(q quality, nodes []string, what, pattern string) inspect.Finding {
	others := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return node == q.members[0] })
	var commands []string
	for _, node := range others[:min(len(others), replicas-1)] {
		commands = append(commands, fmt.Sprintf("rabbitmq-queues grow %s all --vhost-pattern %s --queue-pattern %s", shell(node), shell("^"+regexp.QuoteMeta(q.vhost)+"$"), shell(pattern)))
	}
	f := q.finding(inspect.Noted, "members", q.members[0], fmt.Sprintf("%d nodes", min(len(nodes), replicas)),
		fmt.Sprintf("%s is on one of %d nodes: it stands still while that is down, and is lost with its disk", what, len(nodes)), strings.Join(commands, " && "))
	f.See = checking
	return f
}

// unused are the delay queues of the prefix that t does without.
func (b *Broker) unused(ctx context.Context, vhost string, t topology) (found []inspect.Finding, err error) {
	var page struct {
		Items []struct {
			Name     string `json:"name"`
			Messages *int   `json:"messages"` // nil if it is not known
		} `json:"items"`
	}
	queues := b.names.prefix + ".delay."
	query := url.Values{"name": {queues}, "page": {"1"}, "page_size": {"500"}, "disable_stats": {"true"}, "enable_queue_totals": {"true"}} // which brokers without statistics know, too
	if _, err := b.ask(ctx, &page, query, "queues", vhost); err != nil {
		return nil, err
	}
	for _, q := range page.Items {
		needed := slices.ContainsFunc(t.queues, func(is queue) bool { return is.name == q.Name })
		if needed || !strings.HasPrefix(q.Name, queues) || q.Messages == nil || *q.Messages > 0 {
			continue
		}
		found = append(found, inspect.Finding{Severity: inspect.Noted, Topic: q.Name, See: checking,
			Why: "it is empty, and no delay of these topics is so long: unless other workers have the same prefix and longer delays, nobody needs it",
			Fix: fmt.Sprintf("rabbitmqctl delete_queue -p %s %s", shell(vhost), shell(q.Name))})
	}
	return found, nil
}

// health finds alarms, and a clock that is off.
func (b *Broker) health(ctx context.Context) (found []inspect.Finding, err error) {
	var report struct { // empty unless the check has failed
		Alarms []struct {
			Resource string `json:"resource"`
			Node     string `json:"node"`
		} `json:"alarms"`
	}
	before := time.Now()
	answer, err := b.ask(ctx, &report, nil, "health", "checks", "alarms")
	if answer == nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		management, _ := url.Parse(b.options.ManagementURL) // as New did
		found = adapter.Clock(management.Host, checking, before, time.Now(), date)
	}
	for _, a := range report.Alarms {
		why := "nobody can publish in the whole cluster until it is over: retries and dead letters wait, and their originals stay in their queues"
		if a.Resource == "file descriptors" {
			why = "the node takes no new connections until it is over"
		}
		found = append(found, inspect.Finding{Severity: inspect.Noted, Topic: a.Node, Setting: a.Resource + " alarm", Value: "in effect", Want: "none", Why: why, See: checking,
			Fix: fmt.Sprintf("see what uses the %s on that node, and free some", a.Resource)})
	}
	return found, err
}
