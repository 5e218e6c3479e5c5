package foreign

import (
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The forms turn what a peer writes into decimal numbers, times in milliseconds
// since 1970, and names. What cannot be read is empty.

// bigEndian reads a number of 1 to 8 bytes, as Java's ByteBuffer and BigInteger
// write them.
func bigEndian(value string) string {
	if value == "" || len(value) > 8 || value[0] >= 0x80 { // negative
		return ""
	}
	var n int64
	for _, b := range []byte(value) {
		n = n<<8 | int64(b)
	}
	return strconv.FormatInt(n, 10)
}

func bigEndianLessOne(value string) string { return oneLess(bigEndian(value)) }

func oneLess(value string) string { return plus(value, -1) }

func oneMore(value string) string { return plus(value, 1) }

// plus adds to a counter.
func plus(value string, more int64) string {
	n, ok := number(value)
	if !ok {
		return ""
	}
	return strconv.FormatInt(max(min(n, math.MaxInt32)+more, 0), 10)
}

// seconds reads a time in seconds since 1970.
func seconds(value string) string { return value + "000" }

// iso8601 reads a time as .NET writes it for the format "O".
func iso8601(value string) string {
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return ""
	}
	if t.Unix() < 0 {
		return ""
	}
	return strconv.FormatInt(t.UnixMilli(), 10)
}

// number reads decimal digits. A number that is too large is the largest one.
func number(value string) (n int64, ok bool) {
	u, err := strconv.ParseUint(value, 10, 63)
	return int64(u), err == nil || errors.Is(err, strconv.ErrRange)
}

// timeOf reads a time in milliseconds since 1970, up to the end of year 9999.
func timeOf(value string) time.Time {
	const most = 253_402_300_799_999
	ms, ok := number(value)
	if !ok || ms > most {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// lastOfURL is the queue in the address of an endpoint, such as
// rabbitmq://broker/vhost/orders?durable=true.
func lastOfURL(value string) string {
	u, err := url.Parse(value)
	if err != nil {
		return ""
	}
	path := u.EscapedPath()
	name, _ := url.PathUnescape(path[strings.LastIndexByte(path, '/')+1:])
	return name
}

// lastOfARN is the queue in arn:aws:sqs:eu-central-1:123456789012:orders.
func lastOfARN(value string) string { return value[strings.LastIndexByte(value, ':')+1:] }
