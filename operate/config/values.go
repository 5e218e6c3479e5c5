package config

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size, such as 16MiB.
type Bytes int

var units = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"", 1}}

// UnmarshalText reads a number of bytes, or one with the unit KiB, MiB or GiB.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, ok := parseSize(string(text), math.MaxInt32)
	if !ok {
		return form("size: use bytes, or a number with KiB or MiB, such as 16MiB")
	}
	*b = Bytes(n)
	return nil
}

// String is the size with the largest unit that it is whole in.
func (b Bytes) String() string { return Room(b).String() }

// Room is a size of stored data, such as 10GiB.
type Room int64

// UnmarshalText reads a size like the method of Bytes, but up to 1024 TiB.
func (r *Room) UnmarshalText(text []byte) error {
	n, ok := parseSize(string(text), 1<<50)
	if !ok {
		return form("size: use bytes, or a number with KiB, MiB or GiB, such as 10GiB")
	}
	*r = Room(n)
	return nil
}

// String returns the size in the largest unit that divides it.
func (r Room) String() string {
	best := units[len(units)-1]
	for _, unit := range units {
		if int64(r)%unit.size == 0 && unit.size > best.size {
			best = unit
		}
	}
	return strconv.FormatInt(int64(r)/best.size, 10) + best.name
}

// parseSize reads a size from 1 to most bytes.
func parseSize(word string, most int64) (int64, bool) {
	for _, unit := range units {
		digits, ok := strings.CutSuffix(word, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		return n * unit.size, err == nil && n >= 1 && n <= most/unit.size
	}
	return 0, false
}

// Percent is a share of a whole, from 1 to 90.
type Percent int

// UnmarshalText reads a number with a percent sign.
func (p *Percent) UnmarshalText(text []byte) error {
	digits, ok := strings.CutSuffix(string(text), "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || n > 90 {
		return form("share: use one from 1% to 90%")
	}
	*p = Percent(n)
	return nil
}

// String is the number with a percent sign.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

const (
	day          = 24 * time.Hour
	leastTime    = time.Hour
	leastWait    = time.Millisecond
	mostTime     = 3650 * day
	durationForm = form("time: use one from 1h to 3650d, such as 30d or 36h")
	waitForm     = form("time: use one from 1ms to 3650d, such as 15m or 90s")
)

// Wait is a time from 1 ms.
type Wait time.Duration

// UnmarshalText reads what time.ParseDuration reads, or days before that.
func (w *Wait) UnmarshalText(text []byte) error {
	d, ok := parseTime(string(text), leastWait)
	if !ok {
		return waitForm
	}
	*w = Wait(d)
	return nil
}

// String is the time as UnmarshalText reads it.
func (w Wait) String() string { return durationText(time.Duration(w)) }

// parseDuration reads a time from an hour.
func parseDuration(word string, to *time.Duration) error {
	d, ok := parseTime(word, leastTime)
	if !ok {
		return durationForm
	}
	*to = d
	return nil
}

// parseTime reads what time.ParseDuration reads, or days before that.
func parseTime(word string, least time.Duration) (total time.Duration, ok bool) {
	if days, rest, ok := strings.Cut(word, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > int(mostTime/day) {
			return 0, false
		}
		total, word = time.Duration(n)*day, rest
	}
	if word != "" {
		d, err := time.ParseDuration(word)
		if err != nil || d < 0 || d > mostTime {
			return 0, false
		}
		total += d
	}
	return total, least <= total && total <= mostTime
}

// durationText is a duration as parseTime reads it.
func durationText(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.Itoa(int(d/day)) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
