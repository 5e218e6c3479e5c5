package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func TestCounting(t *testing.T) {
	for name, tt := range map[string]struct {
		copies      bool
		history     history
		receives    int
		wantAttempt int
		wantLost    int
	}{
		"first receive":                             {receives: 1},
		"retried in place, or else":                 {receives: 4, wantAttempt: 3},
		"a copy":                                    {history: history{meta: brokers.Meta{Attempt: 4}}, receives: 1, wantAttempt: 4},
		"a copy that was retried in place":          {history: history{meta: brokers.Meta{Attempt: 4}}, receives: 3, wantAttempt: 6},
		"before its hop":                            {history: history{meta: brokers.Meta{Attempt: 4}, hops: 1}, receives: 1, wantAttempt: 4},
		"after its hop":                             {history: history{meta: brokers.Meta{Attempt: 4}, hops: 1}, receives: 2, wantAttempt: 4},
		"a receive more than hops":                  {history: history{meta: brokers.Meta{Attempt: 4}, hops: 1}, receives: 3, wantAttempt: 5},
		"never the last attempt":                    {receives: 10, wantAttempt: 9},
		"what is above is lost":                     {receives: 30, wantAttempt: 9, wantLost: 20},
		"an attempt above stays":                    {history: history{meta: brokers.Meta{Attempt: 12}}, receives: 3, wantAttempt: 12, wantLost: 2},
		"copies: no receive is an attempt":          {copies: true, history: history{meta: brokers.Meta{Attempt: 4}}, receives: 3, wantAttempt: 4, wantLost: 2},
		"a note, and nothing since":                 {history: history{meta: brokers.Meta{Attempt: 2}, receives: 7}, receives: 8, wantAttempt: 2},
		"a note, and another worker since":          {history: history{meta: brokers.Meta{Attempt: 2}, receives: 7}, receives: 10, wantAttempt: 4},
		"a note keeps what was lost before":         {history: history{meta: brokers.Meta{Attempt: 2}, receives: 7, lost: 5}, receives: 8, wantAttempt: 2, wantLost: 5},
		"copies: a note, and another worker since":  {copies: true, history: history{meta: brokers.Meta{Attempt: 2}, receives: 7}, receives: 10, wantAttempt: 2, wantLost: 2},
		"a count that is lower than one in a note":  {history: history{meta: brokers.Meta{Attempt: 2}, receives: 7}, receives: 3, wantAttempt: 2},
		"copies: hops are planned, and no crashes":  {copies: true, history: history{hops: 2}, receives: 3},
		"copies: a crash on the way through a hop":  {copies: true, history: history{hops: 2}, receives: 4, wantLost: 1},
		"a note on the way through a hop":           {history: history{receives: 1, hops: 1}, receives: 3},
		"a note on the way, and a crash after that": {history: history{receives: 1, hops: 1}, receives: 4, wantAttempt: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := counting{copies: tt.copies, maxAttempts: 10}
			meta, lost := c.read(tt.history, tt.receives)
			if meta.Attempt != tt.wantAttempt || lost != tt.wantLost {
				t.Errorf("attempt %d and %d lost, want %d and %d", meta.Attempt, lost, tt.wantAttempt, tt.wantLost)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	n := newNotes(3)
	for i := range 4 {
		n.put(fmt.Sprint(i), history{receives: 1, meta: brokers.Meta{Attempt: i}}, now, time.Duration(i)*time.Hour)
	}
	if len(n.entries) != 3 || n.room("3", now) {
		t.Fatalf("%d notes, want 3, and room for no other", len(n.entries))
	}
	if !n.room("2", now) {
		t.Error("there is no room for another note about a message that there is one of")
	}
	if got := n.about(&record{id: "2", receives: 2}).meta.Attempt; got != 2 {
		t.Errorf("attempt of a noted message = %d, want 2", got)
	}
	if got := n.about(&record{id: "2", receives: 1, meta: brokers.Meta{Attempt: 7}}).meta.Attempt; got != 7 {
		t.Errorf("attempt = %d by a note from the future, want the one of the message, 7", got)
	}
	if got := n.about(&record{id: "3", receives: 2, meta: brokers.Meta{Attempt: 7}}).meta.Attempt; got != 7 {
		t.Errorf("attempt of a message without a note = %d, want its own, 7", got)
	}
	later := now.Add(noteLife + time.Minute)
	if !n.room("3", later) {
		t.Error("a note that has expired takes up room")
	}
	if got := n.about(&record{id: "2", receives: 2}).meta.Attempt; got != 2 {
		t.Errorf("the note about a message that waits for 2 h is gone after 1 h: attempt %d", got)
	}
	delete(n.entries, "2")
	if got := n.about(&record{id: "2", receives: 2}).meta.Attempt; got != 0 {
		t.Errorf("attempt by a note that was dropped = %d, want 0", got)
	}
}
