package kafka

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
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
	if fixed, ok := req.(pinned); ok {
		req = fixed.Request
	}
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		keys := []kmsg.ApiVersionsResponseApiKey{{ApiKey: req.Key(), MaxVersion: 3}}
		if c.stub.id != [16]byte{} {
			keys = append(keys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(kmsg.Metadata), MaxVersion: 12})
		}
		if c.stub.epochs != nil {
			keys = append(keys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(kmsg.OffsetForLeaderEpoch), MaxVersion: 4})
		}
		return &kmsg.ApiVersionsResponse{ApiKeys: keys}, nil
	case *kmsg.MetadataRequest:
		name := "C"
		res := &kmsg.MetadataResponse{ClusterID: &name}
		for _, topic := range req.Topics {
			res.Topics = append(res.Topics, kmsg.MetadataResponseTopic{Topic: topic.Topic, TopicID: c.stub.id})
		}
		return res, nil
	case *kmsg.OffsetForLeaderEpochRequest:
		res := kmsg.NewPtrOffsetForLeaderEpochResponse()
		for _, topic := range req.Topics {
			out := kmsg.OffsetForLeaderEpochResponseTopic{Topic: topic.Topic}
			for _, p := range topic.Partitions {
				one := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				one.Partition = p.Partition
				one.LeaderEpoch, one.EndOffset, one.ErrorCode = c.stub.epochs(p.LeaderEpoch)
				out.Partitions = append(out.Partitions, one)
			}
			res.Topics = append(res.Topics, out)
		}
		return res, nil
	}
	c.stub.mu.Unlock()
	defer c.stub.mu.Lock()
	return c.Client.Ask(ctx, node, req, buffer)
}

// epochs says which epoch up to the one that is asked for a log has, and where it ends.
type epochs func(asked int32) (epoch int32, end int64, code int16)

// inCommit is what a commit says of the ID of a topic.
func inCommit(cluster string, id [16]byte) string {
	return "t" + cluster + "/" + base64.RawURLEncoding.EncodeToString(id[:]) + ";"
}

