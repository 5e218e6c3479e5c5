package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/internal/typo"
)

// preset is a storm with a name: values for the flags, and the same with
// changes.
type preset struct {
	name, about string
	settings    map[string]string
	variants    []variant
	notes       []string
}

// variant is one world of a preset.
type variant struct {
	title   string
	changes map[string]string
}

// titled is the title, with the flags that no longer let it be true.
func (v variant) titled(common map[string]string, mine map[string]bool, value func(string) string) string {
	title := v.title
	all := v.settings(common)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		shown := name == "policy" || name == "budget" || name == "breaker" // in every row
		if now := value(name); mine[name] && !shown && now != all[name] {
			title += ", but --" + name + " " + now
		}
	}
	return title
}

func (v variant) settings(common map[string]string) map[string]string {
	all := maps.Clone(common)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, v.changes)
	return all
}

func presets() []preset {
	return []preset{seedPreset(), spreadPreset(), overloadPreset(), consumerPreset(), recoveryPreset()}
}

func findPreset(name string) (preset, error) {
	if name == "" {
		return preset{variants: []variant{{}}}, nil
	}
	for _, p := range presets() {
		if p.name == name {
			return p, nil
		}
	}
	return preset{}, fmt.Errorf("there is no preset %q: use %s", name, typo.AnyOf(presetNames()))
}

func presetNames() []string {
	var names []string
	for _, p := range presets() {
		names = append(names, p.name)
	}
	return names
}

func presetHelp() string {
	var b strings.Builder
	for _, p := range presets() {
		fmt.Fprintf(&b, "  %-9s %s\n", p.name, p.about)
	}
	return b.String()
}

// seedPreset is the program that this simulator began with: an asyncio script
// of 1000 callers, whose printed peaks are often quoted.
func seedPreset() preset {
	return preset{
		name:  "seed",
		about: "the script retry_storm.py as it is written, and why its output cannot be right",
		settings: map[string]string{
			"policy": "no-retry,none,equal,full", "budget": "off", "breaker": "off",
			"attempts": "6", "base": "100ms", "cap": "1h0m0s", "multiplier": "2",
			"messages": "1000", "rate": "500", "arrivals": "even", "overrun": "0s", "together": "0",
			"outage-at": "2s", "outage": "200ms",
			"capacity": "0", "service": "5ms", "patience": "0s", "concurrency": "0", "bin": "50ms",
		},
		variants: []variant{
			{"As written: 1000 callers, each exactly 2 ms after the one before", nil},
			{"On an event loop: each timer 0.27 ms late on average", map[string]string{"overrun": "270µs"}},
			{"With the remedy that it offers: 5000 callers", map[string]string{"messages": "5000"}},
			{"With what its text describes: 1000 callers fail at one instant, on top of 500 a second", map[string]string{"messages": "2000", "together": "1000"}},
		},
		notes: []string{
			"The script is said to print peaks of 540 (no retry), 4380 (none), 1820 (equal) and 720 (full) calls per second. They do not reproduce, in any of these worlds.",
			"As written, the last caller starts at 2.000 s, when the outage begins. One single call fails, and all strategies show the 500 of the arrivals. Only late timers let about 90 callers fail, so that what the script prints is a property of the machine.",
			"4380 is impossible: it means 219 calls served within 50 ms. Each caller is served once. At most 101 of them can be refused, 2 ms apart in 0.2 s, and at most 26 more arrive within 50 ms: that makes 127, or 2540 per second. 540 is impossible too: it means 27 arrivals within 50 ms, and 27 arrivals 2 ms apart take 52 ms.",
			"The ranking is the other way round, too. Its callers arrive 2 ms apart, and backoff without jitter keeps them 2 ms apart. Jitter folds several waves into one. Jitter helps where callers fail together, as in the last world, and as the text around the script says they do.",
		},
	}
}

func spreadPreset() preset {
	return preset{
		name:  "spread",
		about: "1000 callers that fail at one instant: how wide jitter spreads them",
		settings: map[string]string{
			"policy":   "none,equal,full,decorrelated,gaussian",
			"messages": "0", "rate": "0", "together": "1000", "outage-at": "0s",
			"attempts": "10", "base": "100ms",
		},
		variants: []variant{
			{"An outage of 0.2 s", map[string]string{"outage": "200ms"}},
			{"An outage of 1 s", map[string]string{"outage": "1s"}},
			{"An outage of 5 s", map[string]string{"outage": "5s"}},
		},
	}
}

// overloadPreset is a dependency with a fifth to spare, and callers that wait
// half a second for it.
func overloadPreset() preset {
	return preset{
		name:  "overload",
		about: "a dependency with little to spare, and callers that give up and come back",
		settings: map[string]string{
			"policy": "none,full", "budget": "off,queue", "attempts": "10", "base": "100ms",
			"messages": "6000", "rate": "100", "arrivals": "poisson", "together": "0",
			"outage-at": "10s", "outage": "5s",
			"capacity": "120", "patience": "500ms", "bin": "1s",
		},
		variants: []variant{{"100 calls a second to a dependency that can do 120, down for 5 s", nil}},
	}
}

// consumerPreset is the same dependency behind a queue.
func consumerPreset() preset {
	return preset{
		name:  "consumer",
		about: "the same dependency, called by a consumer of a queue, and a longer outage",
		settings: map[string]string{
			"policy": "full", "budget": "off,queue", "breaker": "off,on", "attempts": "10", "base": "1s",
			"messages": "15000", "rate": "100", "arrivals": "poisson", "together": "0",
			"outage-at": "30s", "outage": "1m0s",
			"capacity": "120", "patience": "500ms", "concurrency": "20", "bin": "1s",
		},
		variants: []variant{{"20 workers, 100 messages a second, a dependency that can do 120, down for 1 min", nil}},
	}
}

// recoveryPreset is the dependency of the others after a short outage, at loads from
// half of what it can do to nearly all. Callers give up after a second.
func recoveryPreset() preset {
	p := preset{
		name:  "recovery",
		about: "how long a dependency takes to recover, by its load: without a guard, with a breaker, with a limit",
		settings: map[string]string{
			"policy": "full", "budget": "off", "breaker": "off,classic,limit", "attempts": "10", "base": "1s", "cap": "1m0s",
			"arrivals": "poisson", "together": "0", "outage-at": "1m0s", "outage": "5s",
			"capacity": "120", "service": "5ms", "patience": "1s", "concurrency": "200", "bin": "1s",
		},
	}
	for load := recoveryFrom; load < 100; load += recoveryStep {
		rate := 1.2 * float64(load)
		p.variants = append(p.variants, variant{fmt.Sprintf("%d %% of 120 calls a second, down for 5 s", load), map[string]string{
			"rate": fmt.Sprint(rate), "messages": fmt.Sprintf("%.0f", rate*recoveryFor.Seconds()),
		}})
	}
	return p
}

// The recovery preset goes from here up in these steps, in percent, and sends messages
// for so long.
const (
	recoveryFrom = 50
	recoveryStep = 5
	recoveryFor  = 5 * time.Minute
)
