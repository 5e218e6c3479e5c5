package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func storms(t *testing.T, args ...string) report {
	t.Helper()
	got := call(t, append([]string{"storm", "-o", "json"}, args...)...)
	if got.code != exitOK {
		t.Fatalf("exit code %d, messages %q", got.code, got.stderr)
	}
	var r report
	must(t, json.Unmarshal([]byte(got.stdout), &r))
	return r
}

// TestPublishedPeaksDoNotReproduce runs the script that the preset is named
// for: none of the peaks that it is said to print comes out, with any seed.
func TestPublishedPeaksDoNotReproduce(t *testing.T) {
	published := map[string]float64{"no-retry": 540, "none": 4380, "equal": 1820, "full": 720}
	r := storms(t, "--preset", "seed", "--seeds", "3")
	if len(r.Cases) != 4 || len(r.Notes) == 0 {
		t.Fatalf("%d worlds, %d notes", len(r.Cases), len(r.Notes))
	}
	for _, c := range r.Cases {
		if len(c.Rows) != len(published) {
			t.Errorf("%s: %d rows", c.Title, len(c.Rows))
		}
		for _, row := range c.Rows {
			peak, claim, tolerance := row.PeakServed, published[row.Policy], 100.0
			if row.Policy == "no-retry" {
				tolerance = 0 // 540 is impossible, but not far from the 500 of the arrivals
			}
			if peak.Min <= claim+tolerance && peak.Max >= claim-tolerance {
				t.Errorf("%s, %s: served peak %+v, and %v is among it", c.Title, row.Policy, peak, claim)
			}
		}
		for _, note := range []string{"540", "4380", "1820", "720"} {
			if !strings.Contains(r.Notes[0], note) {
				t.Errorf("the note %q does not name %s", r.Notes[0], note)
			}
		}
	}
	for _, row := range r.Cases[0].Rows {
		if row.PeakServed.Min != 500 || row.PeakServed.Max != 500 {
			t.Errorf("%s as written: served peak %+v, want 500: one caller alone meets the outage", row.Policy, row.PeakServed)
		}
	}
	if row := r.Cases[0].Rows[0]; row.Policy != "no-retry" || row.Lost.Max != 1 {
		t.Errorf("%s as written: %v callers lost, want 1", row.Policy, row.Lost.Max)
	}
}

// TestHeadingAndConclusion has worlds in which jitter does what the conclusion
// says, and others.
func TestHeadingAndConclusion(t *testing.T) {
	for _, tt := range []struct{ args, title, note string }{
		{"", "An outage of 200ms, 2000 messages at 500 a second, 1000 at the instant when it begins", "saves none"},
		{"--outage 0s --together 5", "No outage, 2000 messages at 500 a second, 5 at one instant", ""},
		{"--messages 0 --capacity 9 --outage 1s", "An outage of 1s, 1000 at the instant when it begins, a dependency that can do 9 calls a second", ""},
		{"--policy none", "An outage of 200ms, 2000 messages at 500 a second, 1000 at the instant when it begins", ""},
		{"--budget queue", "An outage of 200ms, 2000 messages at 500 a second, 1000 at the instant when it begins", ""},
	} {
		r := storms(t, append(strings.Fields(tt.args), "--seeds", "1")...)
		if r.Cases[0].Title != tt.title {
			t.Errorf("%s: the title is %q, want %q", tt.args, r.Cases[0].Title, tt.title)
		}
		if note := strings.Join(r.Notes, " "); (note == "") != (tt.note == "") || !strings.Contains(note, tt.note) {
			t.Errorf("%s: the notes are %q, want %q", tt.args, note, tt.note)
		}
	}
}

func TestPresets(t *testing.T) {
	for _, p := range presets() {
		t.Run(p.name, func(t *testing.T) {
			r := storms(t, "--preset", p.name, "--seeds", "1")
			if r.Preset != p.name || len(r.Cases) != len(p.variants) {
				t.Fatalf("preset %q with %d worlds, want %d", r.Preset, len(r.Cases), len(p.variants))
			}
			for i, v := range p.variants {
				for name, value := range v.settings(p.settings) {
					if got := r.Cases[i].Settings[name]; got != value {
						t.Errorf("%s: --%s is %q, want %q", v.title, name, got, value)
					}
				}
				if r.Cases[i].Title != v.title {
					t.Errorf("title %q, want %q", r.Cases[i].Title, v.title)
				}
			}
			if p.name == "recovery" {
				recovers(t, r)
			}
		})
	}
}

// TestSettingsReproduce calls the command with the settings that it printed.
func TestSettingsReproduce(t *testing.T) {
	first := storms(t, "--preset", "spread", "--policy", "full", "--seeds", "2")
	for _, c := range first.Cases {
		var args []string
		for name, value := range c.Settings {
			args = append(args, "--"+name, value)
		}
		if again := storms(t, args...); !reflect.DeepEqual(again.Cases[0].Rows, c.Rows) {
			t.Errorf("%s: the printed settings give %+v, want %+v", c.Title, again.Cases[0].Rows, c.Rows)
		}
	}
}

func TestFlagsOverridePresets(t *testing.T) {
	r := storms(t, "--preset", "seed", "--policy", "full", "--messages", "700", "--seeds", "1")
	for _, c := range r.Cases {
		if !strings.HasSuffix(c.Title, ", but --messages 700") {
			t.Errorf("the title %q does not say that --messages differs", c.Title)
		}
		if c.Settings["messages"] != "700" || len(c.Rows) != 1 {
			t.Errorf("%s: %s messages, %d rows, want what the flags say", c.Title, c.Settings["messages"], len(c.Rows))
		}
	}
}

// recovers compares the recovery preset with what is said of it: the limit recovers
// at each load, the others do not from 60 % on.
func recovers(t *testing.T, r report) {
	t.Helper()
	before, most := 0.0, recoveryFor.Seconds()
	longest := map[bool]float64{false: 60, true: 250} // at 95 % it takes 94 to 241 s, by the seed
	for i, c := range r.Cases {
		took := map[string]float64{}
		for _, row := range c.Rows {
			took[row.Breaker] = row.Settled.Median
		}
		load := recoveryFrom + i*recoveryStep
		if load >= 60 && (took["off"] < most || took["classic"] < most) || took["limit"] > longest[load == 95] || took["limit"] < before {
			t.Errorf("at %d %% recovery takes %v", load, took)
		}
		before = took["limit"]
	}
}
