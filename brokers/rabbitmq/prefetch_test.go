package rabbitmq

import (
	"testing"
	"time"
)

// What makes the prefetch of a queue grow, and up to where. Each is told once.
func TestLimitOfPrefetch(t *testing.T) {
	const granted, most = 512, 8000
	begin := time.Now()
	tests := []struct {
		name    string
		happens func(*intake)
		after   time.Duration
		want    int
	}{
		{"nothing", func(*intake) {}, 0, 0},
		{"all of it settled quickly", func(in *intake) { in.settled.Add(granted) }, ahead - 1, fastPrefetch},
		{"not all of it", func(in *intake) { in.settled.Add(granted - 1) }, ahead - 1, 0},
		{"all of it, slowly", func(in *intake) { in.settled.Add(granted) }, ahead, 0},
		{"acks that wait for others of their batch", func(in *intake) { in.wait(granted / ackShare) }, 0, 0},
		{"a few more", func(in *intake) { in.wait(granted * 5 / 8) }, 0, 0},
		{"acks that wait for a confirm", func(in *intake) { in.wait(granted*5/8 + 1) }, 0, starvedPrefetch},
		{"all out, and taken", func(in *intake) { in.full.Store(true) }, 0, most},
		{"all out, and not taken", func(in *intake) { in.full.Store(true); in.items = make([]item, 1) }, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := &intake{feed: &feed{}, marked: begin}
			in.granted.Store(granted)
			tt.happens(in)
			if got := in.limit(begin.Add(tt.after), granted, most); got != tt.want {
				t.Errorf("it may grow up to %d, want %d", got, tt.want)
			}
			if got := in.limit(begin.Add(tt.after), granted, most); got != 0 {
				t.Errorf("told again, it may grow up to %d", got)
			}
		})
	}
}

// wait adds acks that wait.
func (in *intake) wait(n int64) {
	in.waiting.Add(n)
	in.starves()
}

// A prefetch of one is not starved by the ack that is on its way.
func TestStarves(t *testing.T) {
	for _, tt := range []struct {
		granted, waiting int64
		want             bool
	}{{1, 0, false}, {1, 1, true}, {32, 23, false}, {32, 24, true}, {4000, 2999, false}, {4000, 3000, true}} {
		in := new(intake)
		in.granted.Store(tt.granted)
		in.waiting.Store(tt.waiting)
		if got := in.starves(); got != tt.want {
			t.Errorf("%d of %d wait: starves %v, want %v", tt.waiting, tt.granted, got, tt.want)
		}
		if tt.waiting == 0 && in.starved.Load() {
			t.Errorf("none of %d waits, and it shall grow", tt.granted)
		}
	}
}

func TestMerges(t *testing.T) {
	for version, want := range map[string]bool{
		"3.10.8": false, "3.11.0": false, "3.11.1": true, "3.13.7": true, "4.0.5": true, "4.1.0-rc.1": true, "2.0.1": false, "": false, "new": false,
	} {
		if got := merges(version); got != want {
			t.Errorf("merges(%q) = %t, want %t", version, got, want)
		}
	}
}

// A consumer that goes on has room for what it had, within what the broker takes.
func TestRoom(t *testing.T) {
	for _, tt := range []struct{ more, unacked, want int }{
		{0, 3, 3}, {32, 3, 35}, {0, 0, 1}, {1024, 1000, mostPrefetch}, {0, 4000, mostPrefetch},
	} {
		if got := room(tt.more, tt.unacked); got != tt.want {
			t.Errorf("room(%d, %d) = %d, want %d", tt.more, tt.unacked, got, tt.want)
		}
	}
}
