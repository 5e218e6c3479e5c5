package main

import (
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

// A copy that no settlement asked for explains one more delivery; one that was
// asked for does not, nor does a settlement that failed before its copy was
// made hide the next one.
func TestCopiesThatNobodyAskedFor(t *testing.T) {
	const asked, copied, answered = 'a', 'c', 's'
	for _, tt := range []struct {
		events string
		want   int
	}{
		{"acs", 0},
		{"acsacs", 0},
		{"c", 1},
		{"acsc", 1},
		{"asc", 1},
		{"asacs", 0},
		{"cc", 2},
	} {
		c := &checker{record: &record{scenario: &scenario{served: true}}, deliveries: map[int]*delivery{}, settledBy: map[brokers.Action]int{}}
		f := &fate{id: "m1", done: map[string]int{}}
		w := &life{number: 1, stopping: 1}
		c.deliveries[1] = &delivery{number: 1, fate: f, topic: &topic{}, worker: w}
		e := event{Delivery: 1, Worker: 1, ID: "m1", Action: brokers.Release}
		for _, what := range tt.events {
			switch what {
			case asked:
				c.takeSettling(&e)
			case copied:
				c.takeCopy(f)
			case answered:
				failed := e
				failed.Err = unknownOutcome
				c.takeSettled(&failed)
			}
		}
		if f.wild != tt.want {
			t.Errorf("%s: %d deliveries more are explained, want %d", tt.events, f.wild, tt.want)
		}
	}
}
