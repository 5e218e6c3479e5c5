package harness

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// versions builds an answer to ApiVersions 3 with one request, one tag that
// the probe does not know, and these features.
func versions(code uint16, features ...[]byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, code)
	b = append(b, 2, 0, 3, 0, 0, 0, 13, 0) // one request and its versions
	b = append(b, 0, 0, 0, 0)              // throttle time
	if features == nil {
		return append(b, 0)
	}
	b = append(b, 2, 1, 2, 0xAB, 0xCD) // two tags, the first one unknown
	supported := append([]byte{byte(len(features) + 1)}, bytes.Join(features, nil)...)
	return append(append(b, 0, byte(len(supported))), supported...)
}

func feature(name string, lowest, highest uint16) []byte {
	b := append([]byte{byte(len(name) + 1)}, name...)
	b = binary.BigEndian.AppendUint16(b, lowest)
	return append(binary.BigEndian.AppendUint16(b, highest), 0)
}

func TestMetadataLevel(t *testing.T) {
	good := versions(0, feature("group.version", 0, 1), feature("metadata.version", 7, 30))
	for _, tt := range []struct {
		name   string
		answer []byte
		want   uint16
		fails  bool
	}{
		{name: "an answer", answer: good, want: 30},
		{name: "an error code", answer: versions(35, feature("metadata.version", 7, 30)), fails: true},
		{name: "no features", answer: versions(0), fails: true},
		{name: "other features", answer: versions(0, feature("group.version", 0, 1)), fails: true},
		{name: "nothing", fails: true},
		{name: "cut off", answer: good[:len(good)-2], fails: true},
		{name: "a list without end", answer: []byte{0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F}, fails: true},
		{name: "a number without end", answer: append([]byte{0, 0}, bytes.Repeat([]byte{0xFF}, 20)...), fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := metadataLevel(tt.answer)
			if (err != nil) != tt.fails || got != tt.want {
				t.Errorf("got %d, %v; want %d, failure %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

func FuzzMetadataLevel(f *testing.F) {
	f.Add(versions(0, feature("group.version", 0, 1), feature("metadata.version", 7, 30)))
	f.Add(versions(0))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if got, err := metadataLevel(answer); err != nil && got != 0 {
			t.Errorf("a failure came with a level: %d, %v", got, err)
		}
	})
}

func TestReleaseOfLevel(t *testing.T) {
	for level, want := range map[uint16]string{21: "3.9", 30: "4.3", 99: "with metadata.version 99"} {
		if got := release(level); got != want {
			t.Errorf("release(%d) = %q, want %q", level, got, want)
		}
	}
}

// answer builds a message with a correlation.
func answer(correlation uint32, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(b, correlation), body...)
}

// fakeKafka answers each request in turn.
func fakeKafka(t *testing.T, answers ...[]byte) (address string) {
	return serve(t, func(conn net.Conn) {
		for _, a := range answers {
			var size [4]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
				return
			}
			if _, err := conn.Write(a); err != nil {
				return
			}
		}
	})
}

func TestProbeKafka(t *testing.T) {
	versions := answer(correlation, versions(0, feature("metadata.version", 7, 30)))
	listed, empty := answer(correlation, []byte{0, 0, 0, 1, 0, 0, 0, 1}), answer(correlation, []byte{0, 0, 0, 0})
	got, err := Probe(t.Context(), Kafka, fakeKafka(t, versions, listed))
	if want := (Greeting{Product: "Kafka", Version: "4.3"}); err != nil || got != want {
		t.Errorf("Probe = %+v, %v; want %+v", got, err, want)
	}
	if _, err := Probe(t.Context(), Kafka, fakeKafka(t, versions, empty)); !errors.Is(err, errNotListed) {
		t.Errorf("Probe of a broker that has not registered = %v, want %v", err, errNotListed)
	}
	for name, answers := range map[string][][]byte{
		"a web server":          {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"another correlation":   {answer(8, []byte{0, 0})},
		"an answer without end": {{0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, correlation}},
		"no answer":             {nil},
		"half an answer":        {versions[:20]},
		"the first answer only": {versions},
		"a short second answer": {versions, answer(correlation, []byte{0})},
		"a second of no length": {versions, {0, 0, 0, 0, 0, 0, 0, correlation}},
	} {
		got, err := Probe(t.Context(), Kafka, fakeKafka(t, answers...))
		if err == nil || got != (Greeting{}) || !strings.Contains(err.Error(), "does not answer as kafka does") {
			t.Errorf("%s: Probe = %+v, %v; want an error", name, got, err)
		}
	}
}
