package kafka

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// Topology returns the commands that create the topics that subs need, one a line and
// with settings as Open would create them; the topics themselves with those of the
// cluster. A topic that exists stays as it is. What Open takes over from topics that
// it finds, such as min.insync.replicas and a larger message size, is not in them: it
// connects to nothing.
func (b *Broker) Topology(subs ...brokers.Subscription) (string, error) {
	var lines []string
	for _, sub := range subs {
		sub.Group = cmp.Or(sub.Group, b.options.Group)
		p, err := b.options.plan(sub)
		if err != nil {
			return "", fmt.Errorf("kafka: topology of %q: %w", sub.Topics, err)
		}
		for _, q := range b.qualities(p, baseline{}, nil) {
			line := q.creation() + " --bootstrap-server " + strings.Join(b.options.Brokers, ",") + "\n"
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, ""), nil
}
