package outage

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/retry/budget"
)

// play runs s on a broker in memory, in virtual time.
func play(t *testing.T, s Scenario) (r Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		var err error
		if r, err = Run(t.Context(), s, func() (brokers.Broker, error) { return broker, nil }); err != nil {
			t.Fatal(err)
		}
	})
	shown := r
	shown.Load = Load{}
	t.Logf("%+v", shown)
	return r
}

// without returns s without a protection.
func without(t *testing.T, protection string, s Scenario) Scenario {
	t.Helper()
	for _, v := range Protections() {
		if v.Name == protection {
			v.Change(&s)
			return s
		}
	}
	t.Fatalf("no variant %q", protection)
	return s
}

// harmless demands what every outage must keep to.
func harmless(t *testing.T, s Scenario, r Report) {
	t.Helper()
	if r.Amplification > s.Bound() {
		t.Errorf("%.3f calls for each message of the outage, want at most %.3f", r.Amplification, s.Bound())
	}
	if r.ReceivedOpen != 0 {
		t.Errorf("%d messages received while the breaker was open, want none", r.ReceivedOpen)
	}
	if r.ProbeBatch > 1 || r.ReceivedHalfOpen > r.Probes {
		t.Errorf("%d messages received while breakers were half-open, up to %d at once, for %d probes", r.ReceivedHalfOpen, r.ProbeBatch, r.Probes)
	}
	if r.BurntOpen != 0 {
		t.Errorf("%d attempts used up behind an open breaker, want none", r.BurntOpen)
	}
	if r.DeadLetters != 0 {
		t.Errorf("%d dead letters, want none", r.DeadLetters)
	}
	if r.PeakServed > s.Capacity {
		t.Errorf("%d calls served in a second after the outage, want at most %d", r.PeakServed, s.Capacity)
	}
	// The budgets allow for a share of 10 % and 20/s besides the load, and a
	// worker whose breaker closes starts what waits in it at once.
	if most := s.Capacity * 3 / 2; r.PeakOffered > most {
		t.Errorf("%d calls offered in a second after the outage, want at most %d", r.PeakOffered, most)
	}
	if r.Wasted != 0 {
		t.Errorf("%d answers came too late, want none", r.Wasted)
	}
}

func TestShortOutage(t *testing.T) {
	s := Normal(5 * time.Second)
	r := play(t, s)
	harmless(t, s, r)
	if r.Drain == 0 || r.Drain > 30*time.Second || r.Settled == 0 || r.Settled > 30*time.Second {
		t.Errorf("drained after %v and settled after %v, want 25 s for what 20/s of spare capacity can make up for", r.Drain, r.Settled)
	}
	if r.Attempts > 6 {
		t.Errorf("a message has used up %d attempts in 5 s", r.Attempts)
	}
}

func TestLongOutage(t *testing.T) {
	s := Normal(10 * time.Minute)
	s.Patience = 15 * time.Minute // to drain takes 50, at the speed that this test shows
	r := play(t, s)
	harmless(t, s, r)
	if r.Amplification > 0.05 {
		t.Errorf("%.3f calls for each message of the outage, want next to none behind an open breaker", r.Amplification)
	}
	// A budget counts in slots of a window: besides the bound, there may be two
	// sevenths of what a window allows.
	b := budget.Queue()
	perWorker := b.Window.Seconds() * float64(s.Rate) / float64(s.Workers)
	slack := 2. / 7 * (b.Share + b.Floor*b.Window.Seconds()/perWorker)
	if r.PerDelivery > s.Bound()+slack {
		t.Errorf("%.3f calls for each first delivery of the outage, want at most %.3f", r.PerDelivery, s.Bound()+slack)
	}
	// Half of the runs of 30 s must have failed: some 75 for each worker.
	if most := s.Workers * 100; r.Burnt > most {
		t.Errorf("%d attempts used up, want at most the %d of the runs that trip the breakers", r.Burnt, most)
	}
	if least := 60_000 * time.Second / 120; r.Settled < least || r.Settled > least+3*time.Minute {
		t.Errorf("settled after %v, want soon after the %v that the capacity needs", r.Settled, least)
	}
}

// TestProtectionsAreWorthTheirPrice switches each of them off.
func TestProtectionsAreWorthTheirPrice(t *testing.T) {
	short, long := Normal(5*time.Second), Normal(time.Minute)
	short.Patience, long.Patience = time.Minute, time.Second
	bound := short.Bound()
	if r := play(t, without(t, "no budget", short)); r.Amplification < 2*bound || r.PeakOffered < 2*short.Capacity {
		t.Errorf("without a budget: amplification %.2f, peak %d; want more than twice of what the budget allows", r.Amplification, r.PeakOffered)
	}
	if r := play(t, without(t, "no breaker", long)); r.Amplification < 1.1 || r.Burnt < 6_000 {
		t.Errorf("without a breaker: amplification %.2f, %d attempts used up; want every message to be tried", r.Amplification, r.Burnt)
	}
	if r := play(t, without(t, "none", long)); r.Amplification < 4 || r.Attempts < 6 {
		t.Errorf("with none: amplification %.2f, up to %d attempts; want a storm", r.Amplification, r.Attempts)
	}
}

// TestLineTooLongForTheTimeout has calls wait for 1/6 s with one handler in each
// worker, and for 5/3 s with ten, where each waits for 1 s.
func TestLineTooLongForTheTimeout(t *testing.T) {
	late := map[bool]bool{}
	for _, v := range Mismatches()[:2] {
		s := Normal(20 * time.Second)
		s.Patience = 3 * time.Minute
		v.Change(&s)
		r := play(t, s)
		one := s.Config.Concurrency == 1
		if late[one] = r.Wasted > 0; late[one] == one {
			t.Errorf("%s: %d answers came too late", v.Name, r.Wasted)
		}
	}
	if len(late) != 2 {
		t.Error("both scenarios have one handler, or both have more")
	}
}

// TestAdaptiveFindsTheLine has a dependency that throttles who comes when 12
// wait: of the 200 handlers that are to be had, adaptive workers use as many as
// it takes.
func TestAdaptiveFindsTheLine(t *testing.T) {
	results := map[bool]Report{}
	for _, v := range Mismatches()[2:4] {
		s := Normal(20 * time.Second)
		v.Change(&s)
		r := play(t, s)
		if r.DeadLetters > 0 {
			t.Errorf("%s: %d dead letters", v.Name, r.DeadLetters)
		}
		results[s.Config.Restraint.Adaptive] = r
	}
	with, without := results[true], results[false]
	if with.PeakOffered >= without.PeakOffered || with.Settled >= without.Settled || with.Drain >= without.Drain {
		t.Errorf("adaptive workers call up to %d times a second and are done after %v and %v, others %d, %v and %v",
			with.PeakOffered, with.Settled, with.Drain, without.PeakOffered, without.Settled, without.Drain)
	}
}
