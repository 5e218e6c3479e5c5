package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

const delayOfOrders = "redrive.delay.v1.g.1m"

// follower is a reader on the stub, of a source that has not joined its group.
type follower struct {
	*reader
	t     *testing.T
	stub  *stub
	close func()
}

func readerOn(t *testing.T, s *stub, p partition, stored commitment, has span, limits memory, secret ...[]byte) (*follower, error) {
	t.Helper()
	b, err := New(Options{Brokers: []string{"stub:9092"}, Dial: s.dial, Group: "g", Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	b.client.Client, b.memory = identified{b.client.Client, s}, limits
	sub := brokers.Subscription{Topics: []string{"orders", "refunds"}, Group: "g", MaxDelay: time.Minute}
	plan, err := b.options.plan(sub)
	if err != nil {
		t.Fatal(err)
	}
	src := &source{broker: b, sub: sub, plan: plan, topics: make(map[string]bool), paused: make(map[string]int), woken: make(chan struct{}, 1),
		kick: make(chan struct{}, 1), idle: make(chan struct{}, 1), broken: make(chan struct{}, 1), committing: make(chan struct{}, 1)}
	for _, topic := range plan.topics {
		src.topics[topic] = true
	}
	src.ctx, src.cancel = context.WithCancelCause(t.Context())
	src.generation = &generation{id: 1, member: "m"}
	src.generation.ctx, src.generation.end = context.WithCancelCause(src.ctx)
	src.fetches = newFetches(src.ctx, b.client)
	r, err := newReader(src, p, stored, has, limits)
	src.readers = []*reader{r}
	return &follower{reader: r, t: t, stub: s, close: func() {
		src.cancel(nil)
		src.work.Wait()
		src.fetches.work.Wait()
		b.Close(context.WithoutCancel(t.Context()))
	}}, err
}

// run reads, and feeds what is delayed, until the test ends.
func (f *follower) run() {
	go f.read()
	if f.delayed != nil {
		go f.feed()
	}
}

// stop waits for the fetch that the stub may be about to answer.
func (f *follower) stop() {
	f.close()
	time.Sleep(longestWait)
}

// collect takes what is handed out for so long, and acks it.
func (f *follower) collect(d time.Duration) []*brokers.Delivery {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	var all []*brokers.Delivery
	for {
		ds, err := f.source.Receive(ctx, 10)
		if ctx.Err() != nil {
			return all
		}
		if err != nil {
			f.t.Errorf("Receive: %v", err)
		}
		for i, err := range f.source.Settle(ctx, acks(ds)) {
			f.t.Errorf("ack of %s: %v", ds[i].Message.ID, err)
		}
		all = append(all, ds...)
	}
}

func acks(ds []*brokers.Delivery) []brokers.Settlement {
	batch := make([]brokers.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = brokers.Settlement{Delivery: d}
	}
	return batch
}

// committing lets the stub store commits, and fail those that fail says.
func (s *stub) committing(fail func(call int) kafka.Error) map[partition]commitment {
	stored := make(map[partition]commitment)
	var mu sync.Mutex
	s.answer = answering(func(req *offsetcommit.Request) protocol.Message {
		mu.Lock()
		defer mu.Unlock()
		res := &offsetcommit.Response{}
		code := fail(s.count(protocol.OffsetCommit))
		for _, topic := range req.Topics {
			out := offsetcommit.ResponseTopic{Name: topic.Name}
			for _, p := range topic.Partitions {
				out.Partitions = append(out.Partitions, offsetcommit.ResponsePartition{PartitionIndex: p.PartitionIndex, ErrorCode: int16(code)})
				at := partition{topic.Name, int(p.PartitionIndex)}
				if before := stored[at].offset; p.CommittedOffset < before {
					s.t.Errorf("the commit of %v goes back from %d to %d", at, before, p.CommittedOffset)
				}
				if code == 0 {
					stored[at] = commitment{p.CommittedOffset, p.CommittedMetadata}
				}
			}
			res.Topics = append(res.Topics, out)
		}
		return res
	})
	return stored
}

func never(int) kafka.Error { return 0 }

var usualLimits = memory{bufferBytes, mostWaiting, bodyBytes, soonBytes}

var usualRoom = room{records: bufferBytes}

// A record is done when the copy of its retry is confirmed, and not before.
func TestUnconfirmedCopyKeepsTheOriginal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		s.log = []rawBatch{{records: numbered(0, 2)}}
		f, err := readerOn(t, s, first, commitment{0, ownerClean}, span{0, 2}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		low := func() int64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.progress.lowWater()
		}
		code := int16(kafka.RequestTimedOut)
		s.answer = answering(func(req *produce.Request) protocol.Message {
			if got := low(); got != 0 {
				t.Errorf("low-water mark %d before the copy is confirmed", got)
			}
			return produced(req, code)
		})
		f.run()
		src := f.source
		ds, err := src.Receive(t.Context(), 10)
		if err != nil || len(ds) != 2 {
			t.Fatalf("received %d, %v", len(ds), err)
		}
		retry := []brokers.Settlement{{Delivery: ds[0], Action: brokers.Retry, Delay: time.Minute}}
		if errs := src.Settle(t.Context(), retry); len(errs) != 1 || !errors.Is(errs[0], brokers.ErrUnknownOutcome) || low() != 0 {
			t.Errorf("of unknown outcome: %v, low-water mark %d", errs, low())
		}
		code = 0
		if errs := src.Settle(t.Context(), retry); errs != nil || low() != 1 {
			t.Errorf("once more: %v, low-water mark %d", errs, low())
		}
		f.cancel(brokers.ErrLeaseLost)
		if errs := src.Settle(t.Context(), acks(ds[1:])); len(errs) != 1 || !errors.Is(errs[0], brokers.ErrLeaseLost) || low() != 1 {
			t.Errorf("after the generation: %v, low-water mark %d", errs, low())
		}
	})
}

