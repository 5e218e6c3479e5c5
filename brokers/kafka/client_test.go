package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

func mustFetch(t *testing.T, c *client, p partition, offset int64, maxBytes int, wait time.Duration) fetched {
	t.Helper()
	got, err := c.fetch(withinTime(t), p, offset, maxBytes, wait, usualRoom)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// drain fetches from offset until there is nothing more, and fails if that
// does not come nearer with every call.
func drain(t *testing.T, c *client, p partition, offset int64) (records []*record, next int64, calls int) {
	t.Helper()
	for {
		got := mustFetch(t, c, p, offset, 1<<20, 20*time.Millisecond)
		calls++
		records = append(records, got.records...)
		if got.next < offset {
			t.Fatalf("fetch from %d says to go on from %d", offset, got.next)
		}
		if got.next == offset {
			if got.stable > offset {
				t.Fatalf("fetch from %d does not come further, and the log goes to %d", offset, got.stable)
			}
			return records, got.next, calls
		}
		offset = got.next
	}
}

func second[T any](_ T, err error) error { return err }

func TestHolesArePassedInFewCalls(t *testing.T) {
	const far = 10_000_000
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{
			{base: 0, last: 999, records: []record{{offset: 10, value: []byte("a")}}},
			{base: 1000, last: far - 1}, // emptied
			{base: far, last: far + 5, records: []record{{offset: far + 2, value: []byte("b")}}},
			{base: far + 6, records: []record{{offset: far + 6, value: []byte("open")}}, transactional: true},
		}
		s.stable = far + 6
		for _, from := range []int64{0, 10, 11, 500, 999, 1000, 5000, far - 1, far, far + 2, far + 3} {
			want := ""
			switch {
			case from <= 10:
				want = "a b"
			case from <= far+2:
				want = "b"
			}
			records, next, calls := drain(t, c, first, from)
			if values(records) != want || next != far+6 || calls > 100 {
				t.Errorf("from %d: %q, next %d in %d calls; want %q, next %d", from, values(records), next, calls, want, far+6)
			}
		}
	})
}

func TestAbortedAndMarks(t *testing.T) {
	of := func(base, producer int64, transactional bool, value string) rawBatch {
		return rawBatch{base: base, producer: producer, transactional: transactional, records: []record{{offset: base, value: []byte(value)}}}
	}
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{
			of(0, 7, true, "void"), of(1, 8, true, "good"), of(2, 7, false, "idempotent"), {base: 3, producer: 7, mark: "abort"},
			of(4, 7, true, "again"), {base: 5, producer: 8, mark: "commit"}, {base: 6, producer: 7, mark: "commit"},
			of(7, 7, true, "void"), of(8, 8, true, "void"), {base: 9, producer: 8, mark: "abort"}, {base: 10, producer: 7, mark: "abort"},
		}
		s.aborted = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 8, FirstOffset: 8}, {ProducerID: 7, FirstOffset: 7}, {ProducerID: 7, FirstOffset: 0}}
		records, next, calls := drain(t, c, first, 0)
		if values(records) != "good idempotent again" || next != 11 || calls != 2 {
			t.Errorf("%q, next %d in %d calls; want good idempotent again, next 11, in 2", values(records), next, calls)
		}
	})
}

func TestRecordsOfTheOldFormat(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		old := func(r record) rawBatch { return rawBatch{old: true, base: r.offset, records: []record{r}} }
		s.log = []rawBatch{
			old(record{offset: 0, key: []byte("k"), value: []byte("a")}), old(record{offset: 1, value: nil}),
			old(record{offset: 2, key: []byte{}, value: []byte{}}), {base: 3, records: []record{{offset: 3, value: []byte("new")}}},
			{old: true, timeless: true, base: 4, records: []record{{offset: 4, key: []byte("k"), value: []byte("oldest")}}},
		}
		records, next, _ := drain(t, c, first, 0)
		if values(records) != "a   new oldest" || next != 5 || string(records[0].key) != "k" || records[1].value != nil || records[2].key == nil {
			t.Errorf("%q, next %d", values(records), next)
		}
		if stamp := records[0].time; stamp.UnixMilli() != stubTime {
			t.Errorf("the first is of %v", stamp)
		}
		s.corrupt = 1
		got, err := c.fetch(t.Context(), first, 1, 1<<20, 0, usualRoom)
		if !errors.Is(err, cluster.ErrCorrupt) || got.next != 1 {
			t.Errorf("a damaged one: next %d, %v", got.next, err)
		}
	})
}

