package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
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
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/redrive-go/redrive/brokers"
)

var first = partition{"orders", 0}

func onStub(t *testing.T, test func(t *testing.T, s *stub, c *client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		c := s.client()
		defer c.close()
		test(t, s, c)
	})
}

func TestHolesArePassedInFewCalls(t *testing.T) {
	const far = 10_000_000
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{
			{base: 0, last: 999, records: []record{{offset: 10, value: []byte("a")}}},
			{base: 1000, last: far - 1}, // emptied
			{base: far, last: far + 5, records: []record{{offset: far + 2, value: []byte("b")}}},
			{base: far + 6, last: far + 6, records: []record{{offset: far + 6, value: []byte("c")}}},
		}
		for _, from := range []int64{0, 10, 11, 500, 999, 1000, 5000, far - 1, far, far + 2, far + 3, far + 6} {
			before := s.count(protocol.Fetch)
			records, next, _ := drain(t, c, first, from)
			want := ""
			for _, r := range []struct {
				offset int64
				value  string
			}{{10, "a"}, {far + 2, "b"}, {far + 6, "c"}} {
				if r.offset >= from {
					want = strings.TrimSpace(want + " " + r.value)
				}
			}
			if values(records) != want || next != far+7 {
				t.Errorf("from %d: %q, next %d; want %q, next %d", from, values(records), next, want, far+7)
			}
			if n := s.count(protocol.Fetch) - before; n > 100 {
				t.Errorf("from %d: %d requests", from, n)
			}
		}
	})
}

func TestHoleAtTheEndOfWhatIsStable(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{base: 0, last: 99, records: []record{{offset: 3, value: []byte("a")}}}, {base: 100, records: []record{{offset: 100, value: []byte("open")}}, transactional: true}}
		s.stable = 100
		records, next, _ := drain(t, c, first, 0)
		if values(records) != "a" || next != 100 {
			t.Errorf("%q, next %d; want a, next 100", values(records), next)
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
		s.aborted = []fetch.ResponseTransaction{{ProducerID: 8, FirstOffset: 8}, {ProducerID: 7, FirstOffset: 7}, {ProducerID: 7, FirstOffset: 0}}
		records, next, calls := drain(t, c, first, 0)
		if values(records) != "good idempotent again" || next != 11 || calls != 2 {
			t.Errorf("%q, next %d in %d calls; want good idempotent again, next 11, in 2", values(records), next, calls)
		}
	})
}

func TestEmptyIsNotNil(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		want := []record{{value: []byte{}}, {offset: 1, key: []byte{}}, {offset: 2}, {offset: 3, key: []byte{}, value: []byte{}}}
		s.log = []rawBatch{{records: want}}
		for i, r := range mustFetch(t, c, first, 0, 1<<20, 0).records {
			if (r.key == nil) != (want[i].key == nil) || (r.value == nil) != (want[i].value == nil) {
				t.Errorf("record %d has key %#v and value %#v, want %#v and %#v", i, r.key, r.value, want[i].key, want[i].value)
			}
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
		if values(records) != "a   new oldest" || next != 5 || string(records[0].key) != "k" || records[1].value != nil || records[2].key == nil || records[3].offset != 3 || records[4].offset != 4 {
			t.Errorf("%q, next %d", values(records), next)
		}
		if stamp := records[0].time; time.Since(stamp) > time.Minute || stamp.After(time.Now()) {
			t.Errorf("the first is of %v", stamp)
		}
		s.corrupt = 1
		got, err := c.fetch(t.Context(), first, 1, 1<<20, 0)
		if !errors.Is(err, errCorrupt) || got.next != 1 {
			t.Errorf("a damaged one: next %d, %v", got.next, err)
		}
	})
}

func TestCorruptRecordsStopThePartition(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.log = []rawBatch{{base: 0, records: numbered(0, 3)}, {base: 3, records: []record{{offset: 3, value: []byte("bad")}}}, {base: 4, records: []record{{offset: 4, value: []byte("good")}}}}
		s.corrupt = 3
		got := mustFetch(t, c, first, 0, 1<<20, 0)
		if values(got.records) != "0 1 2" || got.next != 3 {
			t.Errorf("before the bad batch: %q, next %d", values(got.records), got.next)
		}
		got, err := c.fetch(t.Context(), first, 3, 1<<20, 0)
		if !errors.Is(err, errCorrupt) || got.next != 3 || !strings.Contains(err.Error(), `partition 0 of topic "orders" from offset 3`) {
			t.Errorf("the bad batch: next %d, %v", got.next, err)
		}
		if got := mustFetch(t, c, first, 4, 1<<20, 0); values(got.records) != "good" {
			t.Errorf("behind the bad batch: %q", values(got.records))
		}
	})
}

