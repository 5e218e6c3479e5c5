package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/redrive-go/redrive/brokers"
)

// onOrders runs test in virtual time on a reader of a log of n records.
func onOrders(t *testing.T, n int, stored commitment, test func(t *testing.T, f *follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.committing(never)
		s.log = []rawBatch{{records: numbered(0, n)}}
		f, err := readerOn(t, s, first, stored, span{0, int64(n)}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		test(t, f)
		f.stop()
	})
}

// pauseOnly replaces the set of paused topics, as a worker does.
func (f *follower) pauseOnly(topics ...string) { f.source.Pause(topics...) }

// none fails the test if something is handed out within d.
func (f *follower) none(when string, d time.Duration) {
	f.t.Helper()
	if ds := f.collect(d); len(ds) > 0 {
		f.t.Errorf("%s: received %v", when, bodies(ds))
	}
}

func (f *follower) commitNow() {
	f.t.Helper()
	if err := f.source.commit(f.t.Context(), whatChanged); err != nil {
		f.t.Fatal(err)
	}
}

func TestPausedTopicIsNotFetched(t *testing.T) {
	onOrders(t, 100, commitment{-1, ""}, func(t *testing.T, f *follower) {
		f.run()
		ds, err := f.source.Receive(t.Context(), 10)
		if err != nil || len(ds) != 10 {
			t.Fatalf("received %d: %v", len(ds), err)
		}
		f.pauseOnly("unknown", "orders", "orders")
		ds[3].Token.(*token).release()
		time.Sleep(longestWait) // of the fetch that is on its way
		before := f.stub.count(protocol.Fetch)
		more := numbered(100, 20)
		for i := range more {
			more[i].offset += 100
		}
		f.change(func(s *stub) { s.log = append(s.log, rawBatch{base: 100, records: more}) })
		for range 100 {
			f.pauseOnly("orders")
			f.none("paused", time.Minute)
		}
		if n := f.stub.count(protocol.Fetch) - before; n != 0 {
			t.Errorf("%d fetches during the pause", n)
		}
		f.pauseOnly()
		start := time.Now()
		got, err := f.source.Receive(t.Context(), 200)
		if err != nil || len(got) == 0 || time.Since(start) > 0 || string(got[0].Message.Body) != "3" {
			t.Errorf("resumed: %v after %v, %v; want that which came back first, and at once", bodies(got), time.Since(start), err)
		}
		f.source.Settle(t.Context(), acks(got))
		all := append(got, f.collect(time.Second)...)
		if len(all) != 111 || f.stub.count(protocol.Fetch) == before {
			t.Errorf("received %d in the end, want 111 and by fetches", len(all))
		}
	})
}

// A pause of moments costs no requests, and a reader goes on as if there had been
// none.
func TestShortPausesCostNothing(t *testing.T) {
	onOrders(t, 100, commitment{-1, ""}, func(t *testing.T, f *follower) {
		f.run()
		f.collect(time.Second)
		before, witnessed := f.stub.count(protocol.Fetch), f.progress.lowWater()
		for range 1000 {
			f.pauseOnly("orders")
			time.Sleep(5 * time.Millisecond)
			f.pauseOnly()
			time.Sleep(5 * time.Millisecond)
		}
		if n := f.stub.count(protocol.Fetch) - before; n > 21 || witnessed != 100 {
			t.Errorf("%d fetches in 10 s, want one in %v", n, longestWait)
		}
	})
}

