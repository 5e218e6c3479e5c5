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
		rec = playMemory(context.Background(), s, l, g)
	})
	return rec, check(rec)
}

// TestScenarios plays scenarios in virtual time, and prints what came of them.
func TestScenarios(t *testing.T) {
	text, all := playAll(t, *firstSeed, *scenarios)
	fmt.Print(text)
	t.Logf("depends on the order of goroutines, too: %+v", all)
}

// A seed draws the same scenario again, and promises the same. What is left to
// the scheduler, as the order of goroutines at one moment, is in no report.
func TestSeedReplays(t *testing.T) {
	first, _ := playAll(t, 3, 4)
	again, _ := playAll(t, 3, 4)
	other, _ := playAll(t, 4, 4)
	if first != again {
		t.Errorf("one seed gives two reports:\n%s\n%s", first, again)
	}
	if first == other {
		t.Errorf("two seeds give one report:\n%s", first)
	}
}

// playAll plays n scenarios from a seed on, as many at a time as there are
// processors, and reports.
func playAll(t *testing.T, seed uint64, n int) (report string, all figures) {
	var mu sync.Mutex
	var next atomic.Uint64
	var drawn uint64
	var working sync.WaitGroup
	least := 1 << 30
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			var events []event
			for {
				i := next.Add(1) - 1
				if i >= uint64(n)*uint64(*repeat) {
					return
				}
				rec, v := playSeed(t, seed+i/uint64(*repeat), events)
				events = rec.events
				mu.Lock()
				all.add(v.figures)
				drawn += rec.scenario.digest()
				least = min(least, v.faults+v.crashes+v.stops)
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if least < 10 {
		t.Errorf("a scenario had only %d faults, want at least 10", least)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "drawn\t%016x\tdigest\t-\tok\n", drawn)
	all.write(&out, n**repeat*messagesPerScenario)
	return out.String(), all
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
		t.Errorf("seed %d:\n%s\nreplay: make scenarios SCENARIOS=1 SEED=%d; goroutines are scheduled anew each time: for more tries add -repeat 20", seed, b.String(), seed)
	}
	return rec, v
}
