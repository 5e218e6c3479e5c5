package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// frame is a frame of Kafka's protocol. Strings get their length before them.
func frame(parts ...any) []byte {
	b := make([]byte, sizeOfSize)
	for _, part := range parts {
		if text, ok := part.(string); ok {
			b = append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
			continue
		}
		var err error
		if b, err = binary.Append(b, binary.BigEndian, part); err != nil {
			panic(err)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-sizeOfSize))
	return b
}

func produceFrame(number int32, topic string) []byte {
	return frame(int16(produceKey), int16(8), number, "client", int16(-1), int16(-1), int32(5000), int32(1), topic, int32(1), int32(0), int32(0))
}

func producedFrame(number int32, topic string, code int16) []byte {
	return frame(number, int32(1), topic, int32(1), int32(0), code, int64(7), int64(-1), int64(0))
}

// stream is a connection on which b comes in, in pieces of a size.
type stream struct {
	net.Conn
	in   []byte
	size int
}

func (s *stream) Write(b []byte) (int, error) { return len(b), nil }

func (s *stream) Read(b []byte) (int, error) {
	n := copy(b[:min(s.size, len(b))], s.in)
	s.in = s.in[n:]
	return n, nil
}

func TestKafkaTapStopsAtItsPoints(t *testing.T) {
	commit := frame(int16(offsetCommitKey), int16(7), int32(5), "client", "group")
	for _, tt := range []struct {
		name    string
		out, in []byte
		copied  bool
		want    point
	}{
		{"a copy is confirmed", produceFrame(3, "delay"), producedFrame(3, "delay", 0), false, beforeConfirm},
		{"a copy is refused", produceFrame(3, "delay"), producedFrame(3, "delay", 10), false, ""},
		{"a dead letter is confirmed", produceFrame(3, "dead"), producedFrame(3, "dead", 0), false, inBurial},
		{"a message is confirmed", produceFrame(3, "orders"), producedFrame(3, "orders", 0), false, ""},
		{"something else is answered", produceFrame(3, "dead"), producedFrame(4, "dead", 0), false, ""},
		{"a commit after a copy", commit, nil, true, beforeAck},
		{"a commit", commit, nil, false, ""},
	} {
		for _, size := range []int{1, 3, 1000} {
			synctest.Test(t, func(t *testing.T) {
				var reached point
				tap := &kafkaTap{isDead: func(s string) bool { return s == "dead" }, isDelay: func(s string) bool { return s == "delay" }, note: func(event) {}}
				tap.copied.Store(tt.copied)
				armed := tt.want
				if armed == "" {
					armed = beforeConfirm
				}
				tap.trap = &trap{armed: armed, tell: func(p point) {
					reached = p
					runtime.Goexit() // where a process would wait for its death
				}}
				s := &stream{in: tt.in, size: size}
				c := tap.conn(s)
				go func() {
					for piece := range slices.Chunk(tt.out, size) {
						c.Write(piece)
					}
					for len(s.in) > 0 {
						c.Read(make([]byte, size))
					}
				}()
				synctest.Wait()
				if reached != tt.want {
					t.Errorf("%s, in pieces of %d: stopped at %q, want %q", tt.name, size, reached, tt.want)
				}
			})
		}
	}
}

func TestKafkaTapTellsOfCommits(t *testing.T) {
	for _, tt := range []struct {
		code int16
		want fail
	}{{0, fine}, {22, refused}} {
		var got []event
		tap := &kafkaTap{note: func(e event) { got = append(got, e) }}
		c := tap.conn(&stream{size: 7, in: frame(int32(5), int32(0), int32(2), "a", int32(1), int32(0), int16(0), "b", int32(1), int32(3), tt.code)})
		c.Write(frame(int16(offsetCommitKey), int16(7), int32(5), "client", "group"))
		for range 12 {
			c.Read(make([]byte, 7))
		}
		if len(got) != 1 || got[0].Kind != committed || got[0].Err != tt.want {
			t.Errorf("code %d: noted %v, want one commit with %v", tt.code, got, failNames[tt.want])
		}
	}
}

func FuzzKafkaTap(f *testing.F) {
	f.Add(produceFrame(3, "delay"), producedFrame(3, "delay", 0))
	f.Add(frame(int16(offsetCommitKey), int16(7), int32(5), "client"), frame(int32(5), int32(0), int32(-1), "a", int32(1<<30)))
	f.Fuzz(func(t *testing.T, out, in []byte) {
		tap := &kafkaTap{isDead: func(string) bool { return false }, isDelay: func(string) bool { return false }, note: func(event) {}}
		c := tap.conn(&stream{in: in, size: 1 << 20})
		c.Write(out)
		c.Read(make([]byte, len(in)+1))
	})
}

func TestCheckOfCommittedOffsets(t *testing.T) {
	const topicName = "orders"
	settle := func(offset int64, at time.Duration) *delivery {
		return &delivery{place: partition{topicName, 1}, offset: offset, took: at}
	}
	advance := func(at time.Duration, offset int64) *event {
		return &event{Kind: advanced, At: at, Topic: topicName, Partition: 1, Offset: offset}
	}
	for _, tt := range []struct {
		name     string
		advances []*event
		broken   bool
	}{
		{"follows what is settled", []*event{advance(2, 1), advance(9, 3)}, false},
		{"stays behind", []*event{advance(9, 1)}, false},
		{"passes an open record", []*event{advance(4, 2)}, true},
		{"passes a record that was never settled", []*event{advance(9, 4)}, true},
		{"goes back", []*event{advance(9, 3), advance(10, 2)}, true},
	} {
		c := &checker{record: &record{scenario: &scenario{topics: []topic{{name: topicName}}}}, advances: tt.advances,
			deliveries: map[int]*delivery{1: settle(0, 1), 2: settle(1, 6), 3: settle(2, 3), 4: settle(2, 8), 5: settle(-1, 2), 6: settle(3, 0)}}
		c.checkOffsets()
		if (len(c.violations) > 0) != tt.broken {
			t.Errorf("%s: %v, want that it breaks a promise: %v", tt.name, c.violations, tt.broken)
		}
	}
}

func TestTokenThatIsMeant(t *testing.T) {
	f := &fate{tokens: []token{{due: 2900}, {attempt: 1, due: 2000}, {due: 2100}, {due: 1200}}}
	for _, tt := range []struct {
		due  time.Duration
		want int
	}{{3000, 0}, {2500, 2}, {2000, 3}, {1000, 0}} {
		if got := f.closest(tt.due, func(t token) bool { return t.attempt == 0 }); got != tt.want {
			t.Errorf("due at %d: token %d, want %d", tt.due, got, tt.want)
		}
	}
	if got := f.closest(1, func(token) bool { return false }); got != -1 {
		t.Errorf("token %d, want none", got)
	}
}

func TestOriginOfRecords(t *testing.T) {
	at := func(topic string) brokers.Meta {
		return brokers.Meta{Origin: brokers.Headers{{Name: "topic", Value: topic}, {Name: "partition", Value: "2"}, {Name: "offset", Value: "17"}}}
	}
	retried := at("orders")
	retried.DueAt = time.Unix(1, 0)
	for _, tt := range []struct {
		meta brokers.Meta
		want string
	}{
		{at("orders"), "2 17"},
		{at("other"), "0 -1"},
		{retried, "0 -1"},
		{brokers.Meta{}, "0 -1"},
	} {
		partition, offset := origin(brokers.Message{Topic: "orders"}, tt.meta)
		if got := fmt.Sprint(partition, offset); got != tt.want {
			t.Errorf("origin of %v is %q, want %q", tt.meta, got, tt.want)
		}
	}
}