// A log may be made anew while nobody reads it, or nobody can.
func TestLogIsMadeAnew(t *testing.T) {
	for name, tt := range map[string]struct{ acked, failing bool }{
		"in a pause":                          {acked: true},
		"in a pause, before anything is done": {},
		"while fetches fail":                  {acked: true, failing: true},
	} {
		t.Run(name, func(t *testing.T) {
			onOrders(t, 100, commitment{-1, ""}, func(t *testing.T, f *follower) {
				f.change(func(s *stub) { s.id = [16]byte{1} })
				f.run()
				synctest.Wait()
				if tt.acked {
					f.collect(time.Second)
				}
				if tt.failing {
					f.change(func(s *stub) { s.answer = answering(func(*fetch.Request) protocol.Message { return fetchError(78) }) })
				} else {
					f.pauseOnly("orders")
				}
				time.Sleep(time.Minute)
				f.alarms()
				f.change(func(s *stub) {
					s.answer, s.log, s.id = nil, []rawBatch{{records: numbered(0, 300)}}, [16]byte{2}
				})
				f.pauseOnly()
				time.Sleep(10 * time.Second)
				if why := context.Cause(f.work); !strings.Contains(fmt.Sprint(why), "another log") {
					t.Errorf("the reader ended because of %v, want another log", why)
				}
				if c, _ := f.changed(ownerClean); !strings.HasPrefix(c.metadata, ownerClean+inCommit("C", [16]byte{1})) {
					t.Errorf("the last commit says %q, which does not tell the next reader", c.metadata)
				}
				if alarms := f.alarms(); len(alarms) > 0 { // the next reader tells
					t.Errorf("alarms %v", alarms)
				}
			})
		})
	}
}

// retryTo is a record of a delay topic for topic.
func retryTo(topic string, offset int64, due time.Time, size int) rawBatch {
	body := fmt.Append(nil, topic, offset, strings.Repeat(".", size))
	r := copyOf(noSeal, brokers.Message{ID: fmt.Sprint(offset), Topic: topic, Body: body}, brokers.Meta{Attempt: 1, DueAt: due})
	r.offset = offset
	return rawBatch{base: offset, records: []record{r}}
}

// The retries of several topics share a delay partition. Those of a paused one
// wait, and the others are neither early nor late, whatever their order.
func TestDelaysAreExact(t *testing.T) {
	for name, limits := range map[string]memory{
		"in memory":     usualLimits,
		"fetched again": {bufferBytes, mostWaiting, 0, soonBytes},
		"half and half": {bufferBytes, mostWaiting, 50_000, soonBytes},
		"little memory": {leastBuffer, mostWaiting, 1000, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			const each = 200
			var dues [2 * each]time.Time
			topics := [2]string{"orders", "refunds"}
			onDelays(t, limits, func() []rawBatch {
				var log []rawBatch
				for i := range dues {
					dues[i] = time.Now().Add(time.Second + time.Duration(i*7919%(2*each))*10*time.Millisecond)
					log = append(log, retryTo(topics[i%2], int64(i), dues[i], 100))
				}
				return log
			}, func(t *testing.T, f *follower) {
				f.run()
				time.Sleep(500 * time.Millisecond)
				f.pauseOnly("orders")
				seen := make(map[string]bool)
				for _, d := range f.collect(10 * time.Second) {
					offset := d.Token.(*token).offset
					if late := d.ReceivedAt.Sub(dues[offset]); d.Message.Topic != "refunds" || seen[d.Message.ID] || late < 0 || late > 2*time.Millisecond {
						t.Errorf("offset %d of %q is %v late, or came twice", offset, d.Message.Topic, late)
					}
					seen[d.Message.ID] = true
				}
				if len(seen) != each {
					t.Errorf("received %d of refunds, want %d", len(seen), each)
				}
				before := f.stub.count(protocol.Fetch)
				f.none("only orders is left", 10*time.Second)
				if n := f.stub.count(protocol.Fetch) - before; n > 21 {
					t.Errorf("%d fetches while nothing happens, want one in %v", n, longestWait)
				}
				f.pauseOnly()
				start := time.Now()
				for _, d := range f.collect(5 * time.Second) {
					if seen[d.Message.ID] || d.Message.Topic != "orders" || d.ReceivedAt.Sub(start) > time.Second {
						t.Errorf("message %s of %q after %v", d.Message.ID, d.Message.Topic, d.ReceivedAt.Sub(start))
					}
					seen[d.Message.ID] = true
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(seen) != 2*each || f.progress.lowWater() != 2*each || f.bytes+f.aside+f.delayed.bytes+f.delayed.early+f.delayed.halted != 0 {
					t.Errorf("received %d in the end, low-water mark %d; %d, %d, %d, %d, %d bytes are left",
						len(seen), f.progress.lowWater(), f.bytes, f.aside, f.delayed.bytes, f.delayed.early, f.delayed.halted)
				}
			})
		})
	}
}

