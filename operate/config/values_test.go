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
		"2GiB": {2 << 30, "2GiB"}, "1048576GiB": {1 << 50, "1048576GiB"},
		"": {}, "0": {}, "-1": {}, "1048577GiB": {}, "16MB": {}, "16 MiB": {}, "1.5MiB": {}, "MiB": {}, "1KiBKiB": {}, "9999999999999999999999": {},
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

func TestTimes(t *testing.T) {
	for in, want := range map[string]struct {
		d    time.Duration
		text string
	}{
		"1ms": {time.Millisecond, "1ms"}, "90s": {90 * time.Second, "1m30s"}, "15m": {15 * time.Minute, "15m"}, "24h": {day, "1d"},
		"1h": {time.Hour, "1h"}, "90m": {90 * time.Minute, "1h30m"}, "30d": {30 * day, "30d"},
		"1d12h": {36 * time.Hour, "1d12h"}, "3650d": {3650 * day, "10y"}, "1h10s": {time.Hour + 10*time.Second, "1h10s"},
		"": {}, "0s": {}, "1us": {}, "-1s": {}, "30": {}, "d": {}, "-1d": {}, "1.5d": {}, "3651d": {}, "3650d1ms": {}, "1d-1h": {}, "1dd": {}, "99999999999d": {}, "9999999999h": {}, "1x": {},
	} {
		var w, again Wait
		if err := w.UnmarshalText([]byte(in)); (err == nil) != (want.d > 0) || w != Wait(want.d) || err == nil && w.String() != want.text {
			t.Errorf("%q is %s, error %v, want %s", in, w, err, want.text)
		}
		if want.d > 0 && (again.UnmarshalText([]byte(want.text)) != nil || again != w) {
			t.Errorf("%q is read as %v, want %v", want.text, again, w)
		}
		var d time.Duration
		if err := parseDuration(in, &d); (err == nil) != (want.d >= time.Hour) || err == nil && d != want.d {
			t.Errorf("%q is %v, error %v, want %v if it is an hour or more", in, d, err, want.d)
		}
	}
}
