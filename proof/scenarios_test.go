package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

var (
	scenarios = flag.Int("scenarios", 150, "how many scenarios TestScenarios runs")
	firstSeed = flag.Uint64("seed", 1, "seed of the first one; the others follow")
	repeat    = flag.Int("repeat", 1, "how often each scenario is run: goroutines and jitter differ")
)

const messagesPerScenario = 200

// playVirtual plays a scenario in a bubble of virtual time.
func playVirtual(t *testing.T, s *scenario, events []event, g rig) (rec *record, v verdict) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(events)
		target := newMemoryTarget(s, l)
		rec = play(context.Background(), s, target, l, g)
		target.close(context.Background())
	})
	return rec, check(rec)
}

func TestScenarios(t *testing.T) {
	var next atomic.Uint64
	var mu sync.Mutex
	var all figures
	least, latest := 1<<30, uint64(0)
	t.Run("all", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				var events []event
				for {
					n := next.Add(1) - 1
					if n >= uint64(*scenarios)*uint64(*repeat) {
						return
					}
					seed := *firstSeed + n/uint64(*repeat)
					rec, v := playSeed(t, seed, events)
					events = rec.events
					mu.Lock()
					if v.latest > all.latest {
						latest = seed
					}
					all.add(v.figures)
					least = min(least, v.faults+v.crashes+v.stops)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d scenarios: %+v; at least %d faults each; worst lateness with seed %d", *scenarios, all, least, latest)
	if least < 10 {
		t.Errorf("a scenario had only %d faults, want at least 10", least)
	}
}

func playSeed(t *testing.T, seed uint64, events []event) (*record, verdict) {
	defer func() {
		if p := recover(); p != nil {
			panic(fmt.Sprintf("seed %d: %v", seed, p))
		}
	}()
	s := newScenario(seed, messagesPerScenario, virtual)
	rec, v := playVirtual(t, s, events, rig{})
	if len(v.violations) > 0 {
		var b strings.Builder
		explain(&b, rec, v)
		t.Errorf("seed %d:\n%s\nreplay: go test ./proof -run TestScenarios -scenarios 1 -repeat 20 -seed %d", seed, b.String(), seed)
	}
	return rec, v
}