func TestRecordsFellOffTheLog(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.start = 100
		s.log = []rawBatch{{base: 100, records: []record{{offset: 100}}}}
		_, err := c.fetch(t.Context(), first, 40, 1<<20, 0)
		e, ok := errors.AsType[*rangeError](err)
		if !ok || e.first != 100 || e.last != 101 || !strings.Contains(err.Error(), "offsets 100 to 100, and 40 was asked for: the records before were deleted") {
			t.Errorf("fetch: %v", err)
		}
		got := mustFetch(t, c, first, 100, 1<<20, 0)
		if got.logStart != 100 {
			t.Errorf("the log starts at %d", got.logStart)
		}
		_, err = c.fetch(t.Context(), first, 200, 1<<20, 0)
		if !strings.Contains(fmt.Sprint(err), "the log is shorter than that") {
			t.Errorf("fetch beyond the end: %v", err)
		}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok {
				return fetchError(1), nil
			}
			return nil, nil
		}
		if _, err = c.fetch(t.Context(), first, 100, 1<<20, 0); errors.Is(err, kafka.OffsetOutOfRange) || !errors.Is(err, kafka.OffsetNotAvailable) {
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
		_, err = c.fetch(t.Context(), first, 100, 1<<20, 0)
		if e, ok := errors.AsType[*rangeError](err); !ok || e.first != -1 {
			t.Errorf("without the bounds: %v", err)
		}
	})
}