func TestWhereAReaderBegins(t *testing.T) {
	marked := newProgress(5)
	marked.start(7)
	text := marked.metadata(metadataLimit)
	for name, tt := range map[string]struct {
		stored commitment
		has    span
		next   int64
		alarm  string
		wary   bool
		lost   int // with offset 7
	}{
		"nothing stored":   {commitment{-1, ""}, span{0, 10}, 0, "", false, 0},
		"of an old log":    {commitment{-1, ""}, span{4, 10}, 4, "", false, 0},
		"clean":            {commitment{5, ownerClean}, span{0, 10}, 5, "", false, 0},
		"owner lost":       {commitment{5, ownerOpen}, span{0, 10}, 5, "", true, 0},
		"with a suspect":   {commitment{5, ownerOpen + text}, span{0, 10}, 5, "", true, 1},
		"a suspect stays":  {commitment{5, ownerClean + text}, span{0, 10}, 5, "", true, 1},
		"another client's": {commitment{5, "consumer-7"}, span{0, 10}, 5, "", false, 0},
		"another's, too":   {commitment{5, "oconsumer"}, span{0, 10}, 5, "", true, 0},
		"damaged":          {commitment{5, ownerClean + "r1:!!!!"}, span{0, 10}, 5, "", false, 0},
		"cut off":          {commitment{5, ownerClean + text[:len(text)-1]}, span{0, 10}, 5, "", false, 0},
		"at the end":       {commitment{10, ownerClean}, span{0, 10}, 10, "", false, 0},
		"beyond the end":   {commitment{11, ownerOpen + text}, span{0, 10}, 0, "made anew", false, 0},
		"fell off the log": {commitment{5, ownerOpen + text}, span{8, 10}, 8, "deleted", false, 0},
		"anew and empty":   {commitment{5, ownerClean}, span{0, 0}, 0, "made anew", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := readerOn(t, newStub(t), first, tt.stored, tt.has, usualLimits)
			defer f.close()
			if (err != nil) != (tt.alarm != "") || err != nil && !strings.Contains(err.Error(), tt.alarm) {
				t.Errorf("alarm %v, want %q", err, tt.alarm)
			}
			if f.next != tt.next || f.progress.lowWater() != tt.next || f.wary.IsZero() == tt.wary || f.progress.abandoned(7) != tt.lost {
				t.Errorf("next %d, low %d, wary %v, lost with 7: %d; want %+v", f.next, f.progress.lowWater(), f.wary, f.progress.abandoned(7), tt)
			}
		})
	}
}

