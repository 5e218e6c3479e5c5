package kafka

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		delay time.Duration
		names string
		last  time.Duration
	}{
		{0, "1m", time.Minute},
		{30 * time.Second, "1m", time.Minute},
		{time.Minute, "1m", time.Minute},
		{10 * time.Minute, "1m 15m", 15 * time.Minute},
		{2 * time.Hour, "1m 15m 3h", 3 * time.Hour},
		{30 * time.Hour, "1m 15m 3h 24h", 30 * time.Hour},
	} {
		o := Options{}.withDefaults()
		p, err := o.plan(brokers.Subscription{Group: "g", Topics: []string{"b", "a", "b"}, MaxDelay: tt.delay, DeadLetters: map[string]string{"a": "d", "b": "d"}})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range p.delays {
			names = append(names, strings.TrimPrefix(d.name, "redrive.delay.v1.g."))
		}
		if got := strings.Join(names, " "); got != tt.names || p.delays[len(p.delays)-1].longest != tt.last {
			t.Errorf("delays of up to %v: %q, the last for %v; want %q, the last for %v", tt.delay, got, p.delays[len(p.delays)-1].longest, tt.names, tt.last)
		}
		if !slices.Equal(p.topics, []string{"a", "b"}) || !slices.Equal(p.dead, []string{"d"}) || len(p.consumed()) != 2+len(p.delays) {
			t.Errorf("plan %+v", p)
		}
	}
}

func TestPick(t *testing.T) {
	o := Options{Prefix: "p"}.withDefaults()
	p, err := o.plan(brokers.Subscription{Group: "g", Topics: []string{"a"}, MaxDelay: 30 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for delay, want := range map[time.Duration]string{
		-1: "1m", 0: "1m", time.Minute: "1m", time.Minute + 1: "15m", 15 * time.Minute: "15m", 3 * time.Hour: "3h",
		3*time.Hour + 1: "24h", 24*time.Hour + 1: "24h", 1000 * time.Hour: "24h",
	} {
		if got := p.pick(delay); got != "p.delay.v1.g."+want {
			t.Errorf("a delay of %v goes to %q, want %s", delay, got, want)
		}
	}
}

func TestDefaultsThatDepend(t *testing.T) {
	for o, want := range map[[2]int]int{{0, 0}: 16 << 20, {0, 1_048_588}: 16_777_408, {0, 1000}: 16 << 20, {5, 1_048_588}: 5} {
		if got := (Options{MaxDecompressed: o[0]}).decompressed(o[1]); got != want {
			t.Errorf("MaxDecompressed %d, max.message.bytes %d: %d, want %d", o[0], o[1], got, want)
		}
	}
	for session, want := range map[time.Duration]time.Duration{time.Second: time.Second / 5, 15 * time.Second: 3 * time.Second, time.Hour: 3 * time.Second} {
		if got := heartbeatPace(Options{SessionTimeout: session}); got != want {
			t.Errorf("a heartbeat every %v in sessions of %v, want %v", got, session, want)
		}
	}
}