// Nobody needs the delay topics while all topics are paused.
func TestAllArePaused(t *testing.T) {
	onDelays(t, usualLimits, func() []rawBatch {
		return []rawBatch{retryTo("orders", 0, time.Now().Add(time.Second), 10)}
	}, func(t *testing.T, f *follower) {
		f.run()
		synctest.Wait()
		f.pauseOnly("orders", "refunds")
		time.Sleep(longestWait)
		before := f.stub.count(protocol.Fetch)
		f.none("all are paused", time.Hour)
		if n := f.stub.count(protocol.Fetch) - before; n != 0 {
			t.Errorf("%d fetches while all are paused", n)
		}
		f.pauseOnly("refunds")
		if ds := f.collect(time.Second); len(ds) != 1 {
			t.Errorf("received %d when resumed, want 1", len(ds))
		}
	})
}

// What a paused topic has in the index must not keep others from being read.
func TestFullIndexOfAPausedTopic(t *testing.T) {
	const limit = 40
	onDelays(t, memory{bufferBytes, limit, 0, soonBytes}, func() []rawBatch {
		var log []rawBatch
		for i := range int64(limit) {
			log = append(log, retryTo("orders", i, time.Now().Add(time.Second), 10))
		}
		for i := range int64(100) {
			log = append(log, retryTo("refunds", limit+i, time.Now().Add(2*time.Second), 100_000))
		}
		return log
	}, func(t *testing.T, f *follower) {
		f.pauseOnly("orders")
		f.run()
		if ds := f.collect(4 * time.Second); len(ds) != 100 {
			t.Errorf("received %d of the other topic, want 100", len(ds))
		}
		f.mu.Lock()
		if n := f.lanes["orders"].waiting.len(); n != limit {
			t.Errorf("%d wait, want %d", n, limit)
		}
		f.mu.Unlock()
		f.pauseOnly()
		if ds := f.collect(4 * time.Second); len(ds) != limit {
			t.Errorf("received %d when resumed, want %d", len(ds), limit)
		}
	})
}

// Nothing is handed out before the end of a partition is read, unless the index
// is full: it may be full when a topic is resumed.
func TestIndexIsFullAfterAPause(t *testing.T) {
	const limit = 40
	onDelays(t, memory{bufferBytes, limit, 0, soonBytes}, func() []rawBatch {
		var log []rawBatch
		for i := range int64(2 * limit) {
			log = append(log, retryTo("orders", i, time.Now(), 50_000))
		}
		return log
	}, func(t *testing.T, f *follower) {
		f.pauseOnly("orders")
		f.change(func(s *stub) { s.stable = limit + 5 })
		f.run()
		f.none("before the end is read", 2*time.Second)
		f.pauseOnly("orders", "refunds")
		f.none("while all are paused", 2*time.Second)
		f.pauseOnly()
		f.change(func(s *stub) { s.stable = 0 })
		if ds := f.collect(2 * time.Second); len(ds) != 2*limit {
			t.Errorf("received %d, want %d", len(ds), 2*limit)
		}
	})
}

// What was fetched of a paused topic stays here, but not all of it.
func TestPausedTopicTakesLittleMemory(t *testing.T) {
	const each = 100
	limits := memory{bufferBytes, mostWaiting, 0, 2 << 20}
	onDelays(t, limits, func() []rawBatch {
		var log []rawBatch
		for i := range int64(each) {
			due := time.Now().Add(5*time.Second + time.Duration(i)*time.Millisecond)
			log = append(log, retryTo("orders", 2*i, due, 50_000), retryTo("refunds", 2*i+1, due, 50_000))
		}
		return log
	}, func(t *testing.T, f *follower) {
		f.run()
		most := 0
		for step := range 20 { // before they are due, and after
			for _, paused := range [][]string{{"orders"}, {"refunds"}, {"orders", "refunds"}, nil} {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				f.pauseOnly(paused...)
				f.mu.Lock()
				held := f.aside + f.delayed.halted
				f.mu.Unlock()
				if most = max(most, held); held > limits.soon/2 || paused == nil && held > 0 {
					t.Fatalf("%d bytes of %q are held in step %d", held, paused, step)
				}
			}
		}
		if most < limits.soon/4 {
			t.Errorf("at most %d bytes were held", most)
		}
		f.pauseOnly()
		seen := make(map[string]bool)
		ds := f.collect(5 * time.Second)
		for _, d := range ds {
			seen[d.Message.ID] = true
		}
		if len(ds) != 2*each || len(seen) != 2*each {
			t.Errorf("received %d of %d messages, want each of %d once", len(ds), len(seen), 2*each)
		}
	})
}

