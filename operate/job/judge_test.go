package job

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/store"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// wave makes one of a job; it was sent at noon if anything of it was.
func wave(n int, c store.Counts, failing ...map[string]int64) store.Wave {
	w := store.Wave{N: n, Tally: store.Tally{Counts: c}}
	if c.Sent+c.Confirmed+c.Returned+c.Unknown > 0 {
		w.SentAt = noon
	}
	for _, f := range failing {
		w.Failing = f
	}
	return w
}

func resumed(w store.Wave) store.Wave {
	w.Resumed = true
	return w
}

func TestNext(t *testing.T) {
	type counts = store.Counts
	fails := func(class string, n int64) map[string]int64 { return map[string]int64{class: n} }
	all := Spec{}.withDefaults().withWaves(100_000)
	none := Spec{}.withDefaults().withWaves(small)
	blind := all
	blind.WithoutReceipts = true
	// first are waves that have passed.
	first := func(n int, more ...store.Wave) (waves []store.Wave) {
		for i, size := range all.Waves[:n] {
			waves = append(waves, wave(i+1, counts{Confirmed: int64(size)}))
		}
		return append(waves, more...)
	}
	const late = 5 * time.Minute
	tests := []struct {
		name      string
		spec      Spec
		waves     []store.Wave
		exhausted bool
		after     time.Duration // since noon
		want      action
		letters   int
		note      string
	}{
		{"a new job", all, []store.Wave{wave(1, counts{})}, false, 0, doSend, 1, ""},
		{"queued", all, []store.Wave{wave(1, counts{Queued: 1})}, false, 0, doSend, 0, ""},
		{"of unknown outcome", all, []store.Wave{wave(1, counts{Sending: 1})}, false, late, doSend, 0, ""},
		{"sent", all, []store.Wave{wave(1, counts{Sent: 1})}, false, late - 1, doWait, 0, ""},
		{"silent", all, []store.Wave{wave(1, counts{Sent: 1})}, false, late, doPause, 0, "wave 1 of 1 letter: 0 confirmed within 5m0s, which is too few (1 not heard of)"},
		{"tried again", all, []store.Wave{wave(1, counts{Sent: 1}, fails("transient", 1))}, false, late - 1, doWait, 0, ""},
		{"tried again for long", all, []store.Wave{wave(1, counts{Sent: 1}, fails("throttled", 1))}, false, late, doPause, 0, "(1 failed and tried again)"},
		{"confirmed", all, []store.Wave{wave(1, counts{Confirmed: 1})}, false, 0, doWave, 0, ""},
		{"returned", all, []store.Wave{wave(1, counts{Returned: 1})}, false, 0, doPause, 0, "wave 1 of 1 letter: 1 went wrong (1 returned)"},
		{"refused", all, []store.Wave{wave(1, counts{Collected: 1})}, false, 0, doPause, 0, "(1 refused by the broker)"},
		{"failing as poison", all, []store.Wave{wave(1, counts{Sent: 1}, fails("poison", 1))}, false, 0, doPause, 0, "(1 failing)"},
		{"failing by nobody knows what", all, []store.Wave{wave(1, counts{Sending: 1}, fails("unknown", 1))}, false, 0, doPause, 0, "(1 failing)"},
		{"returned at last", all, []store.Wave{wave(1, counts{Returned: 1})}, true, late, doFinish, 0, ""},
		{"all skipped", all, []store.Wave{wave(1, counts{Skipped: 9})}, true, 0, doFinish, 0, ""},
		{"skipped ones fill no wave", all, first(1, wave(2, counts{Skipped: 9, Confirmed: 3})), false, 0, doSend, 2, ""},

		{"the second wave", all, first(1, wave(2, counts{})), false, 0, doSend, 5, ""},
		{"in part", all, first(1, wave(2, counts{Confirmed: 2})), false, late, doSend, 3, ""},
		{"one of five returned", all, first(1, wave(2, counts{Confirmed: 1, Returned: 1, Queued: 2})), false, 0, doPause, 0, "wave 2 of 4 letters"},
		{"one of 25 returned", all, first(2, wave(3, counts{Confirmed: 23, Returned: 1, Sent: 1})), false, 0, doWait, 0, ""},
		{"one of 25 is enough", all, first(2, wave(3, counts{Confirmed: 24, Returned: 1})), false, 0, doWave, 0, ""},
		{"two of 25 returned", all, first(2, wave(3, counts{Confirmed: 10, Returned: 1, Sent: 14}, fails("poison", 1))), false, 0, doPause, 0, "2 went wrong (1 returned, 1 failing)"},
		{"two of 25 silent", all, first(2, wave(3, counts{Confirmed: 23, Sent: 2})), false, late, doPause, 0, "23 confirmed within 5m0s"},
		{"five of 100", all, first(3, wave(4, counts{Confirmed: 95, Returned: 5})), false, 0, doWave, 0, ""},
		{"six of 100", all, first(3, wave(4, counts{Confirmed: 94, Returned: 6})), false, 0, doPause, 0, "6 went wrong"},
		{"failed, and was handled then", all, []store.Wave{wave(1, counts{Confirmed: 1})}, false, 0, doWave, 0, ""},

		{"the rest", all, first(4, wave(5, counts{Sent: 300})), false, 0, doSend, 200, ""},
		{"the rest goes on", all, first(4, wave(5, counts{Sent: 500})), false, 0, doWave, 0, ""},
		{"not for ever", all, first(4, wave(5, counts{Sent: 500}), wave(6, counts{Sent: 100})), false, late, doPause, 0, "wave 5 of 500 letters"},
		{"much of the rest fails", all, first(4, wave(5, counts{Sent: 474, Returned: 26})), false, 0, doPause, 0, "26 went wrong"},
		{"some of the rest fails", all, first(4, wave(5, counts{Sent: 475, Returned: 25})), false, 0, doWave, 0, ""},
		{"while more is sent", all, first(4, wave(5, counts{Sent: 470, Returned: 26}), wave(6, counts{Queued: 4})), false, 0, doPause, 0, "wave 5"},
		{"all is sent", all, first(4, wave(5, counts{Confirmed: 200, Sent: 1})), true, late - 1, doWait, 0, ""},
		{"all is sent, and nobody hears", all, first(4, wave(5, counts{Confirmed: 200, Sent: 1})), true, late, doFinish, 0, ""},
		{"all has ended", all, first(4, wave(5, counts{Confirmed: 200, Returned: 7})), true, 0, doFinish, 0, ""},
		{"nothing is left", all, first(4, wave(5, counts{})), true, 0, doFinish, 0, ""},

		{"a wave again", all, []store.Wave{wave(1, counts{Returned: 1}), resumed(wave(2, counts{}))}, false, late, doSend, 1, ""},
		{"and it passes", all, []store.Wave{wave(1, counts{Returned: 1}), resumed(wave(2, counts{Confirmed: 1}))}, false, late, doWave, 0, ""},
		{"and the next", all, []store.Wave{wave(1, counts{Returned: 1}), resumed(wave(2, counts{Confirmed: 1})), wave(3, counts{})}, false, late, doSend, 5, ""},
		{"resumed by hand", all, first(2, wave(3, counts{Confirmed: 7}), resumed(wave(4, counts{}))), false, late, doSend, 25, ""},
		{"resumed before it began", all, []store.Wave{wave(1, counts{}), resumed(wave(2, counts{}))}, false, late, doSend, 1, ""},
		{"resumed when it had passed", all, first(2, wave(3, counts{Confirmed: 25}), resumed(wave(4, counts{}))), false, late, doSend, 100, ""},
		{"what was paused for is no reason any more", all, first(4, wave(5, counts{Returned: 500}), resumed(wave(6, counts{Confirmed: 5}))), false, late, doSend, 495, ""},
		{"but what comes then", all, first(4, wave(5, counts{Returned: 500}), resumed(wave(6, counts{Returned: 26}))), false, late, doPause, 0, "wave 6"},

		{"few letters", none, []store.Wave{wave(1, counts{})}, false, 0, doSend, 500, ""},
		{"few letters that fail", none, []store.Wave{wave(1, counts{Returned: 10})}, false, 0, doSend, 490, ""},
		{"few letters that have failed", none, []store.Wave{wave(1, counts{Returned: 20})}, true, 0, doFinish, 0, ""},
		{"no waves and many letters that fail", none, []store.Wave{wave(1, counts{Returned: 26, Sent: 100})}, false, 0, doPause, 0, "26 went wrong"},

		{"without receipts", blind, []store.Wave{wave(1, counts{Sent: 1})}, false, late - 1, doWait, 0, ""},
		{"without receipts, in time", blind, []store.Wave{wave(1, counts{Sent: 1})}, false, late, doWave, 0, ""},
		{"without receipts, and one came", blind, []store.Wave{wave(1, counts{Confirmed: 1})}, false, 0, doWave, 0, ""},
		{"without receipts, and it came back", blind, []store.Wave{wave(1, counts{Returned: 1})}, false, 0, doPause, 0, "1 returned"},
		{"the rest without receipts", blind, []store.Wave{
			wave(1, counts{Sent: 1}), wave(2, counts{Sent: 5}), wave(3, counts{Sent: 25}), wave(4, counts{Sent: 100}), wave(5, counts{Sent: 500}), wave(6, counts{Sent: 1}),
		}, false, time.Hour, doSend, 499, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := standing{spec: tt.spec, waves: tt.waves, job: store.Job{ID: 7, Exhausted: tt.exhausted}, now: noon.Add(tt.after)}
			for _, w := range tt.waves {
				s.job.Tally.Queued += w.Queued
				s.job.Tally.Sending += w.Sending
				s.job.Tally.Sent += w.Sent
			}
			s.noteSent()
			s.dropJudged()
			if got := s.next(); got.action != tt.want || got.letters != tt.letters || !strings.Contains(got.note, tt.note) {
				t.Errorf("next = %q %d %q\nwant %q %d %q", got.action, got.letters, got.note, tt.want, tt.letters, tt.note)
			}
		})
	}
}

// TestNextInSteps leaves out at once what it has looked at before.
func TestNextInSteps(t *testing.T) {
	spec := Spec{}.withDefaults().withWaves(100_000)
	spec.Waves = []int{1, 2}
	waves := []store.Wave{
		wave(1, store.Counts{Confirmed: 1}), wave(2, store.Counts{Returned: 2}), resumed(wave(3, store.Counts{Confirmed: 2})),
		wave(4, store.Counts{Confirmed: 480, Sent: 20}), wave(5, store.Counts{Sent: 500}), wave(6, store.Counts{Queued: 1}),
	}
	stage, from := 0, 0
	for n := 1; n <= len(waves); n++ {
		s := standing{spec: spec, waves: waves[from:n], stage: stage, now: noon}
		s.dropJudged()
		stage, from = s.stage, s.waves[0].N-1
	}
	if stage != 2 || from != 4 {
		t.Errorf("stage %d from wave %d on, want 2 from wave 5 on", stage, from+1)
	}
}