func fetchError(code int16) protocol.Message {
	return &fetch.Response{Topics: []fetch.ResponseTopic{{Topic: "orders", Partitions: []fetch.ResponsePartition{{
		ErrorCode: code, HighWatermark: -1, RecordSet: protocol.RecordSet{Version: 2, Records: kafka.NewRecordReader(kafka.Record{})},
	}}}}}
}

func TestRecordsFellOffTheLog(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.start = 100
		s.log = []rawBatch{{base: 100, records: []record{{offset: 100}}}}
		for offset, want := range map[int64]string{
			40:  "offsets 100 to 100, and 40 was asked for: the records before were deleted",
			200: "offsets 100 to 100, and 200 was asked for: the log is shorter than that",
		} {
			_, err := c.fetch(t.Context(), first, offset, 1<<20, 0, usualRoom)
			e, ok := errors.AsType[*rangeError](err)
			if !ok || e.first != 100 || e.last != 101 || !strings.Contains(err.Error(), want) || errors.Is(err, brokers.ErrMisconfigured) {
				t.Errorf("fetch from %d: %v", offset, err)
			}
		}
		s.answer = answering(func(*fetch.Request) protocol.Message { return fetchError(1) })
		if _, err := c.fetch(t.Context(), first, 100, 1<<20, 0, usualRoom); errors.Is(err, kafka.OffsetOutOfRange) || !errors.Is(err, kafka.OffsetNotAvailable) {
			t.Errorf("an offset that is there again: %v", err)
		}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req.(type) {
			case *fetch.Request:
				return fetchError(1), nil
			case *listoffsets.Request:
				return nil, io.EOF
			}
			return nil, nil
		}
		_, err := c.fetch(t.Context(), first, 100, 1<<20, 0, usualRoom)
		if e, ok := errors.AsType[*rangeError](err); !ok || e.first != -1 {
			t.Errorf("without the bounds: %v", err)
		}
	})
}

func TestFetchErrors(t *testing.T) {
	for code, want := range map[int16]struct {
		kind  error
		calls int
	}{
		3:  {brokers.ErrMisconfigured, 7}, // it may be new
		6:  {kafka.NotLeaderForPartition, 7},
		29: {brokers.ErrMisconfigured, 1},
		35: {brokers.ErrMisconfigured, 1},
		2:  {cluster.ErrCorrupt, 1},
		78: {kafka.OffsetNotAvailable, 1},
	} {
		onStub(t, func(t *testing.T, s *stub, c *client) {
			s.answer = answering(func(*fetch.Request) protocol.Message { return fetchError(code) })
			got, err := c.fetch(t.Context(), first, 9, 1<<20, 0, usualRoom)
			if !errors.Is(err, want.kind) || got.next != 9 || s.count(protocol.Fetch) != want.calls {
				t.Errorf("code %d: next %d after %d requests, %v; want %v after %d", code, got.next, s.count(protocol.Fetch), err, want.kind, want.calls)
			}
			if code == 6 && errors.Is(err, brokers.ErrMisconfigured) {
				t.Errorf("code %d is misconfigured: %v", code, err)
			}
		})
	}
}