// A worker that could not commit at the end of a generation goes on where it
// was, unless somebody else has committed since.
func TestAReaderGoesOnWithWhatItKept(t *testing.T) {
	last := commitment{5, ownerOpen}
	for name, tt := range map[string]struct {
		stored commitment
		low    int64
		wary   bool
	}{
		"nobody else":   {last, 8, false},
		"somebody else": {commitment{6, ownerOpen}, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := readerOn(t, newStub(t), first, last, span{0, 10}, usualLimits)
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			f.progress.done(5)
			f.progress.done(6)
			f.progress.done(7)
			f.source.kept = map[partition]kept{first: {last: last, progress: f.progress}}
			r, err := newReader(f.source, first, tt.stored, span{0, 10}, usualLimits)
			if err != nil || r.progress.lowWater() != tt.low || r.next != tt.low || r.wary.IsZero() == tt.wary {
				t.Errorf("low %d, next %d, wary %v, error %v; want %+v", r.progress.lowWater(), r.next, r.wary, err, tt)
			}
		})
	}
}

// A message that kills every worker that receives it must be found out before
// many have died, and its neighbours must not be blamed.
func TestCrashLoopsEnd(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := 1 + random.Int64N(200)
			killer := random.Int64N(n)
			inFlight := 1 + random.IntN(100)
			s := newStub(t)
			s.log = []rawBatch{{records: numbered(0, int(n))}}
			stored := s.committing(never)
			stored[first] = commitment{-1, ""}
			worst, handled := 0, make(map[int64]bool)
			buried := false
			for deaths := 0; !buried || int64(len(handled)) < n-1; deaths++ {
				if deaths > 4 { // the first of them without a mark
					t.Fatalf("seed %d: offset %d of %d, %d in flight, has killed %d workers", seed, killer, n, inFlight, deaths)
				}
				f, err := readerOn(t, s, first, stored[first], span{0, n}, usualLimits)
				if err != nil {
					t.Fatal(err)
				}
				f.run()
				alive := true
				for alive && (!buried || int64(len(handled)) < n-1) {
					if err := f.source.commit(t.Context(), whatChanged); err != nil {
						t.Fatal(err)
					}
					var received []*brokers.Delivery
					for _, d := range f.hand(nil, inFlight) {
						offset := d.Token.(*token).offset
						if offset != killer {
							worst = max(worst, d.Abandoned)
						} else if d.Abandoned < 3 {
							alive = false
							break
						} else {
							buried = true
						}
						received = append(received, d)
					}
					if alive || random.IntN(2) == 0 {
						for _, d := range received {
							d.Token.(*token).done()
							if offset := d.Token.(*token).offset; offset != killer {
								handled[offset] = true
							}
						}
					}
					synctest.Wait()
					if len(received) == 0 {
						time.Sleep(50 * time.Millisecond)
					}
				}
				f.stop()
			}
			if worst >= 3 {
				t.Errorf("seed %d: an innocent message counts %d lost workers", seed, worst)
			}
		})
	}
}

