package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestWhereAReaderBegins(t *testing.T) {
	const end = 100
	clean, open := kafka.MetadataOf(5, false, nil), kafka.MetadataOf(5, true, nil)
	marked := kafka.MetadataOf(5, true, map[int64]int{7: 1})
	stays := clean + marked[len(open):]
	for name, tt := range map[string]struct {
		offset   int64 // -1 for no commit
		metadata string
		first    int64 // of the log
		next     int64
		alarm    string
		wary     bool
		suspect  bool // offset 7 is
	}{
		"nothing stored":   {offset: -1},
		"of an old log":    {offset: -1, first: 4, next: 4},
		"clean":            {offset: 5, metadata: clean, next: 5},
		"owner lost":       {offset: 5, metadata: open, next: 5, wary: true},
		"with a suspect":   {offset: 5, metadata: marked, next: 5, wary: true, suspect: true},
		"a suspect stays":  {offset: 5, metadata: stays, next: 5, wary: true, suspect: true},
		"another client's": {offset: 5, metadata: "consumer-7", next: 5},
		"another's, too":   {offset: 5, metadata: "oconsumer", next: 5, wary: true},
		"damaged":          {offset: 5, metadata: clean + "r1:!!!!", next: 5},
		"cut off":          {offset: 5, metadata: stays[:len(stays)-1], next: 5},
		"at the end":       {offset: end, metadata: clean, next: end},
		"beyond the end":   {offset: end + 1, metadata: marked, alarm: "offsets 0 to 99, and 101 was asked for: the log is shorter than that"},
		"fell off the log": {offset: 5, metadata: marked, first: 8, next: 8, alarm: "offsets 8 to 99, and 5 was asked for: the records before were deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.start, s.remade = tt.first, true
				s.log = []batch{{base: tt.first, records: numbered(0, end)[tt.first:]}}
				if tt.offset >= 0 {
					s.owned[first] = commitment{tt.offset, tt.metadata}
				}
			}, func(s *stub) {
				s.sleep(2 * time.Second)
				var errs []error
				ctx, cancel := context.WithTimeout(s.Context(), time.Second)
				defer cancel()
				ds, err := s.src.Receive(ctx, end)
				for ; err != nil && ctx.Err() == nil; ds, err = s.src.Receive(ctx, end) {
					errs = append(errs, err)
				}
				if err := errors.Join(errs...); (err != nil) != (tt.alarm != "") || err != nil && (!strings.Contains(err.Error(), tt.alarm) || errors.Is(err, brokers.ErrMisconfigured)) {
					s.Errorf("alarm %v, want %q", err, tt.alarm)
				}
				atFirst := end - tt.next
				if tt.wary {
					atFirst = min(atFirst, kafka.MaxMarks)
				}
				s.is("records at first", len(ds), atFirst)
				for _, d := range ds {
					s.is(fmt.Sprint("owners lost with offset ", offsetOf(d)), d.Abandoned, map[bool]int{true: 1}[tt.suspect && offsetOf(d) == 7])
				}
				s.ack(ds...)
				ds = append(ds, s.comes(2*kafka.Careful)...)
				slices.SortFunc(ds, func(a, b *brokers.Delivery) int { return int(offsetOf(a) - offsetOf(b)) })
				if s.is("records", len(ds), end-tt.next); len(ds) > 0 {
					s.is("first of them", offsetOf(ds[0]), tt.next)
				}
			})
		})
	}
}

func TestOnlyWhatIsUnackedComesBack(t *testing.T) {
	for name, crashes := range map[string]bool{"close": false, "crash": true} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) { s.log = []batch{{records: numbered(0, 100)}} }, func(s *stub) {
				var want []string
				ds := s.take(100)
				rand.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
				for i, d := range ds {
					if i < 15 {
						want = append(want, d.Message.ID)
						continue
					}
					s.ack(d)
				}
				s.sleep(2 * kafka.CommitPace)
				if crashes {
					s.crash()
				}
				s.open()
				again := s.comes(kafka.Careful)
				got := ids(again)
				slices.Sort(got)
				slices.Sort(want)
				s.is("messages that come back", got, want)
				for _, d := range again {
					s.is("owners lost with "+d.Message.ID, d.Abandoned, map[bool]int{true: 1}[crashes])
				}
				s.committed(first, 100)
			})
		})
	}
}