// Whatever is paused when: nothing of it is handed out, and all is once.
func TestRandomPauses(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 2))
		limits := []memory{usualLimits, {leastBuffer, 50, 1000, 20_000}, {leastBuffer, mostWaiting, 0, soonBytes}}[random.IntN(3)]
		const records = 300
		topics := []string{"orders", "refunds"}
		onDelays(t, limits, func() []rawBatch {
			var log []rawBatch
			for i := range int64(records) {
				log = append(log, retryTo(topics[random.IntN(2)], i, time.Now().Add(time.Duration(random.Int64N(int64(20*time.Second)))), random.IntN(2000)))
			}
			return log
		}, func(t *testing.T, f *follower) {
			f.run()
			seen := make(map[string]int)
			for end := time.Now().Add(40 * time.Second); time.Now().Before(end); {
				paused := topics[:random.IntN(3)]
				if random.IntN(2) == 0 {
					paused = topics[random.IntN(2):]
				}
				f.pauseOnly(paused...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(300*time.Millisecond))))
				for ctx.Err() == nil {
					ds, _ := f.source.Receive(ctx, 1+random.IntN(20))
					for _, d := range ds {
						if strings.Contains(strings.Join(paused, " "), d.Message.Topic) {
							t.Errorf("seed %d: received %s of %q, which is paused", seed, d.Message.ID, d.Message.Topic)
						}
						if random.IntN(10) == 0 {
							d.Token.(*token).release()
							continue
						}
						seen[d.Message.ID]++
						d.Token.(*token).done()
					}
				}
				cancel()
			}
			f.pauseOnly()
			for _, d := range f.collect(10 * time.Second) {
				seen[d.Message.ID]++
			}
			for i := range records {
				if n := seen[fmt.Sprint(i)]; n != 1 {
					t.Errorf("seed %d: offset %d was settled %d times", seed, i, n)
				}
			}
		})
	}
}

// A worker that dies while a topic is paused does not die of its messages, and a
// suspect among them does not keep the others.
func TestSuspectsOfAPausedTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.committing(never)
		f, _ := readerOn(t, s, first, commitment{0, ownerClean}, span{0, 10}, usualLimits)
		defer f.stop()
		src := f.source
		src.readers = nil
		r := suspiciousReader(src, 0, map[int64]int{3: 2}, 3, 4)
		other := suspiciousReader(src, 1, nil, 5)
		other.partition.topic, other.lanes = "refunds", map[string]*lane{"refunds": other.own}
		f.commitNow()
		if src.alone != r || len(r.cleared) != 1 || !r.progress.isTrying(grave) {
			t.Fatal("the suspect is not on trial")
		}
		f.pauseOnly("orders")
		if len(r.cleared) > 0 || r.trial() > 0 || len(r.progress.marks()) != 1 || r.progress.marks()[0].count != 2 {
			t.Errorf("paused: %d are marked, %d on trial, marks %v", len(r.cleared), r.trial(), r.progress.marks())
		}
		f.commitNow()
		if ds, err := src.take(10); len(ds) != 1 || err != nil || src.alone != nil {
			t.Errorf("the other topic: received %v, %v", bodies(ds), err)
		} else {
			ds[0].Token.(*token).done()
		}
		f.pauseOnly()
		f.commitNow()
		if ds, err := src.take(10); len(ds) != 1 || err != nil || ds[0].Abandoned != 2 || src.alone != r {
			t.Errorf("resumed: received %v, %v", bodies(ds), err)
		}
	})
}
