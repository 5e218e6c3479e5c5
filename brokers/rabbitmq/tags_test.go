package rabbitmq

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestTags(t *testing.T) {
	type step struct {
		ack, gone  []uint64
		stragglers bool // those that waited after the step before go, too
		multiple   uint64
		singles    []uint64
		waits      bool // some do after the step
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"nothing", []step{{}}},
		{"one", []step{{ack: []uint64{1}, multiple: 1}, {}}},
		{"a run", []step{{ack: []uint64{1, 2, 3}, multiple: 3}}},
		{"a run in any order", []step{{ack: []uint64{3, 1, 2}, multiple: 3}}},
		{"a gap", []step{{ack: []uint64{1, 3}, multiple: 1, waits: true}, {ack: []uint64{2}, multiple: 3}}},
		{"a gap at the start", []step{{ack: []uint64{2, 3}, waits: true}, {stragglers: true, singles: []uint64{2, 3}}, {ack: []uint64{1, 4}, multiple: 4}}},
		{"after stragglers nothing twice", []step{{ack: []uint64{2}, waits: true}, {stragglers: true, singles: []uint64{2}}, {ack: []uint64{1}, multiple: 1}, {}}},
		{"a straggler that has just come waits", []step{{ack: []uint64{2}, waits: true},
			{ack: []uint64{4}, stragglers: true, singles: []uint64{2}, waits: true}, {stragglers: true, singles: []uint64{4}}}},
		{"old stragglers become a run", []step{{ack: []uint64{2, 5}, waits: true},
			{ack: []uint64{1, 6}, stragglers: true, multiple: 2, singles: []uint64{5}, waits: true}, {stragglers: true, singles: []uint64{6}}}},
		{"gone are not acked", []step{{gone: []uint64{1, 2}}, {ack: []uint64{3}, multiple: 3}}},
		{"the last one gone", []step{{ack: []uint64{1}, gone: []uint64{2}, multiple: 1}, {ack: []uint64{3}, multiple: 3}}},
		{"not seen yet", []step{{ack: []uint64{1, 2, 4}, multiple: 2, waits: true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tags, start := newTags(&intake{}), time.Now()
			for i, s := range tt.steps {
				now := start.Add(time.Duration(i) * time.Second)
				for _, tag := range s.gone {
					tags.gone(tag)
				}
				for _, tag := range s.ack {
					tags.ack(tag, now)
				}
				var old time.Time
				if s.stragglers {
					old = now.Add(-time.Second)
				}
				multiple, singles := tags.flush(old)
				if waits := len(tags.waiting) > 0; waits != s.waits {
					t.Errorf("step %d: some wait: %t, want %t", i, waits, s.waits)
				}
				if multiple != s.multiple || !slices.Equal(singles, s.singles) {
					t.Fatalf("step %d: flush = %d, %v; want %d, %v", i, multiple, singles, s.multiple, s.singles)
				}
			}
		})
	}
}

// settlements is what a broker does with acks and nacks.
type settlements map[uint64]string

func (c settlements) settle(t *testing.T, tag uint64, as string) {
	if c[tag] != "" {
		t.Errorf("tag %d, which is %s, was settled again as %s: the broker would close the channel", tag, c[tag], as)
	}
	c[tag] = as
}

func TestTagsAckNoOtherDelivery(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		start, in := time.Now(), &intake{}
		tags, broker, acked := newTags(in), settlements{}, map[uint64]bool{}
		flush := func(old time.Duration) {
			multiple, singles := tags.flush(start.Add(old))
			for tag := uint64(1); tag <= multiple; tag++ {
				if broker[tag] != "" {
					continue
				}
				if !acked[tag] {
					t.Errorf("a multiple ack of %d acks %d, which is undecided", multiple, tag)
				}
				broker.settle(t, tag, "acked")
			}
			for _, tag := range singles {
				if !acked[tag] {
					t.Errorf("%d is acked and undecided", tag)
				}
				broker.settle(t, tag, "acked")
			}
		}
		order := random.Perm(60)
		for i := range order { // nearly in order
			j := min(i+random.IntN(8), len(order)-1)
			order[i], order[j] = order[j], order[i]
		}
		for i, n := range order {
			tag := uint64(n) + 1
			if random.IntN(4) == 0 {
				broker.settle(t, tag, "requeued")
				tags.gone(tag)
			} else {
				acked[tag] = true
				tags.ack(tag, start.Add(time.Duration(i)))
				in.unacked.Add(1)
			}
			if random.IntN(3) == 0 {
				flush(time.Duration(random.IntN(5)/4*random.IntN(2+i) - 1))
			}
		}
		flush(time.Hour)
		if n := in.unacked.Load(); n != 0 {
			t.Errorf("%d deliveries are counted as unacked, want none", n)
		}
		if len(broker) != len(order) || len(tags.waiting) > 0 || len(tags.decided) > 0 {
			t.Errorf("%d of %d tags are settled, %d wait", len(broker), len(order), len(tags.waiting))
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