// A worker that could not commit at the end of a generation goes on where it was, unless
// another one has committed since.
func TestAReaderGoesOnWithWhatItKept(t *testing.T) {
	for name, tt := range map[string]struct {
		other bool
		want  int
	}{"no other": {false, 100 - 8}, "another": {true, kafka.MaxMarks}} {
		t.Run(name, func(t *testing.T) {
			eager := formed{protocol: kafka.Eager, share: []int{0}, heedless: true}
			onStub(t, func(s *stub) { s.log, s.next = []batch{{records: numbered(0, 100)}}, []formed{eager} }, func(s *stub) {
				held := s.take(100)
				s.sleep(2 * kafka.CommitPace)
				s.says(func(m protocol.Message, _ int) (protocol.Message, error) {
					if req, ok := m.(*offsetcommit.Request); ok && req.GenerationID == 1 {
						return nil, io.EOF
					}
					return nil, nil
				})
				s.ack(held[:8]...)
				s.rebalance(eager)
				if tt.other {
					s.change(func(s *stub) { s.owned[first] = commitment{6, kafka.MetadataOf(6, true, nil)} })
				}
				<-held[99].Session.Done()
				s.sleep(6 * time.Second) // for the last commits, and the next generation
				ds, err := s.src.Receive(s.Context(), 100)
				for err != nil {
					ds, err = s.src.Receive(s.Context(), 100)
				}
				s.is("records, and the first", fmt.Sprint(len(ds), offsetOf(ds[0])), fmt.Sprint(tt.want, map[bool]int{true: 6, false: 8}[tt.other]))
			})
		})
	}
}

// Whoever takes a partition over compares the ID of its topic with that in the commit.
func TestAnotherLogIsFoundOut(t *testing.T) {
	const low, end = 5, 10
	old, fresh, none := [16]byte{1}, [16]byte{2}, [16]byte{}
	before := inCommit(clusterID, old)
	for name, tt := range map[string]struct {
		metadata string
		first    int64 // of the log
		id       [16]byte
		next     int64 // the first record that is read
		alarm    bool
		commit   string // what the next one says of the topic
	}{
		"the same":             {before, 0, old, low, false, before},
		"another":              {before, 0, fresh, 0, true, inCommit(clusterID, fresh)},
		"another, shortened":   {before, 4, fresh, 4, true, inCommit(clusterID, fresh)},
		"no ID in the commit":  {"", 0, fresh, low, false, inCommit(clusterID, fresh)},
		"no ID in the broker":  {before, 0, none, low, false, before},
		"of another cluster":   {inCommit("D", fresh), 0, old, low, false, before},
		"of another's client":  {"worker-7", 0, old, low, false, before},
		"of a version before":  {"w3mv.lfls6q3v.3uw;", 0, old, low, false, before},
		"another, and no more": {before + "r1:", 0, fresh, 0, true, inCommit(clusterID, fresh)},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.id, s.start, s.remade = tt.id, tt.first, true
				s.log = []batch{{base: tt.first, records: numbered(0, end)[tt.first:]}}
				s.owned[first] = commitment{low, kafka.OwnerClean + tt.metadata}
			}, func(s *stub) {
				ds, errs := s.collect(5 * time.Second)
				if len(ds) != int(end-tt.next) || offsetOf(ds[0]) != tt.next {
					s.Errorf("received %v, errors %v; want those from offset %d on", ids(ds), errs, tt.next)
				}
				if (len(errs) > 0) != tt.alarm || tt.alarm && !anyContains(errs, "another log") {
					s.Errorf("errors %v", errs)
				}
				s.change(func(s *stub) {
					s.is("the next commit", s.owned[first], commitment{end, kafka.OwnerOpen + tt.commit + "e0.10;"})
				})
			})
		})
	}
}