// What is settled waits for the next commit, unless it is much. Where nothing
// has changed there is none.
func TestCommitPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.committing(never)
		f, _ := readerOn(t, s, first, commitment{-1, ""}, span{0, 1 << 40}, usualLimits)
		defer f.stop()
		go f.source.commitAlways(f.source.ctx)
		time.Sleep(10 * commitPace)
		if n := s.count(protocol.OffsetCommit); n != 1 {
			t.Errorf("%d commits while nothing changes, want that of the state", n)
		}
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.last.offset != want {
				t.Errorf("%s: committed %d, want %d", when, f.last.offset, want)
			}
		}
		settle := func(from, to int64) {
			for offset := from; offset < to; offset++ {
				f.done(offset)
			}
		}
		synctest.Wait()
		settle(0, commitBatch-1)
		time.Sleep(commitPace - 1)
		expect("before it is time", 0)
		time.Sleep(time.Nanosecond)
		expect("when it is time", commitBatch-1)
		settle(commitBatch-1, 2*commitBatch-1)
		expect("at once, as it is much", 2*commitBatch-1)
	})
}

// No commit overtakes another one of its generation: what came last would be what
// the group has.
func TestCommitsNeverGoBack(t *testing.T) {
	onOrders(t, 0, commitment{-1, ""}, func(t *testing.T, f *follower) {
		store, commits := f.stub.answer, 0
		f.change(func(s *stub) {
			s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
				if _, ok := req.(*offsetcommit.Request); ok {
					commits++
					if len(f.source.committing) == 0 {
						t.Error("another commit may begin while one is on its way")
					}
				}
				return store(req, call)
			}
		})
		f.commitNow()
		if commits != 1 {
			t.Errorf("%d commits, want 1", commits)
		}
	})
}

// A reader is careful for some time, which pauses do not use up.
func TestWarinessEnds(t *testing.T) {
	for name, paused := range map[string]bool{"read all the time": false, "paused meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			onOrders(t, 500, commitment{0, ownerOpen}, func(t *testing.T, f *follower) {
				time.Sleep(2 * careful) // the broker is slow, and the time begins with its first answer
				f.commitNow()
				f.run()
				synctest.Wait()
				ready := func(when string, want int) {
					t.Helper()
					if n := f.ready(); n != want {
						t.Errorf("%s: %d are ready, want %d", when, n, want)
					}
				}
				ready("without a mark", 0)
				if paused {
					time.Sleep(careful / 2)
					f.pauseOnly("orders")
					for range 10 {
						time.Sleep(careful)
						f.commitNow()
					}
					f.pauseOnly()
				}
				f.commitNow()
				ready("after a commit", maxMarks) // as many as can be marked
				got := f.collect(time.Second)
				time.Sleep(careful)
				f.commitNow()
				ready("in the end", 500-len(got))
			})
		})
	}
}

func TestFailedCommitsWhileWaryLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marked := newProgress(0)
		for _, offset := range []int64{3, 4, 5} {
			marked.start(offset)
		}
		s := newStub(t)
		s.log = []rawBatch{{records: numbered(0, 300)}}
		stored := s.committing(func(call int) kafka.Error {
			if call%3 != 0 {
				return kafka.InvalidCommitOffsetSize // not one to repeat at once
			}
			return 0
		})
		f, _ := readerOn(t, s, first, commitment{0, ownerOpen + marked.metadata(metadataLimit)}, span{0, 300}, usualLimits)
		defer f.stop()
		f.run()
		seen := make(map[int64]int)
		for range 1000 {
			failed := f.source.commit(t.Context(), whatChanged) != nil
			before := f.ready()
			if failed && before > 0 && !f.wary.IsZero() {
				t.Fatalf("%d are ready after a commit that failed", before)
			}
			for _, d := range f.hand(nil, 1000) {
				offset := d.Token.(*token).offset
				if seen[offset]++; seen[offset] == 1 && offset%10 == 0 {
					d.Token.(*token).release()
					continue
				}
				d.Token.(*token).done()
			}
			time.Sleep(commitPace)
		}
		for offset := range int64(300) {
			want := 1
			if offset%10 == 0 {
				want = 2
			}
			if seen[offset] != want {
				t.Errorf("offset %d was handed out %d times, want %d", offset, seen[offset], want)
			}
		}
		if at := stored[first]; at.offset != 300 {
			t.Errorf("committed %+v", at)
		}
	})
}

