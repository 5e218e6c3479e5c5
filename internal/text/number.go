package text

import (
	"math"
	"strconv"
	"time"
)

// MaxCount is what attempts and other counters are clamped to.
const MaxCount = 10_000

const maxMillis = 253_402_300_799_999 // the end of year 9999

// AppendCount appends a counter of at most [MaxCount]; nothing if it is 0 or less.
func AppendCount(b []byte, n int) []byte {
	if n <= 0 {
		return b
	}
	return strconv.AppendInt(b, int64(min(n, MaxCount)), 10)
}

// Count reads a counter, clamped to [MaxCount].
func Count(s string) int {
	n, _ := Number(s)
	return int(min(n, MaxCount))
}

// AppendTime appends t in milliseconds since 1970, rounded down; nothing if it
// was before.
func AppendTime(b []byte, t time.Time) []byte {
	ms := t.UnixMilli()
	if ms < 0 {
		return b
	}
	return strconv.AppendInt(b, min(ms, maxMillis), 10)
}

// Time reads a time between 1970 and the end of year 9999, in UTC.
func Time(s string) time.Time {
	ms, ok := Number(s)
	if !ok || ms > maxMillis {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// Number reads decimal digits and nothing else. What is too large for an int64
// is the largest one.
func Number(s string) (n int64, ok bool) {
	if s == "" || len(s) > MaxWord {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if digit := int64(c - '0'); n > (math.MaxInt64-digit)/10 {
			n = math.MaxInt64
		} else {
			n = n*10 + digit
		}
	}
	return n, true
}
