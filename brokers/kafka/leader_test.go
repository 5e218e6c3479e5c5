package kafka

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A partition is read from the replica that its leader names, from the leader when
// that fails, and from the replica again a minute later.
func TestNearReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.log = []rawBatch{{base: 0, records: []record{{offset: 0, value: []byte("a")}, {offset: 1, value: []byte("b")}}}}
		var mu sync.Mutex
		asked := map[string]int{} // fetches by broker and rack
		failing := false
		const leader, replica = 1, 2
		s.answer = func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*metadata.Request); !ok {
				return nil, nil
			}
			return &metadata.Response{ControllerID: leader,
				Brokers: []metadata.ResponseBroker{{NodeID: leader, Host: "far", Port: 9092}, {NodeID: replica, Host: "near", Port: 9092}},
				Topics: []metadata.ResponseTopic{{Name: "orders", Partitions: []metadata.ResponsePartition{
					{PartitionIndex: 0, LeaderID: leader, ReplicaNodes: []int32{leader, replica}, IsrNodes: []int32{leader, replica}}}}}}, nil
		}
		s.fetching = func(address string, req *fetch.Request) kmsg.Response {
			mu.Lock()
			defer mu.Unlock()
			near := strings.HasPrefix(address, "near")
			asked[address+" "+req.RackID]++
			if near && failing {
				return fetchResponse("orders", kmsg.FetchResponseTopicPartition{ErrorCode: 9, PreferredReadReplica: -1})
			}
			if !near && req.RackID == "a" {
				part := kmsg.NewFetchResponseTopicPartition()
				part.PreferredReadReplica = replica
				return fetchResponse("orders", part)
			}
			return nil
		}
		c := s.client(func(o *Options) { o.Rack = "a" })
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		f := newFetches(ctx, c)
		get := func(offset int64, body, by string) {
			t.Helper()
			mu.Lock()
			before := asked[by]
			mu.Unlock()
			got, err := f.get(t.Context(), want{first, offset, 1 << 20}, usualRoom, true)
			if err != nil || len(got.records) == 0 || string(got.records[0].value) != body {
				t.Fatalf("fetched %d records, error %v, want %q", len(got.records), err, body)
			}
			if asked[by] == before {
				t.Errorf("offset %d is not of %q: %v", offset, by, asked)
			}
		}
		get(0, "a", "near:9092 a")
		get(1, "b", "near:9092 a")
		if n := asked["far:9092 a"]; n != 1 {
			t.Errorf("the leader was asked %d times, want once", n)
		}
		failing = true
		get(0, "a", "far:9092 ")
		get(1, "b", "far:9092 ")
		failing = false
		time.Sleep(2 * time.Minute)
		get(0, "a", "near:9092 a")
		cancel()
		f.work.Wait()
	})
}

// A fetch is answered after its reader has gone on to another offset, as after a pause:
// the answer is not for the new request, which stays.
func TestLateAnswerIsForNobody(t *testing.T) {
	answer := func() *fetchAnswer {
		part := kmsg.NewFetchResponseTopicPartition()
		part.RecordBatches = []byte("records")
		return &fetchAnswer{FetchResponse: fetchResponse("orders", part).(*kmsg.FetchResponse)}
	}
	l := &leader{pending: make(map[partition]*request), owed: make(map[partition]bool), more: make(chan struct{}, 1), late: make(chan struct{}, 1)}
	r := &request{want: want{first, 5, 100}, found: make(chan found, 1)}
	l.add(r)
	l.waiting = map[partition]want{first: {first, 3, 100}}
	l.answerTo(&l.waiting, answer(), nil)
	if len(r.found) != 0 || l.pending[first] != r {
		t.Error("a request for offset 5 is answered with records from offset 3 on")
	}
	l.waiting = map[partition]want{first: {first, 5, 200}}
	l.answerTo(&l.waiting, answer(), nil)
	if got := <-r.found; got.part == nil || l.pending[first] != nil {
		t.Errorf("the request is answered with %+v, want its records", got)
	}
}