func TestCommitErrors(t *testing.T) {
	for code, want := range map[int16]struct {
		kind  error
		calls int
	}{
		14: {kafka.GroupLoadInProgress, 7},
		16: {kafka.NotCoordinatorForGroup, 7},
		22: {brokers.ErrLeaseLost, 1},
		25: {brokers.ErrLeaseLost, 1},
		27: {brokers.ErrLeaseLost, 1},
		12: {brokers.ErrMisconfigured, 1},
		30: {brokers.ErrMisconfigured, 1},
	} {
		onStub(t, func(t *testing.T, s *stub, c *client) {
			s.answer = answering(func(req *offsetcommit.Request) protocol.Message {
				if req.GenerationID != 3 || req.MemberID != "m" || req.GroupID != "g" {
					t.Errorf("request %+v", req)
				}
				return commitResponse(kafka.Error(code), 0)
			})
			failed, err := c.commit(t.Context(), "g", 3, "m", map[partition]commitment{first: {17, "x"}, {"orders", 1}: {1, ""}})
			if err != nil || len(failed) != 1 || !errors.Is(failed[first], want.kind) || s.count(protocol.OffsetCommit) != want.calls {
				t.Errorf("code %d: %v, %v after %d requests; want %v after %d", code, failed, err, s.count(protocol.OffsetCommit), want.kind, want.calls)
			}
			if text := fmt.Sprint(failed[first]); !strings.Contains(text, `offset 17 of partition 0 of topic "orders" for group "g"`) {
				t.Errorf("code %d: %s", code, text)
			}
		})
	}
}

// commitResponse has the codes of the first partitions of orders.
func commitResponse(codes ...kafka.Error) protocol.Message {
	topic := offsetcommit.ResponseTopic{Name: "orders"}
	for n, code := range codes {
		topic.Partitions = append(topic.Partitions, offsetcommit.ResponsePartition{PartitionIndex: int32(n), ErrorCode: int16(code)})
	}
	return &offsetcommit.Response{Topics: []offsetcommit.ResponseTopic{topic}}
}

func TestCommittedErrors(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		ps := []partition{first, {"orders", 1}}
		for _, tt := range []struct {
			code, partial int16
			want          error
			text          string
		}{
			{30, 0, brokers.ErrMisconfigured, "Read on the group"},
			{0, 29, brokers.ErrMisconfigured, "partition 0"},
			{0, 0, nil, ""},
		} {
			s.answer = answering(func(*offsetfetch.Request) protocol.Message {
				return &offsetfetch.Response{ErrorCode: tt.code, Topics: []offsetfetch.ResponseTopic{{Name: "orders", Partitions: []offsetfetch.ResponsePartition{
					{PartitionIndex: 0, CommittedOffset: 5, Metadata: "m", ErrorCode: tt.partial},
				}}}}
			})
			got, err := c.committed(t.Context(), "g", ps)
			if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("codes %d, %d: %v, want %v", tt.code, tt.partial, err, tt.want)
			}
			if err == nil && (got[first] != commitment{5, "m"} || got[ps[1]] != commitment{offset: -1}) {
				t.Errorf("committed: %+v", got)
			}
		}
		for _, err := range []error{
			second(c.committed(t.Context(), "g", nil)), second(c.commit(t.Context(), "g", 1, "m", nil)), second(c.topics(t.Context())),
			second(c.configs(t.Context())), second(c.bounds(t.Context(), nil)),
		} {
			if err != nil {
				t.Errorf("a call about nothing: %v", err)
			}
		}
	})
}

func TestBoundsOfMany(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.topics["orders"] = 30
		s.start, s.log = 5, []rawBatch{{base: 5, last: 9}}
		var ps []partition
		for n := range 30 {
			ps = append(ps, partition{"orders", n})
		}
		denied, left := int32(-1), int32(-1)
		s.answer = answering(func(req *listoffsets.Request) protocol.Message {
			res := s.offsets(req).(*listoffsets.Response)
			for i := range res.Topics[0].Partitions {
				switch p := &res.Topics[0].Partitions[i]; p.Partition {
				case denied:
					p.ErrorCode = 29
				case left:
					p.Partition = 700
				}
			}
			return res
		})
		got, err := c.bounds(t.Context(), ps)
		if err != nil || len(got) != 30 || got[ps[29]] != (span{5, 10}) {
			t.Errorf("%d bounds, the last is %v, %v", len(got), got[ps[29]], err)
		}
		if n := s.count(protocol.ListOffsets); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
		denied = 3
		if _, err := c.bounds(t.Context(), ps); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "partition 3 of") {
			t.Errorf("a partition that must not be asked about: %v", err)
		}
		denied, left = -1, 7
		if _, err := c.bounds(t.Context(), ps); !errors.Is(err, errNoAnswer) || !strings.Contains(err.Error(), "partition 7 of") {
			t.Errorf("a partition that is not in the answer: %v", err)
		}
	})
}

