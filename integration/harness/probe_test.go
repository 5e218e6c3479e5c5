package harness

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

// start builds a frame with the method connection.start and these properties.
func start(table []byte) []byte {
	payload := []byte{0, 10, 0, 10, 0, 9}
	payload = binary.BigEndian.AppendUint32(payload, uint32(len(table)))
	payload = append(payload, table...)
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	return append(append(frame, payload...), 0xCE)
}

func property(key string, kind byte, value string) []byte {
	b := append([]byte{byte(len(key))}, key...)
	b = binary.BigEndian.AppendUint32(append(b, kind), uint32(len(value)))
	return append(b, value...)
}

func TestReadGreeting(t *testing.T) {
	good := bytes.Join([][]byte{
		property("capabilities", 'F', "\x05basict\x01"),
		property("product", 'S', "RabbitMQ"),
		property("version", 'S', "4.0.5"),
	}, nil)
	truncated := property("version", 'S', "4.0.5")[:8]
	wrongMethod := start(good)
	wrongMethod[8] = 11
	noEnd := start(good)
	noEnd[len(noEnd)-1] = 0

	for _, tt := range []struct {
		name  string
		frame []byte
		want  Greeting
		fails bool
	}{
		{name: "a greeting", frame: start(good), want: Greeting{"RabbitMQ", "4.0.5"}},
		{name: "no properties", frame: start(nil)},
		{name: "nothing", fails: true},
		{name: "the header of another protocol version", frame: []byte("AMQP\x00\x00\x09\x01"), fails: true},
		{name: "a web server", frame: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), fails: true},
		{name: "another method", frame: wrongMethod, fails: true},
		{name: "no end of frame", frame: noEnd, fails: true},
		{name: "half a frame", frame: start(good)[:20], fails: true},
		{name: "a property cut off", frame: start(truncated), fails: true},
		{name: "a property of another type", frame: start(property("version", 'I', "abcd")), fails: true},
		{name: "a frame larger than any greeting", frame: []byte{1, 0, 0, 0xFF, 0, 0, 0}, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readGreeting(bytes.NewReader(tt.frame))
			if (err != nil) != tt.fails || got != tt.want {
				t.Errorf("got %+v, %v; want %+v, failure %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

func FuzzReadGreeting(f *testing.F) {
	f.Add(start(property("version", 'S', "3.10.8")))
	f.Add([]byte("AMQP\x00\x00\x09\x01"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		got, err := readGreeting(bytes.NewReader(frame))
		if err != nil && got != (Greeting{}) {
			t.Errorf("a failure came with a greeting: %+v, %v", got, err)
		}
	})
}

// serve accepts one connection and hands it to answer, which the test waits for.
func serve(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		answer(conn)
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func TestProbe(t *testing.T) {
	header := make([]byte, 8)
	address := serve(t, func(conn net.Conn) {
		_, _ = io.ReadFull(conn, header)
		_, _ = conn.Write(start(property("version", 'S', "3.10.8")))
	})
	got, err := Probe(t.Context(), RabbitMQ, address)
	if want := (Greeting{Version: "3.10.8"}); err != nil || got != want {
		t.Errorf("Probe = %+v, %v; want %+v", got, err, want)
	}
	if string(header) != "AMQP\x00\x00\x09\x01" {
		t.Errorf("the client opened with %q", header)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if _, err := Probe(t.Context(), RabbitMQ, listener.Addr().String()); err == nil {
		t.Error("Probe of a closed port gave no error")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Probe(cancelled, RabbitMQ, address); !errors.Is(err, context.Canceled) {
		t.Errorf("Probe with a cancelled context = %v, want context.Canceled", err)
	}
}
