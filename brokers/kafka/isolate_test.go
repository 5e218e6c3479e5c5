package kafka

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/redrive-go/redrive/brokers"
)

// suspiciousReader has records with these offsets, of which lost were with so
// many lost owners.
func suspiciousReader(s *source, number int, lost map[int64]int, offsets ...int64) *reader {
	r := &reader{source: s, partition: partition{"orders", number}, progress: newProgress(0), more: make(chan struct{}, 1), begun: true, wary: time.Now().Add(careful)}
	r.progress.lost = lost
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.work, r.stop = context.WithCancelCause(context.Background())
	r.divide(nil)
	for _, offset := range offsets {
		r.fill(r.own, []*record{{offset: offset}})
	}
	s.readers = append(s.readers, r)
	return r
}

// Two suspects that were lost with two owners each: one of them kills. Whoever
// is tried is alone in its worker, so that the other one is not charged.
func TestGraveSuspectsAreTriedAloneInTheirWorker(t *testing.T) {
	src := &source{woken: make(chan struct{}, 1), kick: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
	first := suspiciousReader(src, 0, map[int64]int{3: 2, 4: 1}, 3, 4, 5)
	second := suspiciousReader(src, 1, map[int64]int{7: 3}, 6, 7)
	// step does what a commit does, and returns what may be handed out.
	step := func() (trial []int64) {
		alone, quiet := src.isolate()
		for _, r := range src.readers {
			if alone != nil && (alone != r || !quiet) {
				continue
			}
			for _, record := range r.try(time.Now()) {
				trial = append(trial, record.offset)
			}
		}
		return trial
	}
	handOut := func(r *reader, n int) {
		r.out.Add(int64(n))
		if got := src.allowed(); !slices.Contains(got, r) {
			t.Errorf("the reader of partition %d may not hand out what it has marked", r.partition.number)
		}
	}
	settle := func(r *reader, offset int64) {
		r.done(offset)
		r.settled(1)
	}
	second.out.Add(1) // from before
	if got := step(); got != nil {
		t.Errorf("tried beside another delivery: %v", got)
	}
	if got := src.allowed(); len(got) != 0 {
		t.Errorf("%d readers go on meanwhile, want none", len(got))
	}
	second.settled(1)
	if got := step(); !slices.Equal(got, []int64{3}) {
		t.Errorf("tried first: %v, want 3", got)
	}
	handOut(first, 1)
	if got := step(); got != nil {
		t.Errorf("tried beside offset 3: %v", got)
	}
	if slices.Contains(src.allowed(), second) {
		t.Error("the reader of partition 1 goes on beside offset 3")
	}
	settle(first, 3)
	if got := step(); !slices.Equal(got, []int64{7}) {
		t.Errorf("tried then: %v, want 7", got)
	}
	handOut(second, 1)
	settle(second, 7)
	if got := step(); !slices.Equal(got, []int64{4, 6}) {
		t.Errorf("tried in the end: %v, want 4, the suspect, and 6 of the other partition", got)
	}
	if got := src.allowed(); len(got) != 2 {
		t.Errorf("%d readers go on in the end, want both", len(got))
	}
}

// A commit marks what is on trial, of one partition at a time, and of none
// beside what is handed out.
func TestCommitTriesOneGraveSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.committing(never)
		f, err := readerOn(t, s, first, commitment{}, span{}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		src := f.source
		src.readers = nil
		readers := []*reader{suspiciousReader(src, 0, map[int64]int{3: 2}, 3), suspiciousReader(src, 1, map[int64]int{7: 2}, 7)}
		trying := func(want ...bool) {
			t.Helper()
			if err := src.commit(t.Context(), whatChanged); err != nil {
				t.Errorf("commit: %v", err)
			}
			for i, r := range readers {
				if got := r.isTrying(); got != want[i] {
					t.Errorf("partition %d has something on trial: %v, want %v", i, got, want[i])
				}
			}
		}
		readers[1].out.Add(1)
		trying(false, false)
		readers[1].settled(1)
		trying(true, false)
		readers[0].done(3)
		trying(false, true)
	})
}

