package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

const lastTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// A message that carries the trace of its last run has all other headers unchanged.
func TestTraceLeavesTheRestAsItWas(t *testing.T) {
	for name, of := range map[string]func() (brokers.Message, brokers.Meta){"": full, "waiting-": waiting} {
		m, meta := of()
		without := Encode(m, meta)
		meta.Trace = lastTrace
		plain := Encode(m, meta)
		golden(t, name+"traced-copy.v1.txt", plain)
		if rest := plain.Without(Traceparent); !slices.Equal(rest, without) {
			t.Errorf("without the trace there is\n%v\nwant\n%v", rest, without)
		}
		user, packed := EncodePacked(nil, m, meta)
		for _, h := range []brokers.Headers{plain, append(user, brokers.Header{Name: Packed, Value: string(packed)})} {
			if gotM, gotMeta := Decode(h, limits()); !reflect.DeepEqual(gotM, m) || !reflect.DeepEqual(gotMeta, meta) {
				t.Errorf("read %+v and %+v, want %+v and %+v", gotM, gotMeta, m, meta)
			}
		}
	}
}

// The trace of the producer stays with the message, whatever that of the last run is.
func TestForgedTrace(t *testing.T) {
	producer := brokers.Header{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	for value, want := range map[string]string{
		lastTrace:                            lastTrace,
		"any-word":                           "any-word",
		lastTrace + "," + lastTrace:          lastTrace + "," + lastTrace,
		"," + lastTrace:                      "," + lastTrace,
		"two words":                          "",
		lastTrace + ",":                      "",
		",":                                  "",
		lastTrace + ",a,b":                   "",
		"":                                   "",
		"00-\x00":                            "",
		strings.Repeat("0", 65):              "",
		strings.Repeat(lastTrace, 1000):      "",
		"00-4bf92f3577b34da6a3ce929d0e0e47…": "",
	} {
		h := brokers.Headers{producer, {Name: Traceparent, Value: value}}
		m, meta := Decode(h, limits())
		if meta.Trace != want || !slices.Equal(m.Headers, h[:1]) {
			t.Errorf("%.20q is read as %q with the headers %v, want %q and the producer's", value, meta.Trace, m.Headers, want)
		}
		if m, meta := Decode(h, anyone()); meta.Trace != "" || !slices.Equal(m.Headers, h[:1]) {
			t.Errorf("where anyone may write, %.20q is read as %q with the headers %v", value, meta.Trace, m.Headers)
		}
		if got := EncodeIdentity(brokers.Message{Headers: h}); !slices.Equal(got, h[:1]) {
			t.Errorf("%.20q is published as %v", value, got)
		}
	}
}

func TestFitShedsTheTraceFirst(t *testing.T) {
	m, meta := full()
	meta.Trace = lastTrace
	_, living := Partition(Encode(m, meta))
	_, dying := Partition(Encode(waiting()))
	for name, tt := range map[string]struct {
		h    brokers.Headers
		note string
	}{
		"copy":                    {living, ""},
		"dead letter":             {append(record(), brokers.Header{Name: deadPrefix + "traceparent", Value: lastTrace}), deadTruncated},
		"waits for a dead letter": {append(dying.Without(nameDeathTruncated), brokers.Header{Name: Traceparent, Value: lastTrace}), nameDeathTruncated},
	} {
		got := Fit(slices.Clone(tt.h), size(tt.h)-1)
		left := slices.DeleteFunc(slices.Clone(tt.h), func(h brokers.Header) bool { return h.Value == lastTrace })
		if tt.note != "" {
			left = append(left, brokers.Header{Name: tt.note, Value: "traceparent"})
		}
		if !slices.Equal(got, left) {
			t.Errorf("%s: left are\n%v\nwant\n%v", name, got, left)
		}
	}
}
