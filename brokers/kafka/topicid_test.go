package kafka

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// identified is a client of a stub that knows the IDs of topics, which the library of
// the stub does not.
type identified struct {
	cluster.Client
	stub *stub
}

func (c identified) Ask(ctx context.Context, node int32, req kmsg.Request, buffer *bytes.Buffer) (kmsg.Response, error) {
	c.stub.mu.Lock()
	defer c.stub.mu.Unlock()
	switch req.(type) {
	case *kmsg.ApiVersionsRequest:
		return &kmsg.ApiVersionsResponse{ApiKeys: []kmsg.ApiVersionsResponseApiKey{{ApiKey: int16(kmsg.Metadata), MaxVersion: 12}}}, nil
	case pinned:
		name := "C"
		return &kmsg.MetadataResponse{ClusterID: &name, Topics: []kmsg.MetadataResponseTopic{{TopicID: c.stub.id}}}, nil
	}
	c.stub.mu.Unlock()
	defer c.stub.mu.Lock()
	return c.Client.Ask(ctx, node, req, buffer)
}

// inCommit is what a commit says of the ID of a topic.
func inCommit(cluster string, id [16]byte) string {
	return "t" + cluster + "/" + base64.RawURLEncoding.EncodeToString(id[:]) + ";"
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
	old, fresh, none, before := [16]byte{1}, [16]byte{2}, [16]byte{}, inCommit("C", [16]byte{1})
	for name, tt := range map[string]struct {
		metadata string
		has      span
		id       [16]byte
		next     int64 // the first record that is read
		alarm    bool
	}{
		"the same":             {before, span{0, end}, old, low, false},
		"another":              {before, span{0, end}, fresh, 0, true},
		"another, shortened":   {before, span{4, end}, fresh, 4, true},
		"no ID in the commit":  {"", span{0, end}, fresh, low, false},
		"no ID in the broker":  {before, span{0, end}, none, low, false},
		"of another cluster":   {inCommit("D", fresh), span{0, end}, old, low, false},
		"of another's client":  {"worker-7", span{0, end}, old, low, false},
		"of a version before":  {"w3mv.lfls6q3v.3uw;", span{0, end}, old, low, false},
		"another, and no more": {before + "r1:", span{0, end}, fresh, 0, true},
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
			if c, _ := f.changed(ownerOpen); tt.id != none && c.metadata != ownerOpen+inCommit("C", tt.id) {
				t.Errorf("%s: the next commit says %q, want the ID %v", name, c.metadata, tt.id)
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
		s.id = [16]byte{2}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok && call == 2 {
				s.log = []rawBatch{{base: 0, last: end - 1, records: numbered(0, end)}}
			}
			return nil, nil
		}
		f, err := readerOn(t, s, first, commitment{low, ownerClean + inCommit("C", [16]byte{1})}, span{0, end}, usualLimits)
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