func TestOldLayoutIsRenewed(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{records: numbered(0, 1)}}
		mustFetch(t, c, first, 0, 1<<20, 0)
		time.Sleep(time.Second)
		s.topics["new"] = 1
		before := time.Now()
		mustFetch(t, c, partition{"new", 0}, 0, 1<<20, 0)
		if d := time.Since(before); d > 100*time.Millisecond {
			t.Errorf("a new topic could be read after %v", d)
		}
		if n := s.count(protocol.Metadata); n != 3 {
			t.Errorf("the layout was asked for %d times, want 3: at first, whether there is such a topic, and anew", n)
		}
	})
}

func TestMissingTopicCostsNobodyConnections(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{records: numbered(0, 1)}}
		mustFetch(t, c, first, 0, 1<<20, 0)
		time.Sleep(time.Second)
		dials := s.dials
		for range 20 {
			start := time.Now()
			_, err := c.fetch(t.Context(), partition{"gone", 0}, 0, 1<<20, 0, usualRoom)
			if !errors.Is(err, kafka.UnknownTopicOrPartition) || !errors.Is(err, brokers.ErrMisconfigured) || time.Since(start) > 100*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
		}
		if n := s.dials - dials; n > 1 {
			t.Errorf("%d connections were made for a topic that is not there", n)
		}
		some := []partition{first}
		for n := range 30 {
			some = append(some, partition{"gone", n})
		}
		before := s.count(protocol.Metadata)
		if got, err := c.bounds(t.Context(), some); !errors.Is(err, kafka.UnknownTopicOrPartition) || !strings.Contains(err.Error(), "partition 0 of") {
			t.Errorf("bounds of a topic that is gone, and of another: %v, %v", got, err)
		}
		if n := s.count(protocol.Metadata) - before; n != 1 {
			t.Errorf("whether a topic is gone was asked %d times, want once", n)
		}
		_, err := c.bounds(t.Context(), []partition{{"orders", 9}})
		if !errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Errorf("bounds of a partition that is not there: %v", err)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		c := newClient(Options{Brokers: []string{"stub:9092"}, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }})
		defer c.Close()
		if _, err := c.topics(t.Context(), "orders"); !errors.Is(err, refused) {
			t.Errorf("topics: %v, want the error of the dial", err)
		}
	})
}

func TestLostConnections(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{records: numbered(0, 1)}}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok && call <= 3 {
				return nil, io.EOF
			}
			return nil, nil
		}
		if got := mustFetch(t, c, first, 0, 1<<20, 0); len(got.records) != 1 {
			t.Errorf("%d records", len(got.records))
		}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) { return nil, io.EOF }
		start := time.Now()
		_, err := c.fetch(t.Context(), first, 0, 1<<20, 0, usualRoom)
		if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, brokers.ErrMisconfigured) || time.Since(start) > 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for name, err := range map[string]error{
			"bounds":    second(c.bounds(ctx, []partition{first})),
			"committed": second(c.committed(t.Context(), "g", []partition{first})),
			"commit":    second(c.commit(t.Context(), "g", 1, "m", map[partition]commitment{first: {}})),
			"configs":   second(c.configs(t.Context(), "orders")),
			"topics":    second(c.topics(t.Context(), "orders")),
			"create":    c.create(t.Context(), newTopic{Topic: "x"}),
			"look":      second(c.look(t.Context(), []string{"orders"})),
		} {
			if err == nil || errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrLeaseLost) {
				t.Errorf("%s without a broker: %v", name, err)
			}
		}
	})
}

