package config

import (
	"testing"
	"time"
)

func TestBytes(t *testing.T) {
	for in, want := range map[string]struct {
		size Bytes
		text string
	}{
		"1": {1, "1"}, "1000000": {1_000_000, "1000000"}, "1024": {1024, "1KiB"}, "16MiB": {16 << 20, "16MiB"},
		"1536KiB": {1536 << 10, "1536KiB"}, "1GiB": {1 << 30, "1GiB"},
		"": {}, "0": {}, "-1": {}, "2GiB": {}, "16MB": {}, "16 MiB": {}, "1.5MiB": {}, "MiB": {}, "1KiBKiB": {}, "9999999999999999999999": {},
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(in)); (err == nil) != (want.size > 0) || b != want.size || err == nil && b.String() != want.text {
			t.Errorf("%q is %d, %s, error %v, want %d, %s", in, b, b, err, want.size, want.text)
		}
	}
}

func TestPercent(t *testing.T) {
	for in, want := range map[string]Percent{"1%": 1, "90%": 90, "0%": 0, "91%": 0, "10": 0, "10 %": 0, "%": 0, "": 0, "-1%": 0, "1.5%": 0, "10%%": 0} {
		var p Percent
		if err := p.UnmarshalText([]byte(in)); (err == nil) != (want > 0) || p != want || err == nil && p.String() != in {
			t.Errorf("%q is %s, error %v, want %s", in, p, err, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]struct {
		d    time.Duration
		text string
	}{
		"1h": {time.Hour, "1h"}, "90m": {90 * time.Minute, "1h30m"}, "30d": {30 * day, "30d"}, "24h": {day, "1d"},
		"1d12h": {36 * time.Hour, "36h"}, "3650d": {3650 * day, "3650d"}, "1h10s": {time.Hour + 10*time.Second, "1h0m10s"},
		"": {}, "30": {}, "59m": {}, "d": {}, "-1d": {}, "1.5d": {}, "3651d": {}, "3650d1h": {}, "1d-1h": {}, "1dd": {}, "99999999999d": {}, "9999999999h": {}, "1y": {},
	} {
		var d time.Duration
		if err := parseDuration(in, &d); (err == nil) != (want.d > 0) || d != want.d || err == nil && durationText(d) != want.text {
			t.Errorf("%q is %v, %s, error %v, want %v, %s", in, d, durationText(d), err, want.d, want.text)
		}
		var again time.Duration
		if want.d > 0 && (parseDuration(want.text, &again) != nil || again != want.d) {
			t.Errorf("%q is read as %v, want %v", want.text, again, want.d)
		}
	}
}

func TestWait(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"1ms": time.Millisecond, "90s": 90 * time.Second, "15m": 15 * time.Minute, "24h": day, "1d12h": 36 * time.Hour, "3650d": 3650 * day,
		"": 0, "0s": 0, "1us": 0, "-1s": 0, "15": 0, "3650d1ms": 0, "1y": 0,
	} {
		var w, again Wait
		if err := w.UnmarshalText([]byte(in)); (err == nil) != (want > 0) || w != Wait(want) {
			t.Errorf("%q is %v, error %v, want %v", in, w, err, want)
		}
		if want > 0 && (again.UnmarshalText([]byte(w.String())) != nil || again != w) {
			t.Errorf("%q is read as %v, want %v", w, again, want)
		}
	}
}