func TestIDInMetadata(t *testing.T) {
	for name, tt := range map[string]struct {
		text, id, rest string
		seen           epochEnd
	}{
		"none":            {"r1:a;bc", "", "r1:a;bc", epochEnd{}},
		"empty":           {"", "", "", epochEnd{}},
		"one":             {"tC/T;r1:t;", "C/T", "r1:t;", epochEnd{}},
		"and no more":     {"tC/T;", "C/T", "", epochEnd{}},
		"of before":       {"w3mv.lfls6q3v.3uw;r1:", "w3mv.lfls6q3v.3uw", "r1:", epochEnd{}},
		"another's text":  {"worker-7", "worker-7", "", epochEnd{}},
		"begins likewise": {"tt/T;", "t/T", "", epochEnd{}},
		"with an epoch":   {"tC/T;e7.4711;r1:e1.2;", "C/T", "r1:e1.2;", epochEnd{7, 4711}},
		"without a topic": {"tC/;e0.5;", "C/", "", epochEnd{0, 5}},
		"a damaged epoch": {"tC/T;e7;r1:a", "C/T", "r1:a", epochEnd{}},
		"a cut epoch":     {"tC/T;e7.47", "C/T", "", epochEnd{}},
	} {
		if id, seen, rest := cutLog(tt.text); id != tt.id || seen != tt.seen || rest != tt.rest {
			t.Errorf("%s: %q is %q, %v and %q, want %q, %v and %q", name, tt.text, id, seen, rest, tt.id, tt.seen, tt.rest)
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

// byBatches says it of the log, as a broker does.
func (s *stub) byBatches(asked int32) (epoch int32, end int64, code int16) {
	epoch = asked // also of what was deleted
	for i, b := range s.log {
		if b.epoch > asked {
			return epoch, b.base, 0
		}
		if i == len(s.log)-1 && b.epoch < asked {
			return -1, -1, 0
		}
		epoch = b.epoch
	}
	return epoch, s.end(), 0
}

// under is a batch of the records from one offset up to another, of an epoch.
func under(epoch int32, from, to int64) rawBatch {
	b := rawBatch{base: from, epoch: epoch, records: numbered(0, int(to-from))}
	for i := range b.records {
		b.records[i].offset += from
		b.records[i].value = fmt.Append(nil, b.records[i].offset)
		b.records[i].headers = []kafka.Header{{Key: topicHeader, Value: []byte("orders")}} // where it is a retry
	}
	return b
}

// Whoever takes a partition over goes on where its log was cut below what was read. What
// was handled before that is not repeated, and what followed it is forgotten.
func TestCutLogIsFoundOut(t *testing.T) {
	const low, end = 5, 10
	log := func(batches ...rawBatch) []rawBatch { return batches }
	id := [16]byte{1}
	same := inCommit("C", id)
	behind := newProgress(low)
	behind.settled.add(6, 10)
	behind.lost = map[int64]int{5: 1, 8: 2}
	whole := log(under(0, 0, end))
	failing := func(code int16, times int) func(*stub) {
		return func(s *stub) {
			s.epochs = func(asked int32) (int32, int64, int16) {
				if times--; times >= 0 {
					return -1, -1, code
				}
				return s.byBatches(asked)
			}
		}
	}
	cut, away := log(under(0, 0, 3), under(1, 3, end)), log(under(0, 0, 7), under(1, 7, end))
	for name, tt := range map[string]struct {
		metadata string
		log      []rawBatch
		change   func(*stub)
		next     int64 // the first record that is read
		alarm    bool
		done     string // from low up to the end
	}{
		"the same leader":            {same + "e0.5;", whole, nil, low, false, "     "},
		"a new leader":               {same + "e0.5;", log(under(0, 0, 5), under(1, 5, end)), nil, low, false, "     "},
		"a new one, behind it":       {same + "e0.7;", away, nil, low, false, "     "},
		"an epoch without records":   {same + "e1.5;", log(under(0, 0, 5), under(3, 5, end)), nil, low, false, "     "},
		"nothing is lost":            {same + "e1.10;" + behind.metadata(99), log(under(0, 0, 7), under(1, 7, end)), nil, low, false, " dddd"},
		"cut":                        {same + "e0.5;", cut, nil, 3, true, "     "},
		"cut, and all that was done": {same + "e0.10;" + behind.metadata(99), cut, nil, 3, true, "     "},
		"cut behind the mark":        {same + "e0.10;" + behind.metadata(99), away, nil, low, true, " d   "},
		"cut by the next but one":    {same + "e1.10;", log(under(0, 0, 3), under(2, 3, end)), nil, 3, true, "     "},
		"cut, and shortened since":   {same + "e0.5;", log(under(1, 4, end)), func(s *stub) { s.start = 4 }, 4, true, "     "},
		"shortened since":            {same + "e0.5;", log(under(1, 5, end)), func(s *stub) { s.start = 5 }, low, false, "     "},
		"cut, before Kafka 2.8":      {"tC/;e0.5;", cut, func(s *stub) { s.id = [16]byte{} }, 3, true, "     "},
		"cut, and upgraded since":    {"tC/;e0.5;", cut, nil, 3, true, "     "},
		"an epoch of the future":     {same + "e7.5;", cut, nil, low, false, "     "},
		"no epoch":                   {same, cut, nil, low, false, "     "},
		"of a version before":        {"w3mv.lfls6q3v.3uw;", cut, nil, low, false, "     "},
		"of another cluster":         {inCommit("D", id) + "e0.5;", cut, nil, low, false, "     "},
		"a broker that cannot tell":  {same + "e0.5;", cut, func(s *stub) { s.epochs = nil }, low, false, "     "},
		"one that must not":          {same + "e0.5;", cut, failing(29, 9), low, false, "     "},
		"one that leads no more":     {same + "e0.5;", cut, failing(6, 2), 3, true, "     "},
		"one that is behind":         {same + "e0.5;", cut, failing(75, 2), 3, true, "     "},
	} {
		onStub(t, func(t *testing.T, s *stub, _ *client) {
			s.id, s.log, s.epochs = id, tt.log, s.byBatches
			if tt.change != nil {
				tt.change(s)
			}
			f, err := readerOn(t, s, first, commitment{low, ownerClean + tt.metadata}, span{s.start, end}, usualLimits)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer f.stop()
			got, err := f.fetch(t.Context())
			if err != nil || len(got.records) == 0 || got.records[0].offset != tt.next {
				t.Fatalf("%s: %d records, %v; want those from offset %d on", name, len(got.records), err, tt.next)
			}
			alarms := f.alarms()
			if (len(alarms) > 0) != tt.alarm || tt.alarm && !strings.Contains(alarms[0].Error(), "has been cut at offset") {
				t.Errorf("%s: alarms %v", name, alarms)
			}
			done := ""
			for offset := int64(low); offset < end; offset++ {
				if done += " "; f.progress.isDone(offset) {
					done = done[:len(done)-1] + "d"
				}
			}
			if done != tt.done || tt.alarm && f.progress.abandoned(8) > 0 {
				t.Errorf("%s: of the offsets from %d on %q are done, and suspects are %v; want %q", name, low, done, f.progress.suspects(), tt.done)
			}
			f.accept(got)
			last := tt.log[len(tt.log)-1]
			want := fmt.Sprintf(";e%d.%d;", last.epoch, end)
			if strings.Contains(tt.metadata, "e7") { // as long as that goes further
				want = ";e1.10;"
			}
			if c, _ := f.changed(ownerOpen); !strings.Contains(c.metadata, want) || c.offset > tt.next {
				t.Errorf("%s: the next commit says %d, %q; want %q", name, c.offset, c.metadata, want)
			}
		})
	}
}

// As long as the leader gives no good answer, nothing is handed out.
func TestLeaderThatDoesNotAnswer(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		s.id, s.log = [16]byte{1}, []rawBatch{under(0, 0, 10)}
		s.epochs = func(int32) (int32, int64, int16) { return -1, -1, 6 }
		f, err := readerOn(t, s, first, commitment{5, ownerClean + inCommit("C", s.id) + "e0.5;"}, span{0, 10}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		time.Sleep(time.Minute)
		ds, err := f.source.take(10)
		if len(ds) > 0 || err == nil || !strings.Contains(err.Error(), "ask whether partition 0") {
			t.Errorf("%d were handed out, %v; want why there are none", len(ds), err)
		}
		f.change(func(s *stub) { s.epochs = s.byBatches })
		time.Sleep(mostPause)
		for _, err := range f.alarms() {
			if !strings.Contains(err.Error(), "ask whether partition 0") {
				t.Error(err)
			}
		}
		if ds := f.collect(time.Second); len(ds) != 5 {
			t.Errorf("%d were handed out, want 5", len(ds))
		}
	})
}

// A reader that goes on behind a new leader looks whether that has what was read, even
// if no fetch has failed. The next one goes on at the cut. No done record is written
// for offsets that are of other records now.
func TestLogIsCutWhileItIsRead(t *testing.T) {
	for _, p := range []partition{first, delayPartition} {
		for name, tt := range map[string]struct {
			to   int64 // what the new leader has of the log before
			want string
		}{
			"all of it":   {10, "10 11 12 13 14 15 16 17 18 19"},
			"half of it":  {5, "10 11 12 13 14 15 16 17 18 19 5 6 7 8 9"},
			"none of it":  {0, "0 1 10 11 12 13 14 15 16 17 18 19 2 3 4 5 6 7 8 9"},
			"all but one": {9, "10 11 12 13 14 15 16 17 18 19 9"},
		} {
			onStub(t, func(t *testing.T, s *stub, _ *client) {
				s.topics[delayOfOrders] = 1
				stored := s.committing(never)
				s.id, s.epochs = [16]byte{1}, s.byBatches
				s.log = []rawBatch{under(0, 0, 10)}
				f, err := readerOn(t, s, p, commitment{-1, ""}, span{0, 10}, usualLimits)
				if err != nil {
					t.Fatal(err)
				}
				defer f.stop()
				f.run()
				if ds := f.collect(time.Second); len(ds) != 10 {
					t.Fatalf("%s: %d were handed out, want 10", name, len(ds))
				}
				f.change(func(s *stub) {
					s.log = []rawBatch{under(0, 0, tt.to), under(1, tt.to, 20)}
					if tt.to == 0 {
						s.log = s.log[1:]
					}
				})
				time.Sleep(time.Second)
				cut := tt.to < 10
				if alarms := f.alarms(); len(alarms) > 0 || (f.work.Err() != nil) != cut {
					t.Fatalf("%s: alarms %v, and the reader has ended: %v", name, alarms, f.work.Err())
				}
				if cut {
					f.done(15) // by a handler that has come to its end since
				}
				if p == delayPartition && cut && len(f.unwritten()) > 0 {
					t.Errorf("%s: done records for another log", name)
				}
				if cut {
					f.leave()
					if err := f.source.commit(t.Context(), atTheEnd); err != nil {
						t.Fatal(err)
					}
					next, err := newReader(f.source, p, stored[p], span{0, 30}, usualLimits) // it was longer for a moment
					if err != nil {
						t.Fatal(err)
					}
					f.source.readers = []*reader{next}
					f.reader = next
					f.run()
					time.Sleep(time.Second)
					if alarms := f.alarms(); len(alarms) != 1 {
						t.Errorf("%s: alarms %v of the next reader, want one", name, alarms)
					}
				}
				if got := strings.Join(bodies(f.collect(time.Minute)), " "); got != tt.want {
					t.Errorf("%s of %v: received %q, want %q", name, p, got, tt.want)
				}
			})
		}
	}
}

// Each leader is asked about all partitions at once that have come meanwhile: the first
// answer is older than what those have fetched that come while it is on its way.
func TestLeadersAreAskedTogether(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		s.id, s.log = [16]byte{1}, []rawBatch{under(0, 0, 10)}
		f, err := readerOn(t, s, first, commitment{-1, ""}, span{0, 10}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		var asked [][]int32
		answer := make(chan struct{})
		s.epochs = s.byBatches
		slow := &slowAsks{identified: identified{f.source.broker.client.Client, s}, asked: &asked, answer: answer}
		f.source.broker.client.Client = slow
		l := f.source.fetches.leader(1)
		var work sync.WaitGroup
		for n := range 200 {
			work.Go(func() {
				if is := l.ask(t.Context(), partition{"orders", n}, 0); is.err != nil || is.end != 10 || is.log == "" {
					t.Errorf("partition %d: %+v", n, is)
				}
			})
			if n == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		close(answer)
		work.Wait()
		if len(asked) != 2 || len(asked[0]) != 1 || len(asked[1]) != 199 || slow.calls != 2*2+1 {
			t.Errorf("asked for %v in %d calls; want for the first, and then for all others", asked, slow.calls)
		}
	})
}

// slowAsks keeps answers for a while, and says which partitions each question was about.
type slowAsks struct {
	identified
	asked  *[][]int32
	calls  int
	answer chan struct{}
}

func (c *slowAsks) Ask(ctx context.Context, node int32, req kmsg.Request, buffer *bytes.Buffer) (kmsg.Response, error) {
	c.calls++
	if fixed, ok := req.(pinned); ok {
		if req, ok := fixed.Request.(*kmsg.OffsetForLeaderEpochRequest); ok {
			var all []int32
			for _, p := range req.Topics[0].Partitions {
				all = append(all, p.Partition)
			}
			*c.asked = append(*c.asked, all)
		}
	}
	<-c.answer
	return c.identified.Ask(ctx, node, req, buffer)
}