func TestCancelledFetchesShareConnections(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			got, err := c.fetch(ctx, first, 0, 1000, 100*time.Millisecond, usualRoom)
			cancel()
			if err != nil || got.next != 0 {
				t.Errorf("a cancelled fetch: %+v, %v", got, err)
			}
		}
		if s.dials > 3 {
			t.Errorf("%d connections for 10 cancelled fetches", s.dials)
		}
	})
}

func TestFrozenBrokerHoldsNobodyForLong(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		p := s.producer()
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req.(type) {
			case *fetch.Request, *produce.Request, *offsetcommit.Request:
				return nil, errSilence
			}
			return nil, nil
		}
		start := time.Now()
		_, err := c.fetch(t.Context(), first, 0, 1000, time.Hour, usualRoom)
		if err == nil || !cluster.IsEnded(err) || time.Since(start) != defaultTimeout+longestWait {
			t.Errorf("fetch gave up after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err = c.fetch(ctx, first, 0, 1000, time.Hour, usualRoom); err == nil || time.Since(start) > 2100*time.Millisecond {
			t.Errorf("fetch gave up after %v: %v", time.Since(start), err)
		}
		start = time.Now()
		if _, err = c.commit(t.Context(), "g", 1, "m", map[partition]commitment{first: {}}); err == nil || time.Since(start) != defaultTimeout {
			t.Errorf("commit gave up after %v: %v", time.Since(start), err)
		}
		errs := make(chan []error)
		go func() { errs <- p.produce(t.Context(), []outgoing{{topic: "orders", partition: byKey}}) }()
		synctest.Wait()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := p.close(ctx); err == nil || time.Since(start) != time.Second {
			t.Errorf("close gave up after %v: %v", time.Since(start), err)
		}
		if err := <-errs; !errors.Is(err[0], brokers.ErrUnknownOutcome) || time.Since(start) > 2*time.Second {
			t.Errorf("produce gave up after %v: %v", time.Since(start), err)
		}
		if err := p.close(t.Context()); err != nil {
			t.Errorf("close again: %v", err)
		}
		c.Close()
	}) // which fails if a goroutine is left
}

