package config

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Bytes is a size, such as 16MiB, up to 1024 TiB.
type Bytes int64

const mostBytes = 1 << 50

var units = []struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// UnmarshalText reads a number of bytes, or one with the unit KiB, MiB or GiB.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, unit := range units {
		if digits, ok := strings.CutSuffix(string(text), unit.name); ok {
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n < 1 || n > mostBytes/unit.size {
				break
			}
			*b = Bytes(n * unit.size)
			return nil
		}
	}
	return form("size: use bytes, or a number with KiB, MiB or GiB, such as 16MiB")
}

// String returns the size in the largest unit that divides it.
func (b Bytes) String() string {
	for _, unit := range units {
		if int64(b)%unit.size == 0 {
			return strconv.FormatInt(int64(b)/unit.size, 10) + unit.name
		}
	}
	return "" // never: the last unit is one byte
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
	day       = 24 * time.Hour
	leastTime = time.Hour
	leastWait = time.Millisecond
	mostTime  = 3650 * day
)

// Wait is a time from 1 ms.
type Wait time.Duration

// UnmarshalText reads a duration as Prometheus does, such as 1d12h.
func (w *Wait) UnmarshalText(text []byte) error {
	d, err := model.ParseDuration(string(text))
	if n := time.Duration(d); err != nil || n < leastWait || n > mostTime {
		return form("time: use one from 1ms to 3650d, such as 15m or 90s")
	}
	*w = Wait(d)
	return nil
}

// String is the time as UnmarshalText reads it.
func (w Wait) String() string { return model.Duration(w).String() }

// parseDuration reads a time from an hour.
func parseDuration(word string, to *time.Duration) error {
	var w Wait
	if err := w.UnmarshalText([]byte(word)); err != nil || time.Duration(w) < leastTime {
		return form("time: use one from 1h to 3650d, such as 30d or 36h")
	}
	*to = time.Duration(w)
	return nil
}