// That the partitions belong to somebody else ends the generation, whatever
// else fails.
func TestCommitTellsOfTheLostLease(t *testing.T) {
	for name, codes := range map[string][]kafka.Error{
		"first": {kafka.UnknownMemberId, kafka.GroupAuthorizationFailed},
		"last":  {kafka.GroupAuthorizationFailed, kafka.UnknownMemberId},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStub(t)
			s.answer = answering(func(*offsetcommit.Request) protocol.Message { return commitResponse(codes...) })
			f, err := readerOn(t, s, first, commitment{}, span{}, usualLimits)
			if err != nil {
				t.Fatal(err)
			}
			defer f.stop()
			src := f.source
			src.readers = nil
			suspiciousReader(src, 0, nil, 3)
			suspiciousReader(src, 1, nil, 7)
			if err := src.commit(t.Context(), everything); !errors.Is(err, brokers.ErrLeaseLost) {
				t.Errorf("%s: %v, want ErrLeaseLost", name, err)
			}
		})
	}
}

// What is not marked is not on trial: the next one may begin.
func TestTrialThatIsNotMarkedEnds(t *testing.T) {
	src := &source{woken: make(chan struct{}, 1), kick: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
	r := suspiciousReader(src, 0, map[int64]int{3: 2}, 3)
	alone, quiet := src.isolate()
	if alone != r || !quiet {
		t.Fatalf("isolated %v, quiet %v; want the reader at rest", alone, quiet)
	}
	r.notCommitted(r.try(time.Now()))
	if got := r.try(time.Now()); len(got) != 1 || r.progress.abandoned(3) != 2 {
		t.Errorf("tried again: %v, want offset 3, lost twice", got)
	}
	if got := r.hand([]*brokers.Delivery{}, 10); len(got) != 0 {
		t.Errorf("handed out before it is marked: %v", got)
	}
}

// A few suspects are on trial at a time, and the next follow when some of them
// are settled, not all: one may take long.
func TestSuspectsFollowEachOther(t *testing.T) {
	src := &source{woken: make(chan struct{}, 1), kick: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
	lost := make(map[int64]int)
	var offsets []int64
	for offset := range int64(2 * maxMarks) {
		if offsets = append(offsets, offset); offset < 20 {
			lost[offset] = 1
		}
	}
	r := suspiciousReader(src, 0, lost, offsets...)
	try := func(what string, from, to int) {
		t.Helper()
		trial := r.try(time.Now())
		if len(trial) != to-from || len(trial) > 0 && (trial[0].offset != int64(from) || trial[len(trial)-1].offset != int64(to-1)) {
			t.Errorf("%s: tried %v, want the offsets from %d to %d", what, trial, from, to-1)
		}
		r.committed(r.last, trial)
	}
	settle := func(from, to int64) {
		for offset := from; offset < to; offset++ {
			r.done(offset)
		}
	}
	try("at first", 0, 8)
	try("while they are on trial", 0, 0)
	settle(1, 5) // the first one takes long
	try("when some are settled", 8, 12)
	settle(5, 12)
	try("and again", 12, 19)
	settle(12, 19)
	try("the last suspect", 19, 20)
	settle(19, 20)
	try("others", 20, 20+maxMarks-1)
	r.wary = time.Now().Add(-1)
	if got := r.try(time.Now()); got != nil {
		t.Errorf("tried %v beside a suspect that is still there", got)
	}
	settle(0, 1)
	for len(src.woken) > 0 { // by what came while it was not ready
		<-src.woken
	}
	if got := r.try(time.Now()); got != nil || !r.wary.IsZero() || len(r.cleared) > 0 {
		t.Errorf("tried %v, wary until %v, marked %d; want an end of the trials", got, r.wary, len(r.cleared))
	}
	if len(src.woken) == 0 {
		t.Error("a Receive that waits is not told that all is ready")
	}
	if got := r.ready(); got != 2*maxMarks {
		t.Errorf("%d records are ready, want %d", got, 2*maxMarks)
	}
}
