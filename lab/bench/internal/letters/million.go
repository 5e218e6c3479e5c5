package letters

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/foreign"
	"github.com/redrive-go/redrive/operate/store"
)

// Fill has a store collect n letters as they come in incidents: every thousand most
// are of the same few of 2,000 groups.
func Fill(ctx context.Context, into *store.Store, n int) error {
	random := rand.New(rand.NewPCG(1, 1))
	batch := make([]store.Collected, 1000)
	for from := 0; from < n; from += len(batch) {
		for i := range batch {
			batch[i] = varied(random, from+i)
		}
		if _, err := into.Collect(ctx, batch[len(batch)-1].Entry.DeadAt.Add(time.Minute), batch); err != nil {
			return err
		}
	}
	return nil
}

func varied(random *rand.Rand, n int) store.Collected {
	kind := random.IntN(2000)
	if random.IntN(5) > 0 {
		kind = (n/1000*7919 + random.IntN(5)) % 2000
	}
	e, _ := dlq.Decode(Letter(n)) // it is one
	e.Message.Topic = fmt.Sprintf("topic-%d", kind%50)
	e.Group = fmt.Sprintf("group-%d", kind%10)
	e.Reason = []string{"exhausted", "poison", "expired", "unclassified"}[kind%4]
	e.Fingerprint = fmt.Sprintf("%012x", kind/50)
	return store.Collected{Broker: "bench", Source: e.Message.Topic + ".dead", Format: string(foreign.Redrive), Raw: e.Encode(0), Entry: e}
}

// Filters are those of lists that somebody looks at, in a store that Fill has
// filled.
func Filters() map[string]store.Filter {
	return map[string]store.Filter{
		"all":               {},
		"topic":             {Topic: "topic-7"},
		"source":            {Source: "topic-8.dead"},
		"group":             {Group: "group-3"},
		"reason":            {Reason: "poison"},
		"class":             {Class: "transient"},
		"fingerprint":       {Fingerprint: "000000000007"},
		"error group":       {Cluster: 77},
		"state":             {States: []store.State{store.StateCollected}},
		"state of none":     {States: []store.State{store.StateDiscarded}},
		"group and reason":  {Group: "group-3", Reason: "poison"},
		"topic and state":   {Topic: "topic-7", States: []store.State{store.StateCollected}},
		"message":           {MessageID: "message-000500000"},
		"message of nobody": {MessageID: "nobody"},
	}
}
