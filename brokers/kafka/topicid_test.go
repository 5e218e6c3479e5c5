package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// identified is a client of a stub that knows the IDs of topics, which the library of
// the stub does not.
type identified struct {
	cluster.Client
	stub *stub
}

func (c identified) TopicID(context.Context, int32, string) (string, error) {
	c.stub.mu.Lock()
	defer c.stub.mu.Unlock()
	return c.stub.id, nil
}

func TestIDInMetadata(t *testing.T) {
	for name, tt := range map[string]struct{ text, id, rest string }{
		"none":            {"r1:a;bc", "", "r1:a;bc"},
		"empty":           {"", "", ""},
		"one":             {"tC/T;r1:t;", "C/T", "r1:t;"},
		"and no more":     {"tC/T;", "C/T", ""},
		"of before":       {"w3mv.lfls6q3v.3uw;r1:", "w3mv.lfls6q3v.3uw", "r1:"},
		"another's text":  {"worker-7", "worker-7", ""},
		"begins likewise": {"tt/T;", "t/T", ""},
	} {
		if id, rest := cutLog(tt.text); id != tt.id || rest != tt.rest {
			t.Errorf("%s: %q is %q and %q, want %q and %q", name, tt.text, id, rest, tt.id, tt.rest)
		}
	}
}

// Whoever takes a partition over compares the ID of its topic with that in the commit.
func TestAnotherLogIsFoundOut(t *testing.T) {
	const low, end = 5, 10
	all := numbered(0, end)
	for name, tt := range map[string]struct {
		metadata string
		has      span
		id       string
		next     int64 // the first record that is read
		alarm    bool
	}{
		"the same":             {"tC/T;", span{0, end}, "C/T", low, false},
		"another":              {"tC/T;", span{0, end}, "C/U", 0, true},
		"another, shortened":   {"tC/T;", span{4, end}, "C/U", 4, true},
		"no ID in the commit":  {"", span{0, end}, "C/U", low, false},
		"no ID in the broker":  {"tC/T;", span{0, end}, "", low, false},
		"of another cluster":   {"tC/T;", span{0, end}, "D/T", low, false},
		"of another's client":  {"worker-7", span{0, end}, "C/T", low, false},
		"of a version before":  {"w3mv.lfls6q3v.3uw;", span{0, end}, "C/T", low, false},
		"another, and no more": {"tC/T;r1:", span{0, end}, "C/U", 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStub(t)
			s.start, s.log, s.id = tt.has.first, []rawBatch{{base: tt.has.first, last: end - 1, records: all[tt.has.first:]}}, tt.id
			f, err := readerOn(t, s, first, commitment{low, ownerClean + tt.metadata}, tt.has, usualLimits)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer f.stop()
			got, err := f.fetch(t.Context())
			if err != nil || len(got.records) == 0 || got.records[0].offset != tt.next {
				t.Errorf("%s: %d records, %v; want those from offset %d on", name, len(got.records), err, tt.next)
			}
			alarms := f.alarms()
			if (len(alarms) > 0) != tt.alarm || tt.alarm && !strings.Contains(alarms[0].Error(), "another log") {
				t.Errorf("%s: alarms %v", name, alarms)
			}
			if c, _ := f.changed(ownerOpen); tt.id != "" && c.metadata != ownerOpen+logMark+tt.id+";" {
				t.Errorf("%s: the next commit says %q, want the ID %s", name, c.metadata, tt.id)
			}
		})
	}
}

// A log that is made anew is empty at first. What is written to it while the
// reader makes sure is read from its beginning.
func TestLogThatIsFilledMeanwhile(t *testing.T) {
	const low, end = 5, 10
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.id = "C/U"
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok && call == 2 {
				s.log = []rawBatch{{base: 0, last: end - 1, records: numbered(0, end)}}
			}
			return nil, nil
		}
		f, err := readerOn(t, s, first, commitment{low, ownerClean + "tC/T;"}, span{0, end}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		got, err := f.fetch(t.Context())
		if _, out := errors.AsType[*rangeError](err); !out {
			t.Errorf("from an empty log: %d records, %v; want that there is no offset %d", len(got.records), err, low)
		}
		got, err = f.fetch(t.Context()) // as whoever comes next does
		if err != nil || len(got.records) == 0 || got.records[0].offset != 0 || len(f.alarms()) == 0 {
			t.Errorf("from the new log: %d records, %v, and no alarm; want those from offset 0 on", len(got.records), err)
		}
	})
}