// retryOf is a record of a delay topic.
func retryOf(offset int64, due time.Time, size int) record {
	body := fmt.Append(nil, offset, strings.Repeat(".", size))
	r := copyOf(noSeal, brokers.Message{ID: fmt.Sprint(offset), Topic: "orders", Body: body}, brokers.Meta{Attempt: 1, DueAt: due})
	r.offset = offset
	return r
}

func retries(dues []time.Time, size int) []rawBatch {
	var log []rawBatch
	for i, due := range dues {
		log = append(log, rawBatch{base: int64(i), records: []record{retryOf(int64(i), due, size)}})
	}
	return log
}

var delayPartition = partition{delayOfOrders, 0}

// onDelays runs test in virtual time on a delay partition that has log.
func onDelays(t *testing.T, limits memory, log func() []rawBatch, test func(t *testing.T, f *follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		s.log = log()
		f, err := readerOn(t, s, delayPartition, commitment{-1, ""}, span{0, s.end()}, limits)
		if err != nil {
			t.Fatal(err)
		}
		test(t, f)
		f.stop()
	})
}

// change makes the log of the stub another one, while nobody looks.
func (f *follower) change(change func(s *stub)) { f.stub.change(change) }

func (f *follower) alarms() []error {
	var all []error
	for err := f.source.failures.take(); err != nil; err = f.source.failures.take() {
		all = append(all, err)
	}
	return all
}

// What waits may be named by a done record that is not read yet.
func TestNothingIsHandedOutBeforeTheEndIsReached(t *testing.T) {
	onDelays(t, usualLimits, func() []rawBatch {
		log := retries(make([]time.Time, 10), 0) // due for long
		done := doneRecord(noSeal, delayPartition, doneValue([]int64{1, 2, 3, 4, 5, 6, 7, 8}))
		done.offset = 10
		return append(log, rawBatch{base: 10, records: []record{done}})
	}, func(t *testing.T, f *follower) {
		f.change(func(s *stub) { s.stable = 10 })
		f.run()
		if ds := f.collect(3 * time.Second); len(ds) != 0 {
			t.Fatalf("%d were handed out before the end of the partition was read", len(ds))
		}
		f.change(func(s *stub) { s.stable = 0 })
		var got []string
		for _, d := range f.collect(3 * time.Second) {
			got = append(got, d.Message.ID)
		}
		if strings.Join(got, " ") != "0 9" {
			t.Errorf("handed out %q, want 0 and 9", got)
		}
		if low := f.progress.lowWater(); low != 11 {
			t.Errorf("low-water mark %d, want 11", low)
		}
	})
}

func TestHostileDoneRecords(t *testing.T) {
	values := [][]byte{nil, {}, {0}, {99}, {doneVersion, 0xff, 0xff}, doneValue([]int64{0, 1, 500}), append(doneValue([]int64{1}), 0)}
	onDelays(t, usualLimits, func() []rawBatch {
		log := retries(make([]time.Time, 3), 0)
		for i, value := range values {
			r := doneRecord(noSeal, delayPartition, value)
			r.offset = int64(3 + i)
			log = append(log, rawBatch{base: r.offset, records: []record{r}})
		}
		return log
	}, func(t *testing.T, f *follower) {
		f.run()
		synctest.Wait()
		alarms := f.alarms()
		if len(alarms) == 0 || !errors.Is(alarms[0], errDoneRecord) {
			t.Errorf("alarms: %v", alarms)
		}
		if ds := f.collect(time.Second); len(ds) != 3 || f.progress.lowWater() != int64(3+len(values)) {
			t.Errorf("%d were handed out, want 3; low-water mark %d", len(ds), f.progress.lowWater())
		}
	})
}

