package rabbitmq

import (
	"testing"
	"time"
)

// What makes the prefetch of a queue grow, and up to where.
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
		{"nearly all out, and taken", func(in *intake) { in.out.Store(granted * 3 / 4) }, 0, most},
		{"less out", func(in *intake) { in.out.Store(granted*3/4 - 1) }, 0, 0},
		{"all out, and not taken", func(in *intake) { in.out.Store(granted); in.items = make([]*token, 1) }, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := &intake{feed: &feed{}, marked: begin}
			tt.happens(in)
			if got := in.limit(begin.Add(tt.after), granted, most); got != tt.want {
				t.Errorf("it may grow up to %d, want %d", got, tt.want)
			}
		})
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