// A log that is made anew is empty at first. What is written to it while the reader makes
// sure is read from its beginning.
func TestLogThatIsFilledMeanwhile(t *testing.T) {
	for name, still := range map[string]bool{"before its bounds are asked for": false, "afterwards": true} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				log, failed := s.log, false
				s.id, s.remade = [16]byte{2}, true
				s.owned[first] = commitment{5, kafka.OwnerClean + inCommit(clusterID, [16]byte{1})}
				s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					switch req.(type) {
					case *fetch.Request:
						if s.log = log; call == 1 {
							s.log, failed = nil, true
						}
					case *listoffsets.Request:
						if failed && !still {
							s.log = log
						}
					}
					return nil, nil
				}
			}, func(s *stub) {
				ds, errs := s.collect(10 * time.Second)
				if len(ds) != 10 || offsetOf(ds[0]) != 0 || len(errs) == 0 {
					s.Errorf("received %v, errors %v; want all from offset 0 on, and an alarm", ids(ds), errs)
				}
			})
		})
	}
}

// A log may be made anew while nobody reads it, or nobody can. It is told once.
func TestLogIsMadeAnew(t *testing.T) {
	for name, tt := range map[string]struct{ acked, failing bool }{
		"in a pause":                          {acked: true},
		"in a pause, before anything is done": {},
		"while fetches fail":                  {acked: true, failing: true},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.id, s.log, s.remade = [16]byte{1}, []batch{{records: numbered(0, 100)}}, true
			}, func(s *stub) {
				if tt.acked {
					s.is("records", len(s.comes(time.Second)), 100)
				} else {
					s.sleep(time.Second)
				}
				if tt.failing {
					s.says(answering(func(*fetch.Request) protocol.Message { return fetchError(kafkago.OffsetNotAvailable) }))
				} else {
					s.src.Pause("orders")
				}
				s.collect(time.Minute)
				fresh := numbered(0, 300)
				for i := range fresh {
					fresh[i].value = fmt.Append(nil, 1000+i)
				}
				s.change(func(s *stub) { s.answer, s.log, s.id = nil, []batch{{records: fresh}}, [16]byte{2} })
				s.src.Pause()
				s.sleep(20 * time.Second)
				ds, errs := s.collect(time.Minute)
				got := slices.DeleteFunc(texts(ds), func(text string) bool { return len(text) < 4 })
				if slices.Sort(got); len(slices.Compact(got)) != 300 || strings.Count(fmt.Sprint(errs), "another log") != 1 {
					s.Errorf("received %d of the new log, errors %v; want all 300, and that it is another log", len(got), errs)
				}
			})
		})
	}
}

// under is a batch of the records from one offset up to another, of a leader epoch.
func under(epoch int32, from, to int64) batch {
	b := batch{base: from, epoch: epoch, records: numbered(int(from), int(to-from))}
	for i := range b.records {
		b.records[i].offset += from
		b.records[i].headers = []kafkago.Header{{Key: kafka.TopicHeader, Value: []byte("orders")}} // where it is a retry
	}
	return b
}