func fetchError(code int16) protocol.Message {
	return &fetch.Response{Topics: []fetch.ResponseTopic{{Topic: "orders", Partitions: []fetch.ResponsePartition{{
		ErrorCode: code, HighWatermark: -1, RecordSet: protocol.RecordSet{Version: 2, Records: kafka.NewRecordReader(kafka.Record{})},
	}}}}}
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
		2:  {errCorrupt, 1},
		78: {kafka.OffsetNotAvailable, 1},
	} {
		onStub(t, func(t *testing.T, s *stub, c *client) {
			s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
				if _, ok := req.(*fetch.Request); ok {
					return fetchError(code), nil
				}
				return nil, nil
			}
			got, err := c.fetch(t.Context(), first, 9, 1<<20, 0)
			if !errors.Is(err, want.kind) || got.next != 9 || s.count(protocol.Fetch) != want.calls {
				t.Errorf("code %d: next %d after %d requests, %v; want %v after %d", code, got.next, s.count(protocol.Fetch), err, want.kind, want.calls)
			}
			if temporary := want.calls > 1 && code != 3; temporary && errors.Is(err, brokers.ErrMisconfigured) {
				t.Errorf("code %d is misconfigured: %v", code, err)
			}
		})
	}
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
		pool := c.pool
		gone := partition{"gone", 0}
		for range 20 {
			start := time.Now()
			_, err := c.fetch(t.Context(), gone, 0, 1<<20, 0)
			if !errors.Is(err, kafka.UnknownTopicOrPartition) || !errors.Is(err, brokers.ErrMisconfigured) || time.Since(start) > 100*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
		}
		if c.pool != pool {
			t.Error("the pool was renewed for a topic that is not there")
		}
		_, err := c.bounds(t.Context(), []partition{{"orders", 9}})
		if !errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Errorf("bounds of a partition that is not there: %v", err)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	refused := errors.New("connection refused")
	set := connections{dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}
	if conn, err := set.open(t.Context(), "tcp", "stub:9092"); conn != nil || err != refused {
		t.Errorf("opened %v, %v, want the error of the dial", conn, err)
	}
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
		_, err := c.fetch(t.Context(), first, 0, 1<<20, 0)
		if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, brokers.ErrMisconfigured) || time.Since(start) > 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.bounds(ctx, []partition{first}); err == nil {
			t.Error("bounds went well without a broker")
		}
		for name, err := range map[string]error{
			"committed": second(c.committed(t.Context(), "g", []partition{first})),
			"commit":    second(c.commit(t.Context(), "g", 1, "m", map[partition]commitment{first: {}})),
			"configs":   second(c.configs(t.Context(), "orders")),
			"topics":    second(c.topics(t.Context(), "orders")),
			"create":    c.create(t.Context(), "x", 1, 1, nil),
		} {
			if err == nil || errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrLeaseLost) {
				t.Errorf("%s without a broker: %v", name, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestFrozenBrokerHoldsNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		c, p := s.client(), newProducer(clientOptions{brokers: []string{"stub:9092"}, dial: s.dial})
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req.(type) {
			case *fetch.Request, *produce.Request, *offsetcommit.Request:
				return nil, errSilence
			}
			return nil, nil
		}
		start := time.Now()
		_, err := c.fetch(t.Context(), first, 0, 1000, time.Hour)
		if err == nil || !isEnded(err) || time.Since(start) != defaultTimeout+longestWait {
			t.Errorf("fetch gave up after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err = c.fetch(ctx, first, 0, 1000, time.Hour); err == nil || time.Since(start) > 2100*time.Millisecond {
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
		if err := <-errs; !errors.Is(err[0], brokers.ErrUnknownOutcome) {
			t.Errorf("produce: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("the record was given up after %v", d)
		}
		if err := p.close(t.Context()); err != nil {
			t.Errorf("close again: %v", err)
		}
		c.close()
		c.close()
	}) // which fails if a goroutine is left
}

func TestCreateWaitsUntilTheTopicCanBeUsed(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		asked := 0
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req := req.(type) {
			case *createtopics.Request:
				if topic := req.Topics[0]; topic.NumPartitions != -1 || topic.ReplicationFactor != -1 {
					t.Errorf("request %+v", topic)
				}
				s.topics["new"] = 2
				return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: "new"}}}, nil
			case *metadata.Request:
				if asked++; len(req.TopicNames) == 1 && asked < 6 {
					res := s.layout(req).(*metadata.Response)
					if len(res.Topics[0].Partitions) > 0 {
						res.Topics[0].Partitions[0].ErrorCode = 5
					}
					return res, nil
				}
			}
			return nil, nil
		}
		if err := c.create(t.Context(), "new", 0, 0, nil); err != nil {
			t.Error(err)
		}
		if asked < 6 {
			t.Errorf("the layout was asked for %d times only", asked)
		}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			switch req := req.(type) {
			case *createtopics.Request:
				return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: "never", ErrorCode: 36}}}, nil
			case *metadata.Request:
				if len(req.TopicNames) == 1 {
					return &metadata.Response{ControllerID: 1, Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "stub", Port: 9092}}, Topics: []metadata.ResponseTopic{{Name: "never", ErrorCode: 5}}}, nil
				}
			}
			return nil, nil
		}
		if err := c.create(t.Context(), "never", 1, 1, nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"never"`) {
			t.Errorf("create of a topic that gets no leader: %v", err)
		}
	})
}

func TestLogin(t *testing.T) {
	const secret = "s3cret-pa55word"
	for name, answer := range map[string]func(protocol.Message, int) (protocol.Message, error){
		"wrong password": func(req protocol.Message, _ int) (protocol.Message, error) {
			switch req := req.(type) {
			case *saslhandshake.Request:
				return &saslhandshake.Response{Mechanisms: []string{"PLAIN"}}, nil
			case *saslauthenticate.Request:
				if !strings.Contains(string(req.AuthBytes), secret) {
					return nil, io.EOF
				}
				return &saslauthenticate.Response{ErrorCode: 58, ErrorMessage: "Authentication failed"}, nil
			}
			return nil, nil
		},
		"wrong mechanism": func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*saslhandshake.Request); ok {
				return &saslhandshake.Response{ErrorCode: 33, Mechanisms: []string{"SCRAM-SHA-512"}}, nil
			}
			return nil, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStub(t)
			s.answer = answer
			c := s.client(func(o *clientOptions) { o.sasl = plain.Mechanism{Username: "user", Password: secret} })
			defer c.close()
			for call, err := range map[string]error{
				"topics":    second(c.topics(t.Context(), "orders")),
				"committed": second(c.committed(t.Context(), "g", []partition{first})),
				"fetch":     second(c.fetch(t.Context(), first, 0, 1000, 0)),
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
	if explain(nil, "do") != nil {
		t.Error("no error was explained")
	}
}

func TestNothingStaysAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		c := s.client()
		s.log = []rawBatch{{records: numbered(0, 1)}}
		mustFetch(t, c, first, 0, 1000, 0)
		done := make(chan error)
		go func() { done <- second(c.fetch(t.Context(), first, 1, 1000, time.Second)) }()
		synctest.Wait()
		c.close()
		if err := <-done; err == nil {
			t.Error("a fetch that was on its way says nothing of the close")
		}
		if n := c.conns.count(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		if _, err := c.conns.open(t.Context(), "tcp", "stub:9092"); !errors.Is(err, brokers.ErrClosed) {
			t.Errorf("dial after close: %v", err)
		}
		if d := c.dialer(); d.DialFunc == nil {
			t.Error("the dialer dials by itself")
		}
		time.Sleep(time.Second) // the stub is still thinking about the answer
	}) // which fails if a goroutine is left
}
