package snippets

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// TestPoliciesAreEnough compares the rights that the policies of a page grant,
// by queue, with the calls that a producer and a worker make.
func TestPoliciesAreEnough(t *testing.T) {
	var published, worked map[string][]string
	synctest.Test(t, func(t *testing.T) { published, worked = callsOnSQS(t) })
	p := readPage(t, "docs/how-to/set-up-queues-on-sqs.md")
	for heading, want := range map[string]map[string][]string{"Rights of a producer": published, "Rights of a worker": worked} {
		got := granted(t, p, heading)
		if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("%s: %q grants\n%q, the calls need\n%q", p.path, heading, got, want)
		}
	}
}

// granted returns the actions of the policy below a heading, sorted, by queue.
func granted(t *testing.T, p *page, heading string) map[string][]string {
	t.Helper()
	var policy struct {
		Statement []struct {
			Effect, Resource string
			Action           []string
		}
	}
	_, below, _ := strings.Cut(p.text, "\n## "+heading+"\n")
	_, text, _ := strings.Cut(below, "```json\n")
	text, _, _ = strings.Cut(text, "```")
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		t.Fatalf("%s: the policy below %q: %v", p.path, heading, err)
	}
	rights := map[string][]string{}
	for _, s := range policy.Statement {
		if s.Effect != "Allow" {
			t.Errorf("%s: %q has the effect %q", p.path, heading, s.Effect)
		}
		queue := s.Resource[strings.LastIndexByte(s.Resource, ':')+1:]
		rights[queue] = slices.Sorted(slices.Values(append(rights[queue], s.Action...)))
	}
	return rights
}

// callsOnSQS has a producer publish, and a worker retry in place and by copy,
// bury, and extend a lease. It returns the rights that they needed, as granted
// does.
func callsOnSQS(t *testing.T) (published, worked map[string][]string) {
	server := sqstest.New(sqstest.Options{})
	defer server.Close()
	run := func(create bool, handle consumer.Handler) {
		broker, err := sqs.New(sqs.Options{Config: server.Config(), Create: create})
		must(t, err)
		worker, err := consumer.New(broker, consumer.Config{
			DeadLetter: dlq.Suffix("-dead"),
			Logger:     slog.New(slog.DiscardHandler),
			Retry:      retry.Policy{Backoff: retry.Backoff{Floor: 5 * time.Second}},
		})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		worker.Handle("orders", handle)
		must(t, errors.Join(worker.Run(ctx), broker.Close(ctx)))
	}
	run(true, func(context.Context, *brokers.Message) error { return nil })
	before := len(server.Calls())
	producer, err := sqs.New(sqs.Options{Config: server.Config()})
	must(t, err)
	for _, id := range []string{"busy", "throttled", "broken", "slow"} {
		must(t, producer.Publish(t.Context(), "orders", brokers.Message{ID: id, Body: []byte("{}")}))
	}
	between := len(server.Calls())
	run(false, func(ctx context.Context, m *brokers.Message) error {
		switch first := consumer.MetaFrom(ctx).LastFailedAt.IsZero(); {
		case m.ID == "broken":
			return classify.Permanent(errors.New("broken"))
		case m.ID == "busy" && first:
			return classify.Transient(errors.New("busy"))
		case m.ID == "throttled" && first:
			return classify.Throttled(errors.New("throttled"), 10*time.Second)
		case m.ID == "slow":
			time.Sleep(2 * time.Minute)
		}
		return nil
	})
	if q, dead := server.Queue("orders"), server.Queue("orders-dead"); q.Visible+q.InFlight+q.Delayed > 0 || dead.Visible != 1 {
		t.Fatalf("the queues are %+v and %+v, want an empty one and one letter", q, dead)
	}
	calls := server.Calls()
	return rights(calls[before:between]), rights(calls[between:])
}

// rights returns the actions that calls need, sorted, by queue.
func rights(calls []sqstest.Call) map[string][]string {
	needed := map[string][]string{}
	for _, c := range calls {
		action := "sqs:" + strings.TrimSuffix(c.Operation, "Batch")
		if !slices.Contains(needed[c.Queue], action) {
			needed[c.Queue] = append(needed[c.Queue], action)
		}
	}
	for _, actions := range needed {
		slices.Sort(actions)
	}
	return needed
}