// Whoever takes a partition over goes on where its log was cut below what was read. What
// was handled before that is not repeated, and what followed it is forgotten.
func TestCutLogIsFoundOut(t *testing.T) {
	const low, end = 5, 10
	log := func(batches ...batch) []batch { return batches }
	id := [16]byte{1}
	same := inCommit(clusterID, id)
	behind := kafka.MetadataOf(low, false, map[int64]int{5: 1, 8: 2}, 6, 7, 8, 9)[len(kafka.OwnerClean):]
	whole := log(under(0, 0, end))
	failing := func(code kafkago.Error, times int) func(*stub) {
		return func(s *stub) {
			s.epochs = func(asked int32) (int32, int64, kafkago.Error) {
				if times--; times >= 0 {
					return -1, -1, code
				}
				return s.byBatches(asked)
			}
		}
	}
	cut, away := log(under(0, 0, 3), under(1, 3, end)), log(under(0, 0, 7), under(1, 7, end))
	const fromLow, fromCut = "5 6 7 8 9", "3 4 5 6 7 8 9"
	for name, tt := range map[string]struct {
		metadata string
		log      []batch
		change   func(*stub)
		want     string // the offsets that are received, with + for each owner that was lost with one
		alarm    bool
	}{
		"the same leader":            {same + "e0.5;", whole, nil, fromLow, false},
		"a new leader":               {same + "e0.5;", log(under(0, 0, 5), under(1, 5, end)), nil, fromLow, false},
		"a new one, behind it":       {same + "e0.7;", away, nil, fromLow, false},
		"an epoch without records":   {same + "e1.5;", log(under(0, 0, 5), under(3, 5, end)), nil, fromLow, false},
		"nothing is lost":            {same + "e1.10;" + behind, away, nil, "5+", false},
		"cut":                        {same + "e0.5;", cut, nil, fromCut, true},
		"cut, and all that was done": {same + "e0.10;" + behind, cut, nil, fromCut, true},
		"cut behind the mark":        {same + "e0.10;" + behind, away, nil, "5+ 7 8 9", true},
		"cut by the next but one":    {same + "e1.10;", log(under(0, 0, 3), under(2, 3, end)), nil, fromCut, true},
		"cut, and shortened since":   {same + "e0.5;", log(under(1, 4, end)), func(s *stub) { s.start = 4 }, "4 5 6 7 8 9", true},
		"shortened since":            {same + "e0.5;", log(under(1, 5, end)), func(s *stub) { s.start = 5 }, fromLow, false},
		"cut, before Kafka 2.8":      {"tC/;e0.5;", cut, func(s *stub) { s.id = [16]byte{} }, fromCut, true},
		"cut, and upgraded since":    {"tC/;e0.5;", cut, nil, fromCut, true},
		"an epoch of the future":     {same + "e7.5;", cut, nil, fromLow, false},
		"no epoch":                   {same, cut, nil, fromLow, false},
		"of a version before":        {"w3mv.lfls6q3v.3uw;", cut, nil, fromLow, false},
		"of another cluster":         {inCommit("D", id) + "e0.5;", cut, nil, fromLow, false},
		"a broker that cannot tell":  {same + "e0.5;", cut, func(s *stub) { s.epochs = nil }, fromLow, false},
		"one that must not":          {same + "e0.5;", cut, failing(kafkago.TopicAuthorizationFailed, 9), fromLow, false},
		"one that leads no more":     {same + "e0.5;", cut, failing(kafkago.NotLeaderForPartition, 2), fromCut, true},
		"one that is behind":         {same + "e0.5;", cut, failing(kafkago.UnknownLeaderEpoch, 2), fromCut, true},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.id, s.log, s.epochs, s.remade = id, tt.log, s.byBatches, true
				s.owned[first] = commitment{low, kafka.OwnerClean + tt.metadata}
				if tt.change != nil {
					tt.change(s)
				}
			}, func(s *stub) {
				s.sleep(2 * time.Second)
				if next := int64(tt.want[0] - '0'); s.at(first) > next {
					s.Errorf("offset %d is committed, and %d is not handled", s.at(first), next)
				}
				ds, errs := s.collect(2 * kafka.Careful)
				if (len(errs) > 0) != tt.alarm || tt.alarm && !anyContains(errs, "has been cut at offset") {
					s.Errorf("errors %v", errs)
				}
				var got []string
				for _, d := range ds {
					got = append(got, fmt.Sprint(offsetOf(d))+strings.Repeat("+", d.Abandoned))
				}
				slices.Sort(got)
				s.is("received", strings.Join(got, " "), tt.want)
				s.change(func(s *stub) {
					want := fmt.Sprintf(";e%d.%d;", tt.log[len(tt.log)-1].epoch, end)
					if at := s.owned[first]; at.offset != end || !strings.HasSuffix(at.metadata, want) {
						s.Errorf("committed %v, want %q", at, want)
					}
				})
			})
		})
	}
}

