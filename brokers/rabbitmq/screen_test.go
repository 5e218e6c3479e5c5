package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// nestedTable is a table with one field: arrays, nested so deep.
func nestedArrays(depth int) []byte {
	field := []byte{'V'}
	for range depth {
		field = append([]byte{'A'}, sized(field)...)
	}
	return append([]byte{1, 'a'}, field...)
}

func voids(n int) []byte {
	return append([]byte{1, 'a', 'A'}, sized(bytes.Repeat([]byte{'V'}, n))...)
}

func entries(n int) (table []byte) {
	for i := range n {
		table = binary.BigEndian.AppendUint16(append(table, 2), uint16(i))
		table = append(table, 'V')
	}
	return table
}

// headerFrame is one with a content type before the table, and an ID after it.
func headerFrame(table []byte) []byte {
	payload := append(make([]byte, 12), flagContentType>>8|flagHeaders>>8, 1<<7)
	payload = append(payload, "\x04text"...)
	payload = append(append(payload, sized(table)...), "\x02id"...)
	return framed(frameHeaders, payload)
}

// A frame that is too large for what follows the table loses that.
func TestScreenCutsPadding(t *testing.T) {
	frame := headerFrame(nil)
	payload := append(frame[7:len(frame)-1:len(frame)-1], make([]byte, 200000)...)
	got := screened(framed(frameHeaders, payload), 131072)
	field := append(append([]byte{byte(len(unreadable))}, unreadable...), 'x', 0, 0, 0, 0)
	want := headerFrame(field)
	want = framed(frameHeaders, want[7:len(want)-1-3]) // without the ID
	want[7+fixedPart+1] = 0
	if !bytes.Equal(got, want) {
		t.Errorf("the frame became %.100q, want %q", got, want)
	}
}

func framed(typ byte, payload []byte) []byte {
	return append(append([]byte{typ, 0, 7}, sized(payload)...), frameEnd)
}

func TestScreen(t *testing.T) {
	const most = 131072 - frameOverhead
	for name, tt := range map[string]struct {
		table []byte
		field byte // of the header in place of it; 0 if it passes
	}{
		"empty":              {nil, 0},
		"as deep as it may":  {nestedArrays(deepestField), 0},
		"too deep":           {nestedArrays(deepestField + 1), 'x'},
		"as many values":     {voids(mostFields), 0},
		"too many values":    {voids(mostFields + 1), 'x'},
		"as many fields":     {entries(mostFields), 0},
		"too many fields":    {entries(mostFields + 1), 'x'},
		"a type of its own":  {[]byte("\x01aZ"), 'x'},
		"cut short":          {[]byte("\x01aS\x00\x00\x00\x09abc"), 'x'},
		"as large as it may": {append([]byte("\x01aS"), sized(make([]byte, most-12-2-5-4-3-4-3))...), 0},
		"larger":             {append([]byte("\x01aS"), sized(make([]byte, most-12-2-5-4-3-4-2))...), 'l'},
		"much larger":        {append([]byte("\x01aS"), sized(make([]byte, 1<<20))...), 'l'},
	} {
		t.Run(name, func(t *testing.T) {
			frame := headerFrame(tt.table)
			got := screened(bytes.Clone(frame), most)
			if tt.field == 0 {
				if !bytes.Equal(got, frame) {
					t.Errorf("a frame of %d bytes was changed", len(frame))
				}
				return
			}
			value := sized(tt.table)
			if tt.field == 'l' {
				value = binary.BigEndian.AppendUint64(nil, uint64(len(tt.table)))
			}
			field := append(append([]byte{byte(len(unreadable))}, unreadable...), tt.field)
			if want := headerFrame(append(field, value...)); !bytes.Equal(got, want) {
				t.Errorf("the frame became %.120q, want %.120q", got, want)
			}
		})
	}
}

// What is no header of a message passes as it is, however it arrives.
func TestScreenPassesTheRest(t *testing.T) {
	bad := headerFrame(nestedArrays(40))
	var sent, want []byte
	for _, frame := range [][]byte{
		framed(8, nil), framed(1, []byte("method")), headerFrame(nil), framed(3, bytes.Repeat([]byte("body"), 30000)), bad, framed(3, nil), framed(1, nil),
	} {
		sent = append(sent, frame...)
		want = append(want, screened(frame, largestFrame)...)
	}
	for name, reader := range map[string]io.Reader{
		"at once": bytes.NewReader(sent), "in halves": iotest.HalfReader(bytes.NewReader(sent)), "in bytes": iotest.OneByteReader(bytes.NewReader(sent)),
	} {
		got, err := io.ReadAll(newScreen(readConn{Reader: reader}))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes and error %v, want %d bytes", name, len(got), err, len(want))
		}
		if !strings.Contains(string(got), unreadable) {
			t.Errorf("%s: the bad one passed", name)
		}
	}
}

type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// Whatever a table holds, the frame stays one, with all else in it, and what
// comes out is readable.
func FuzzScreen(f *testing.F) {
	f.Add(nestedArrays(3))
	f.Add(nestedArrays(40))
	f.Add(voids(9000))
	f.Add([]byte("\x01aF\x00\x00\x00\x03\x01bV"))
	f.Fuzz(func(t *testing.T, table []byte) {
		frame := headerFrame(table)
		got := screened(bytes.Clone(frame), 1<<20)
		if int(binary.BigEndian.Uint32(got[3:])) != len(got)-frameOverhead || got[len(got)-1] != frameEnd {
			t.Fatalf("not a frame: %q", got)
		}
		before, now, after, ok := cutTable(got[7 : len(got)-1])
		if wantBefore, _, wantAfter, _ := cutTable(frame[7 : len(frame)-1]); !ok || !bytes.Equal(before, wantBefore) || !bytes.Equal(after, wantAfter) {
			t.Fatalf("%q became %q", frame, got)
		}
		if !readable(now, true, 0) {
			t.Fatalf("still unreadable: %q", now)
		}
	})
}
