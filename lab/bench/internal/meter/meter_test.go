package meter

import (
	"encoding/binary"
	"maps"
	"net"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
)

func amqp(kind byte, payload string) []byte {
	frame := binary.BigEndian.AppendUint32([]byte{kind, 0, 1}, uint32(len(payload)))
	return append(append(frame, payload...), 0xCE)
}

func kafka(key protocol.ApiKey, rest string) []byte {
	request := binary.BigEndian.AppendUint32(nil, uint32(2+len(rest)))
	return append(binary.BigEndian.AppendUint16(request, uint16(key)), rest...)
}

// However what is sent is cut into pieces, the requests are counted.
func TestMeterCountsRequests(t *testing.T) {
	tests := []struct {
		name   string
		frames Frames
		sent   []byte
		want   Sent
	}{
		{"AMQP", AMQP, slices.Concat([]byte("AMQP\x00\x00\x09\x01"), amqp(1, "basic.publish"), amqp(2, "properties"), amqp(3, "\x01\x00body"), amqp(8, ""), amqp(8, "")),
			Sent{"method": 1, "header": 1, "body": 1, "heartbeat": 2}},
		{"Kafka", Kafka, slices.Concat(kafka(protocol.Fetch, "version, id and partitions"), kafka(protocol.Heartbeat, ""), kafka(protocol.Fetch, "more")),
			Sent{"Fetch": 2, "Heartbeat": 1}},
		{"another", Frames{}, []byte("GET / HTTP/1.1\r\n\r\n"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			address := listen(t)
			for size := range len(tt.sent) {
				var m Meter
				c, err := m.Dial(tt.frames)(t.Context(), "tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				for piece := range slices.Chunk(tt.sent, size+1) {
					if _, err := c.Write(piece); err != nil {
						t.Fatal(err)
					}
				}
				if got := m.Take(); !maps.Equal(got, tt.want) || len(m.Take()) > 0 {
					t.Fatalf("in pieces of %d bytes %v were counted, want %v, once", size+1, got, tt.want)
				}
				c.Close()
			}
		})
	}
}

func TestMeterCountsOpenConnections(t *testing.T) {
	var m Meter
	address := listen(t)
	var open []net.Conn
	for range 2 {
		c, err := m.Dial(Kafka)(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if m.Open() != 2 {
		t.Errorf("%d connections are open, want 2", m.Open())
	}
	open[0].Close()
	open[0].Close()
	if m.Open() != 1 {
		t.Errorf("%d connections are open after one was closed twice, want 1", m.Open())
	}
	open[1].Close()
}

// listen returns the address of a listener. What is sent there stays in its buffers.
func listen(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}