// As long as the leader gives no good answer, nothing is handed out.
func TestLeaderThatDoesNotAnswer(t *testing.T) {
	onStub(t, func(s *stub) {
		s.id, s.log = [16]byte{1}, []batch{under(0, 0, 10)}
		s.epochs = func(int32) (int32, int64, kafkago.Error) { return -1, -1, kafkago.NotLeaderForPartition }
		s.owned[first] = commitment{5, kafka.OwnerClean + inCommit(clusterID, s.id) + "e0.5;"}
	}, func(s *stub) {
		notSure := func(err error) bool {
			return strings.Contains(err.Error(), `ask whether partition 0 of topic "orders"`)
		}
		ds, errs := s.collect(time.Minute)
		if len(ds) > 0 || len(errs) == 0 || !notSure(errs[0]) {
			s.Errorf("received %v, errors %v; want why there are none", ids(ds), errs)
		}
		s.change(func(s *stub) { s.epochs = s.byBatches })
		ds, errs = s.collect(10 * time.Second)
		s.is("received", texts(ds), []int{5, 6, 7, 8, 9})
		for _, err := range errs {
			if !notSure(err) {
				s.Error(err)
			}
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
			t.Run(p.topic+", "+name, func(t *testing.T) {
				onStub(t, func(s *stub) {
					s.id, s.epochs, s.remade, s.slow = [16]byte{1}, s.byBatches, true, 10*time.Millisecond
					s.log = []batch{under(0, 0, 10)}
					if p == delayPartition {
						s.next = []formed{{also: []string{delayOfOrders}}}
					}
				}, func(s *stub) {
					want, held := tt.want, s.take(10)
					cut := tt.to < 10
					if p == delayPartition { // the first is not settled: then what follows needs a done record
						held = held[1:]
						if cut && tt.to > 0 {
							want = "0 " + want // which comes again
						}
					}
					last := len(held) - 1
					s.ack(held[:last]...)
					s.sleep(kafka.DonePace / 2)
					s.change(func(s *stub) {
						s.log = []batch{under(0, 0, tt.to), under(1, tt.to, 20)}
						if tt.to == 0 {
							s.log = s.log[1:]
						}
					})
					s.sleep(kafka.DonePace / 2)
					s.ack(held[last]) // by a handler that comes to its end
					s.sleep(15 * kafka.DonePace)
					n := 0
					s.change(func(s *stub) { n = s.stored[delayOfOrders] })
					if n > 0 != (p == delayPartition && !cut) {
						s.Errorf("%d done records were written", n)
					}
					ds, errs := s.collect(time.Minute)
					if n := strings.Count(fmt.Sprint(errs), "has been cut at offset"); n != map[bool]int{true: 1}[cut] || len(errs) != n {
						s.Errorf("errors %v", errs)
					}
					s.is("received", strings.Join(bodies(ds), " "), want)
				})
			})
		}
	}
}

// Each leader is asked about all partitions at once that have come meanwhile: the first
// answer is older than what those have fetched that come while it is on its way.
func TestLeadersAreAskedTogether(t *testing.T) {
	const partitions = 200
	var about []int // how many partitions, by request
	identities := 0
	onStub(t, func(s *stub) {
		s.id, s.epochs, s.topics["orders"], s.next = [16]byte{1}, s.byBatches, partitions, []formed{{}}
		for n := range partitions {
			s.next[0].share = append(s.next[0].share, n)
		}
		s.answer = func(m protocol.Message, _ int) (protocol.Message, error) {
			if req, ok := m.(asked); ok {
				s.sleep(time.Second)
				if req, ok := req.Request.(*kmsg.OffsetForLeaderEpochRequest); ok {
					s.change(func(*stub) { about = append(about, len(req.Topics[0].Partitions)) })
				} else {
					s.change(func(*stub) { identities++ })
				}
			}
			return nil, nil
		}
	}, func(s *stub) {
		s.is("messages", len(s.comes(10*time.Second)), 10*partitions)
		s.change(func(s *stub) {
			if len(about) != 2 || about[0]+about[1] != partitions || identities != 2 || s.calls[protocol.ApiVersions] != s.dials+1 {
				s.Errorf("asked about %v partitions, %d times for IDs, and %d times for versions on %d connections; want it of the first, and then of all others",
					about, identities, s.calls[protocol.ApiVersions], s.dials)
			}
		})
	})
}

// The ends of all partitions are asked for at once. None of them is read before its own
// are known.
func TestBoundsOfMany(t *testing.T) {
	const partitions = 30
	many := formed{}
	for n := range partitions {
		many.share = append(many.share, n)
	}
	for name, tt := range map[string]struct {
		change        func(p *listoffsets.ResponsePartition)
		want          string // of an error
		misconfigured bool
	}{
		"all are known": {func(*listoffsets.ResponsePartition) {}, "", false},
		"one must not be asked about": {func(p *listoffsets.ResponsePartition) {
			if p.Partition == 3 {
				p.ErrorCode = int16(kafkago.TopicAuthorizationFailed)
			}
		}, "partition 3 of", true},
		"one is not in the answer": {func(p *listoffsets.ResponsePartition) {
			if p.Partition == 7 {
				p.Partition = 700
			}
		}, "partition 7 of", false},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.topics["orders"], s.next = partitions, []formed{many}
				s.answer = answering(func(req *listoffsets.Request) protocol.Message {
					s.mu.Lock()
					defer s.mu.Unlock()
					res := s.bounds(req).(*listoffsets.Response)
					for i := range res.Topics[0].Partitions {
						tt.change(&res.Topics[0].Partitions[i])
					}
					return res
				})
			}, func(s *stub) {
				ds, errs := s.collect(5 * time.Second)
				if tt.want == "" {
					s.is("messages and errors", fmt.Sprint(len(ds), errs), fmt.Sprint(10*partitions, []error(nil)))
					s.is("requests", s.count(protocol.ListOffsets), 2)
					return
				}
				if len(ds) > 0 || !anyContains(errs, tt.want) || errors.Is(errors.Join(errs...), brokers.ErrMisconfigured) != tt.misconfigured {
					s.Errorf("received %d, errors %v", len(ds), errs)
				}
				s.says(nil)
				ds, _ = s.collect(10 * time.Second)
				s.is("messages afterwards", len(ds), 10*partitions)
			})
		})
	}
}