func TestCreateWaitsUntilTheTopicCanBeUsed(t *testing.T) {
	const noLeader = 5
	onStub(t, func(t *testing.T, s *stub, c *client) {
		var asked, patient atomic.Int64
		patient.Store(6)
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req := req.(type) {
			case *createtopics.Request:
				topic := req.Topics[0]
				if topic.NumPartitions != -1 || topic.ReplicationFactor != -1 {
					t.Errorf("request %+v", topic)
				}
				s.mu.Lock()
				s.topics[topic.Name] = 2
				s.mu.Unlock()
				return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: topic.Name, ErrorCode: 36}}}, nil // it exists
			case *metadata.Request: // the client asks by itself, too
				if n := asked.Add(1); len(req.TopicNames) == 1 && n < patient.Load() {
					res := s.layout(req).(*metadata.Response)
					if len(res.Topics[0].Partitions) > 0 {
						res.Topics[0].Partitions[0].ErrorCode = noLeader
					}
					return res, nil
				}
			}
			return nil, nil
		}
		if err := c.create(t.Context(), newTopic{Topic: "new", NumPartitions: -1, ReplicationFactor: -1}); err != nil || asked.Load() < patient.Load() {
			t.Errorf("after asking for the layout %d times: %v", asked.Load(), err)
		}
		patient.Store(1 << 30)
		if err := c.create(t.Context(), newTopic{Topic: "never", NumPartitions: -1, ReplicationFactor: -1}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"never"`) {
			t.Errorf("create of a topic that gets no leader: %v", err)
		}
	})
}

func TestLogin(t *testing.T) {
	const secret = "s3cret-pa55word"
	for name, refused := range map[string]saslhandshake.Response{
		"wrong password":  {Mechanisms: []string{"PLAIN"}},
		"wrong mechanism": {ErrorCode: 33, Mechanisms: []string{"SCRAM-SHA-512"}},
	} {
		onStub(t, func(t *testing.T, s *stub, _ *client) {
			s.answer = func(req protocol.Message, _ int) (protocol.Message, error) {
				switch req := req.(type) {
				case *saslhandshake.Request:
					return &refused, nil
				case *saslauthenticate.Request:
					if !strings.Contains(string(req.AuthBytes), secret) {
						return nil, io.EOF
					}
					return &saslauthenticate.Response{ErrorCode: 58, ErrorMessage: "Authentication failed"}, nil
				}
				return nil, nil
			}
			c := s.client(func(o *Options) { o.SASL = plain.Mechanism{Username: "user", Password: secret} })
			defer c.Close()
			for call, err := range map[string]error{
				"topics":    second(c.topics(t.Context(), "orders")),
				"committed": second(c.committed(t.Context(), "g", []partition{first})),
				"fetch":     second(c.fetch(t.Context(), first, 0, 1000, 0, usualRoom)),
			} {
				if !errors.Is(err, brokers.ErrMisconfigured) || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "Options.SASL") {
					t.Errorf("%s, %s: %v", name, call, err)
				}
			}
		})
	}
}

func TestTLSErrors(t *testing.T) {
	for name, err := range map[string]error{
		"certificate": &tls.CertificateVerificationError{Err: errors.New("x")},
		"no TLS":      fmt.Errorf("dial: %w", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}),
		"alert":       errors.New("remote error: tls: certificate required"),
		"expects TLS": fmt.Errorf("%w: broker appears to be expecting TLS", io.ErrUnexpectedEOF),
	} {
		if err := explain(err, "do"); !errors.Is(err, brokers.ErrMisconfigured) || isPassing(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A broker does not say whether its listener wants TLS or a login: it ends the
// connection. The hint names the options that may be wrong.
func TestHint(t *testing.T) {
	for name, tt := range map[string]struct {
		options Options
		err     error
		want    string // "" for the error as it is
	}{
		"neither":       {Options{}, io.EOF, "if it wants a login, set Options.SASL, and if it wants TLS, set Options.TLS"},
		"TLS":           {Options{TLS: &tls.Config{}}, io.ErrUnexpectedEOF, "if it wants a login, set Options.SASL, and if it speaks no TLS, leave Options.TLS out"},
		"a login":       {Options{SASL: plain.Mechanism{}}, io.EOF, "answer: if it wants TLS, set Options.TLS"},
		"both":          {Options{TLS: &tls.Config{}, SASL: plain.Mechanism{}}, io.EOF, "answer: if it speaks no TLS, leave Options.TLS out"},
		"an answer":     {Options{}, kafka.SASLAuthenticationFailed, ""},
		"no connection": {Options{}, syscall.ECONNREFUSED, ""},
		"no error":      {Options{}, nil, ""},
	} {
		err := newClient(tt.options).hint(tt.err)
		if !errors.Is(err, tt.err) || tt.want != "" && !strings.Contains(err.Error(), tt.want) || tt.want == "" && err != tt.err {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestNothingStaysAfterClose(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{records: numbered(0, 1)}}
		mustFetch(t, c, first, 0, 1000, 0)
		done := make(chan error)
		go func() { done <- second(c.fetch(t.Context(), first, 1, 1000, time.Second, usualRoom)) }()
		synctest.Wait()
		c.Close()
		if err := <-done; err == nil {
			t.Error("a fetch that was on its way says nothing of the close")
		}
		if _, err := c.fetch(t.Context(), first, 0, 1000, 0, usualRoom); !errors.Is(err, brokers.ErrClosed) {
			t.Errorf("fetch after close: %v", err)
		}
		time.Sleep(time.Second) // the stub is still thinking about the answer
	}) // which fails if a goroutine is left
}

// producer is closed by its test.
func (s *stub) producer() *producer {
	return newProducer(Options{Brokers: []string{"stub:9092"}, Dial: s.dial})
}

// confirming answers requests to store records with a code.
func confirming(code int16) func(protocol.Message, int) (protocol.Message, error) {
	return answering(func(req *produce.Request) protocol.Message { return produced(req, code) })
}

func produced(req *produce.Request, code int16) protocol.Message {
	topic := req.Topics[0]
	return &produce.Response{Topics: []produce.ResponseTopic{{Topic: topic.Topic, Partitions: []produce.ResponsePartition{{
		Partition: topic.Partitions[0].Partition, ErrorCode: code,
	}}}}}
}

func TestProduceErrors(t *testing.T) {
	for code, want := range map[int16]error{
		0: nil, 7: brokers.ErrUnknownOutcome, 20: brokers.ErrUnknownOutcome, 13: brokers.ErrUnknownOutcome, -1: brokers.ErrUnknownOutcome,
		10: brokers.ErrRefused, 87: brokers.ErrRefused, 32: brokers.ErrRefused, 29: brokers.ErrMisconfigured, 19: kafka.NotEnoughReplicas, 6: kafka.NotLeaderForPartition,
	} {
		onStub(t, func(t *testing.T, s *stub, _ *client) {
			p := s.producer()
			s.answer = answering(func(req *produce.Request) protocol.Message {
				if req.Acks != -1 {
					t.Errorf("the request asks for %d confirmations", req.Acks)
				}
				return produced(req, code)
			})
			one := outgoing{topic: "orders", partition: 2, record: record{value: []byte("x")}}
			large := outgoing{topic: "orders", partition: byKey, record: record{value: make([]byte, aloneBytes)}}
			errs := p.produce(t.Context(), []outgoing{one, one, large})
			if code == 0 && errs != nil {
				t.Errorf("produce: %v", errs)
			}
			for i, err := range errs {
				if !errors.Is(err, want) || strings.Count(err.Error(), "orders") == 0 {
					t.Errorf("code %d, record %d: %v, want %v", code, i, err, want)
				}
				for _, other := range []error{brokers.ErrUnknownOutcome, brokers.ErrRefused, brokers.ErrMisconfigured} {
					if want != other && errors.Is(err, other) {
						t.Errorf("code %d, record %d: %v is also %v", code, i, err, other)
					}
				}
			}
			if err := p.close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestProduceToAPartition(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		p := s.producer()
		defer p.close(t.Context())
		got := make(map[int32]int)
		s.answer = answering(func(req *produce.Request) protocol.Message {
			s.mu.Lock()
			defer s.mu.Unlock()
			part := req.Topics[0].Partitions[0]
			for ; ; got[part.Partition]++ {
				if _, err := part.RecordSet.Records.ReadRecord(); err != nil {
					return produced(req, 0)
				}
			}
		})
		var out []outgoing
		for n := range 40 {
			out = append(out, outgoing{topic: "orders", partition: n % 4, record: record{key: []byte("same"), value: []byte("x")}})
		}
		if errs := p.produce(t.Context(), out); errs != nil {
			t.Fatal(errs)
		}
		for n := range int32(4) {
			if got[n] != 10 {
				t.Errorf("partition %d got %d records, want 10", n, got[n])
			}
		}
		if errs := p.produce(t.Context(), []outgoing{{topic: "orders", partition: 9}}); errs == nil || !errors.Is(errs[0], brokers.ErrMisconfigured) {
			t.Errorf("to a partition that is not there: %v", errs)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if errs := p.produce(ended, out[:1]); errs == nil || errors.Is(errs[0], brokers.ErrUnknownOutcome) {
			t.Errorf("with a context that has ended, so that nothing was sent: %v", errs)
		}
	})
}

func TestProduceAfterAnOldLayout(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		p := s.producer()
		defer p.close(t.Context())
		s.answer = confirming(0)
		if errs := p.produce(t.Context(), []outgoing{{topic: "orders", partition: byKey}}); errs != nil {
			t.Fatal(errs)
		}
		s.topics["new"] = 1
		if errs := p.produce(t.Context(), []outgoing{{topic: "new", partition: byKey}, {topic: "orders", partition: byKey}}); errs != nil {
			t.Errorf("to a new topic: %v", errs)
		}
	})
}

// Publish waits for a topic that was created a moment ago, and stores no message
// twice. If the topic stays unknown, Publish returns ErrNotFound, as before. No
// other topic waits meanwhile.
func TestPublishWaitsForANewTopic(t *testing.T) {
	for name, tt := range map[string]struct {
		there, timeout, call time.Duration // until the topic is known; timeout of the caller; Options.CallTimeout
		want                 error
		least, most          time.Duration // that Publish takes
	}{
		"at once":                {0, time.Minute, 0, nil, 0, 0},
		"after 3 s":              {3 * time.Second, time.Minute, 0, nil, 3 * time.Second, 5 * time.Second},
		"never":                  {time.Hour, time.Minute, 0, brokers.ErrNotFound, 3 * time.Second, 5 * time.Second},
		"the caller's end":       {time.Hour, 2 * time.Second, 0, brokers.ErrNotFound, time.Second, 2 * time.Second},
		"the end of CallTimeout": {time.Hour, time.Minute, time.Second, brokers.ErrNotFound, 500 * time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(t *testing.T, s *stub, _ *client) {
				b, err := New(Options{Brokers: []string{"stub:9092"}, Dial: s.dial, CallTimeout: tt.call})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close(t.Context())
				began := time.Now()
				stored := make(map[string]int)
				s.answer = func(m protocol.Message, _ int) (protocol.Message, error) {
					switch req := m.(type) {
					case *metadata.Request:
						s.mu.Lock()
						defer s.mu.Unlock()
						if time.Since(began) >= tt.there {
							s.topics["new"] = 1
						}
					case *produce.Request:
						s.mu.Lock()
						defer s.mu.Unlock()
						for topic := req.Topics[0]; ; stored[topic.Topic]++ {
							if _, err := topic.Partitions[0].RecordSet.Records.ReadRecord(); err != nil {
								return produced(req, 0), nil
							}
						}
					}
					return nil, nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
				defer cancel()
				beside := make(chan time.Duration, 1)
				go func() {
					if err := b.Publish(ctx, "orders", brokers.Message{Body: []byte("beside")}); err != nil {
						t.Errorf("beside: %v", err)
					}
					beside <- time.Since(began)
				}()
				err = b.Publish(ctx, "new", brokers.Message{Body: []byte("a")}, brokers.Message{Body: make([]byte, aloneBytes)})
				took := time.Since(began)
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || errors.Is(err, brokers.ErrUnknownOutcome) {
					t.Errorf("Publish: %v, want %v", err, tt.want)
				}
				if took < tt.least || took > tt.most+200*time.Millisecond {
					t.Errorf("Publish took %v, want %v to %v", took, tt.least, tt.most)
				}
				if d := <-beside; d > 100*time.Millisecond || stored["orders"] != 1 {
					t.Errorf("beside: stored %d times after %v", stored["orders"], d)
				}
				if want := map[bool]int{true: 2}[tt.want == nil]; stored["new"] != want {
					t.Errorf("%d messages are stored, want %d", stored["new"], want)
				}
			})
		})
	}
}

// The partitions of the Java client, from the hashes in its own tests.
func TestKeysGoWhereJavaPutsThem(t *testing.T) {
	hashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107, "": 275646681,
	}
	for key, hash := range hashes {
		for n := 1; n < 40; n++ {
			numbers := make([]int, n)
			for i := range numbers {
				numbers[i] = i
			}
			if got, want := balance(kafka.Message{Key: []byte(key)}, numbers...), int(hash&0x7fffffff)%n; got != want {
				t.Errorf("key %q goes to partition %d of %d, want %d", key, got, n, want)
			}
		}
	}
	for name, o := range map[string]outgoing{"no key": {partition: byKey}, "anywhere": {partition: anywhere, record: record{key: []byte("k")}}} {
		seen := make(map[int]int)
		for range 4000 {
			seen[balance(message(o), 0, 1, 2, 3)]++
		}
		for n := range 4 {
			if seen[n] < 500 {
				t.Errorf("%s: partition %d got %d of 4000 records", name, n, seen[n])
			}
		}
	}
}