func TestFullIndexStopsReading(t *testing.T) {
	onDelays(t, memory{bufferBytes, 15, 0, soonBytes}, func() []rawBatch {
		dues := make([]time.Time, 100)
		for i := range dues {
			dues[i] = time.Now().Add(10*time.Second + time.Duration(i)*time.Millisecond)
		}
		return retries(dues, 100_000)
	}, func(t *testing.T, f *follower) {
		f.run()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if n := f.lanes["orders"].waiting.len(); n < 15 || n > 35 {
			t.Errorf("%d wait in an index that is full at 15, with 10 more in a fetch", n)
		}
		if ds := f.collect(10 * time.Second); len(ds) != 100 {
			t.Errorf("%d were handed out, want 100", len(ds))
		}
	})
}

// Nobody takes what is fetched ahead.
func TestBufferStopsReading(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		const records, size = 200, 100_000
		for i := range int64(records) {
			s.log = append(s.log, rawBatch{base: i, records: []record{{offset: i, value: make([]byte, size)}}})
		}
		f, _ := readerOn(t, s, first, commitment{-1, ""}, span{0, records}, usualLimits)
		defer f.stop()
		f.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		f.mu.Lock()
		held := f.bytes
		f.mu.Unlock()
		if held < bufferBytes || held > 2*bufferBytes {
			t.Errorf("%d bytes are fetched ahead, want %d and at most one more fetch of as much", held, bufferBytes)
		}
		if ds := f.collect(10 * time.Second); len(ds) != records {
			t.Errorf("%d were handed out, want %d", len(ds), records)
		}
	})
}

func TestBacklogTakesLittleMemory(t *testing.T) {
	onDelays(t, usualLimits, func() []rawBatch { return retries(make([]time.Time, 400), 100_000) }, func(t *testing.T, f *follower) {
		f.run()
		for range 50 {
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			f.mu.Lock()
			held := f.bytes + f.delayed.bytes
			f.mu.Unlock()
			if most := 20 << 20; held > most {
				t.Errorf("%d bytes are held, want at most %d", held, most)
				break
			}
		}
		if ds := f.collect(20 * time.Second); len(ds) != 400 {
			t.Errorf("%d were handed out, want 400", len(ds))
		}
	})
}

// What is fetched again for its due time may be in trouble by then.
func TestFetchedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(s *stub)
		restored bool // the trouble is over some time
		want     string
		alarm    string
	}{
		"a new leader does not show all yet": {func(s *stub) { s.stable = 4 }, true, "0 1 2 3 4 5 6 7 8 9", ""},
		"one is gone from the middle": {func(s *stub) { s.log = slices.Delete(slices.Clone(s.log), 3, 4) }, false,
			"0 1 2 4 5 6 7 8 9", "1 of the retries that waited in partition 0 of topic \"" + delayOfOrders + "\" are not there any more, and are lost"},
		"retention was faster":    {func(s *stub) { s.start, s.log = 5, s.log[5:] }, false, "5 6 7 8 9", "retention.ms"},
		"the topic was made anew": {func(s *stub) { s.log = nil }, false, "", "made anew"},
	} {
		t.Run(name, func(t *testing.T) {
			onDelays(t, memory{bufferBytes, mostWaiting, 0, soonBytes}, func() []rawBatch {
				return retries(slices.Repeat([]time.Time{time.Now().Add(ahead + 2*time.Second)}, 10), 10)
			}, func(t *testing.T, f *follower) {
				f.run()
				time.Sleep(ahead / 2)
				f.change(tt.change)
				time.Sleep(ahead/2 + 3*time.Second)
				alarms := f.alarms()
				if anyContains(alarms, tt.alarm) != (tt.alarm != "") || len(alarms) > 1 {
					t.Errorf("alarms: %v, want %q", alarms, tt.alarm)
				}
				if tt.want == "" {
					if f.work.Err() == nil {
						t.Error("the generation goes on")
					}
					return
				}
				if tt.restored {
					f.change(func(s *stub) { s.stable = 0 })
				}
				var got []string
				for _, d := range f.collect(10 * time.Second) {
					got = append(got, d.Message.ID)
				}
				if slices.Sort(got); strings.Join(got, " ") != tt.want || f.progress.lowWater() != 10 || f.progress.behind() != 0 {
					t.Errorf("handed out %q, low-water mark %d; want %s and 10", got, f.progress.lowWater(), tt.want)
				}
				if n := f.out.Load(); n != 0 {
					t.Errorf("%d are still out", n)
				}
			})
		})
	}
}