// What brokers may have in a log is read as far as it is there, with few requests.
func TestWhatALogHas(t *testing.T) {
	const far = 10_000_000
	of := func(base, producer int64, transactional bool, value string) batch {
		return batch{base: base, producer: producer, transactional: transactional, records: []record{{offset: base, value: []byte(value)}}}
	}
	old := func(offset int64, key, value []byte) batch {
		return batch{old: true, base: offset, records: []record{{offset: offset, key: key, value: value}}}
	}
	for name, tt := range map[string]struct {
		log       []batch
		aborted   []kmsg.FetchResponseTopicPartitionAbortedTransaction
		stable    int64
		from      int64
		want      []string
		committed int64
	}{
		"holes": {log: []batch{
			{base: 0, last: 999, records: []record{{offset: 10, value: []byte("a")}}},
			{base: 1000, last: far - 1}, // emptied
			{base: far, last: far + 5, records: []record{{offset: far + 2, value: []byte("b")}}},
			of(far+6, 0, true, "open"),
		}, stable: far + 6, want: []string{"a", "b"}, committed: far + 6},
		"transactions": {log: []batch{
			of(0, 7, true, "void"), of(1, 8, true, "good"), of(2, 7, false, "idempotent"), {base: 3, producer: 7, mark: "abort"},
			of(4, 7, true, "again"), {base: 5, producer: 8, mark: "commit"}, {base: 6, producer: 7, mark: "commit"},
			of(7, 7, true, "void"), of(8, 8, true, "void"), {base: 9, producer: 8, mark: "abort"}, {base: 10, producer: 7, mark: "abort"},
		}, aborted: []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 8, FirstOffset: 8}, {ProducerID: 7, FirstOffset: 7}, {ProducerID: 7, FirstOffset: 0}},
			want: []string{"good", "idempotent", "again"}, committed: 11},
		"old formats": {log: []batch{
			old(0, []byte("k"), []byte("a")), old(1, nil, nil), old(2, []byte{}, []byte{}), of(3, 0, false, "new"),
			{old: true, timeless: true, base: 4, records: []record{{offset: 4, key: []byte("k"), value: []byte("oldest")}}},
		}, want: []string{"a", "", "", "new", "oldest"}, committed: 5},
		"what looks like a done record": {log: []batch{{records: []record{{value: []byte("mark"), headers: []kafkago.Header{{Key: kafka.DoneHeader, Value: []byte(kafka.DoneMark)}}}}}},
			want: []string{"mark"}, committed: 1},
		"from within a batch": {log: []batch{{records: numbered(0, 10)}}, from: 7, want: []string{"7", "8", "9"}, committed: 10},
	} {
		t.Run(name, func(t *testing.T) {
			froms := []int64{tt.from}
			if name == "holes" {
				froms = []int64{0, 10, 500, 999, 1000, 5000, far - 1, far, far + 2}
			}
			for _, from := range froms {
				onStub(t, func(s *stub) {
					s.log, s.aborted, s.stable = tt.log, tt.aborted, tt.stable
					s.owned[first] = commitment{from, kafka.OwnerClean}
				}, func(s *stub) {
					want := tt.want
					if name == "holes" && from > 10 {
						want = want[1:]
					}
					ds := s.comes(3 * time.Second)
					s.is(fmt.Sprintf("from %d", from), texts(ds), want)
					if n := s.count(protocol.Fetch); n > 20 {
						s.Errorf("from %d: %d fetches in 3 s", from, n)
					}
					if name == "old formats" {
						if m := ds[0].Message; m.Key != "k" || m.PublishedAt.UnixMilli() != stubTime || ds[1].Message.Body != nil || ds[2].Message.Body == nil || !ds[4].Message.PublishedAt.IsZero() {
							s.Errorf("the first of the old format is %+v", m)
						}
					}
					s.committed(first, tt.committed)
				})
			}
		})
	}
}

// What cannot be read is named, and keeps its place: nothing behind it is handed out
// until it is read.
func TestCorruptRecordsKeepTheirPlace(t *testing.T) {
	for name, old := range map[string]bool{"of today": false, "of an old format": true} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.log, s.corrupt = logOf(numbered(0, 10)...), 6
				s.log[6].old = old
			}, func(s *stub) {
				ds, errs := s.collect(10 * time.Second)
				if !anyContains(errs, `partition 0 of topic "orders" from offset 6`) || !errors.Is(errs[0], kafka.ErrCorrupt) || errors.Is(errs[0], brokers.ErrMisconfigured) {
					s.Errorf("errors: %v", errs)
				}
				s.is("before it", texts(ds), []int{0, 1, 2, 3, 4, 5})
				s.committed(first, 6)
				s.change(func(s *stub) { s.corrupt = -1 })
				ds, _ = s.collect(10 * time.Second)
				s.is("when it is read again", texts(ds), []int{6, 7, 8, 9})
				s.committed(first, 10)
			})
		})
	}
}
