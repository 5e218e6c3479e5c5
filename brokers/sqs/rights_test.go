package sqs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const setUp = "../../docs/how-to/set-up-queues-on-sqs.md"

// policies are the actions that the policies in the documentation allow, by the
// names of queues, policy by policy.
func policies(t *testing.T) (all []map[string][]string) {
	t.Helper()
	page, err := os.ReadFile(setUp)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(page), "```json\n")[1:] {
		var policy struct {
			Statement []struct {
				Action   []string
				Resource string
			}
		}
		text, _, _ := strings.Cut(block, "```")
		if err := json.Unmarshal([]byte(text), &policy); err != nil {
			t.Fatalf("a policy in %s: %v", setUp, err)
		}
		allowed := map[string][]string{}
		for _, s := range policy.Statement {
			allowed[arnName(s.Resource)] = append(allowed[arnName(s.Resource)], s.Action...)
		}
		all = append(all, allowed)
	}
	return all
}

// TestRights has a worker do all that it ever does, a producer publish, and a tool put
// back: they need the rights that the documentation lists, and no others. Those of
// the tool are a producer's.
func TestRights(t *testing.T) {
	play(t, "orders", Options{}, func(s *scene) {
		s.create("orders-dead", nil)
		s.create("orders", nil)
		begun := len(s.server.Calls())
		used := func() map[string][]string {
			actions := map[string][]string{}
			for _, c := range s.server.Calls()[begun:] {
				action := "sqs:" + strings.TrimSuffix(c.Operation, "Batch") // for which there is no right of its own
				if !slices.Contains(actions[c.Queue], action) {
					actions[c.Queue] = append(actions[c.Queue], action)
				}
			}
			begun = len(s.server.Calls())
			return actions
		}
		s.sub.DeadLetters = map[string]string{"orders": "orders-dead"}
		src := s.open()
		send := func(b *Broker, topic string) {
			if err := b.Publish(s.Context(), topic, brokers.Message{Body: []byte("a")}); err != nil {
				s.Error(err)
			}
		}
		send(s.broker, "orders")
		s.settle(src, again(s.one(src), time.Second))
		s.settle(src, again(s.one(src), 13*time.Hour))
		send(s.broker, "orders-dead")
		s.drain(src, 1)
		s.leave(src)
		worker := used()
		send(s.start(Options{}), "orders")
		producer := used()
		if err := s.start(Options{}).SendBack(s.Context(), "", "orders", brokers.Item{Message: &brokers.Message{Body: []byte("a")}}); err != nil {
			s.Error(err)
		}
		for i, actions := range []map[string][]string{worker, producer, used()} {
			allowed := policies(t)[min(i, 1)]
			for queue := range maps.Keys(actions) {
				if want, got := slices.Sorted(slices.Values(allowed[queue])), slices.Sorted(slices.Values(actions[queue])); !slices.Equal(got, want) {
					s.Errorf("policy %d in %s allows %q on %q, used are %q", i, setUp, want, queue, got)
				}
			}
			if len(actions) != len(allowed) {
				s.Errorf("policy %d in %s is about %d queues, used are %d", i, setUp, len(allowed), len(actions))
			}
		}
	})
}

// TestTemplates holds the templates in the documentation against what Open
// accepts.
func TestTemplates(t *testing.T) {
	page, err := os.ReadFile(setUp)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"orders", "orders.fifo"} {
		for _, format := range []string{"maxReceiveCount: %d ", "maxReceiveCount     = %d "} {
			if want := fmt.Sprintf(format, leastReceives(topic, 10)); strings.Count(string(page), want) != 1 {
				t.Errorf("%s says %q %d times, want once, for %s", setUp, want, strings.Count(string(page), want), topic)
			}
		}
	}
}