// There may be an alarm for each partition, and nobody who calls Receive while
// all handlers are busy.
func TestNoAlarmIsDropped(t *testing.T) {
	f, err := readerOn(t, newStub(t), first, commitment{-1, ""}, span{0, 10}, usualLimits)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	src := f.source
	for range 10 * mostFailures {
		src.fail(cluster.ErrCorrupt)
	}
	for n := range 10 {
		src.alarm(&rangeError{partition: partition{"orders", n}, offset: 5, first: 8, last: 10})
	}
	_, err = src.Receive(t.Context(), 1)
	for n := range 10 {
		if want := fmt.Sprintf("partition %d of topic", n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no alarm for partition %d: %v", n, err)
		}
	}
	if n := strings.Count(fmt.Sprint(err), cluster.ErrCorrupt.Error()); n != mostFailures {
		t.Errorf("%d of the other errors are kept, want %d", n, mostFailures)
	}
	if err := src.failures.take(); err != nil {
		t.Errorf("reported again: %v", err)
	}
	if _, err := src.Receive(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "the least is 1") {
		t.Errorf("Receive of 0 messages: %v", err)
	}
}

func TestCorruptRecordsKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		for i := range int64(10) {
			s.log = append(s.log, rawBatch{base: i, records: []record{{offset: i, value: []byte("v")}}})
		}
		s.corrupt = 6
		f, _ := readerOn(t, s, first, commitment{-1, ""}, span{0, 10}, usualLimits)
		defer f.stop()
		f.run()
		time.Sleep(10 * time.Second)
		alarms := f.alarms()
		if !anyContains(alarms, `partition 0 of topic "orders" from offset 6`) || !errors.Is(alarms[0], cluster.ErrCorrupt) || errors.Is(alarms[0], brokers.ErrMisconfigured) || len(alarms) > mostFailures {
			t.Errorf("alarms: %v", alarms)
		}
		f.change(func(s *stub) { s.corrupt = -1 })
		time.Sleep(10 * time.Second)
		f.alarms()
		if ds := f.collect(time.Second); len(ds) != 10 || f.progress.lowWater() != 10 {
			t.Errorf("%d were handed out when the records could be read again, low-water mark %d; want all 10", len(ds), f.progress.lowWater())
		}
	})
}

// After a lost owner what is due is taken out of the buffer by trials. That
// makes room for more, also when the index is full and nothing is read.
func TestTrialsOfABacklogMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		s.committing(never)
		const backlog = 450 // more than is loaded at a time
		s.log = retries(make([]time.Time, backlog), 50_000)
		f, err := readerOn(t, s, delayPartition, commitment{0, ownerOpen}, span{0, backlog}, memory{bufferBytes, 100, 0, soonBytes})
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		start := time.Now()
		for seen := 0; seen < backlog; time.Sleep(commitPace) {
			if err := f.source.commit(t.Context(), whatChanged); err != nil {
				t.Fatal(err)
			}
			for _, d := range f.hand(nil, 100) {
				d.Token.(*token).done()
				seen++
			}
			if time.Since(start) > careful*9/10 {
				t.Errorf("%d of %d were handed out in %v", seen, backlog, careful)
				break
			}
		}
	})
}
