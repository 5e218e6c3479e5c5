package harness

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// info is a text as Redis sends it.
func info(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func TestReadInfo(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		want         Greeting
		fails        bool
	}{
		{name: "Redis", answer: info("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"), want: Greeting{"Redis", "7.0.15"}},
		{name: "another server", answer: info("# Server\r\nname:none\r\n"), fails: true},
		{name: "no version", answer: info("redis_version:\r\n"), fails: true},
		{name: "password", answer: "-NOAUTH Authentication required.\r\n", fails: true},
		{name: "loading", answer: "-LOADING Redis is loading the dataset in memory\r\n", fails: true},
		{name: "status", answer: "+OK\r\n", fails: true},
		{name: "no such text", answer: "$-1\r\n", fails: true},
		{name: "too long", answer: "$99999999\r\n", fails: true},
		{name: "no length", answer: "$many\r\n", fails: true},
		{name: "cut off", answer: "$100\r\nredis_version:7.0.15\r\n", fails: true},
		{name: "RabbitMQ", answer: "AMQP\x00\x00\x09\x01", fails: true},
		{name: "nothing", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readInfo(strings.NewReader(tt.answer))
			if (err != nil) != tt.fails || got != tt.want {
				t.Errorf("got %+v, %v; want %+v, failure %v", got, err, tt.want, tt.fails)
			}
		})
	}
	if _, err := readInfo(strings.NewReader("-NOAUTH Authentication required.\r\n")); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("with a password = %v, want what the server says", err)
	}
	if _, err := readInfo(strings.NewReader("+OK\r\n")); !errors.Is(err, errMalformed) {
		t.Errorf("a status = %v, want %v", err, errMalformed)
	}
}

func FuzzReadInfo(f *testing.F) {
	f.Add(info("redis_version:7.0.15\r\n"))
	f.Add("-NOAUTH Authentication required.\r\n")
	f.Fuzz(func(t *testing.T, answer string) {
		got, err := readInfo(strings.NewReader(answer))
		if (err != nil) != (got == Greeting{}) {
			t.Errorf("got %+v with %v", got, err)
		}
	})
}

func TestProbeRedis(t *testing.T) {
	var asked string
	address := serve(t, func(conn net.Conn) {
		asked, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = conn.Write([]byte(info("redis_version:7.0.15\r\n")))
	})
	got, err := Probe(t.Context(), Redis, address)
	if want := (Greeting{"Redis", "7.0.15"}); err != nil || got != want {
		t.Errorf("Probe = %+v, %v; want %+v", got, err, want)
	}
	if asked != "INFO server\r\n" {
		t.Errorf("the probe asked %q", asked)
	}
}
