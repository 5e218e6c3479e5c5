package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// serve accepts one connection and hands it to answer, which the test waits for.
func serve(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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

// say answers whatever is asked.
func say(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		_, _ = conn.Write([]byte(text))
	}
}

// info is a text as Redis sends it.
func info(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// web is what an HTTP server says.
func web(status, server, body string) string {
	return "HTTP/1.1 " + status + "\r\nServer: " + server + "\r\nConnection: close\r\n\r\n" + body
}

// listening returns the address at which tests would be given a product.
func listening(p Product, address string) string {
	return map[Product]string{RabbitMQ: "amqp://guest:guest@", SQS: "http://", Redis: "redis://", Valkey: "redis://"}[p] + address
}

// TestProbe: what answers is described, and nothing else passes for a broker. How
// the real ones answer is in TestBrokersAnswer.
func TestProbe(t *testing.T) {
	ready, server := `{"QueueUrls":[]}`, "pekko-http/1.3.0"
	for _, tt := range []struct {
		product Product
		answer  string
		want    Greeting // none: an error
	}{
		{Redis, info("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"), Greeting{"Redis", "7.0.15"}},
		{Valkey, info("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n"), Greeting{"Valkey", "8.1.1"}},
		{Redis, info("redis_version:\r\n"), Greeting{}},
		{Redis, "-LOADING Redis is loading the dataset in memory\r\n", Greeting{}},
		{Redis, "$100\r\nredis_version:7.0.15\r\n", Greeting{}},
		{Redis, "$99999999\r\n", Greeting{}},
		{SQS, web("200 OK", server, ready), Greeting{"ElasticMQ", "1.7"}},
		{SQS, web("200 OK", "hypercorn", ready), Greeting{"SQS", "on hypercorn"}},
		{SQS, web("503 Service Unavailable", server, ready), Greeting{}},
		{SQS, web("200 OK", "nginx", `{"status": "UP"}`), Greeting{}},
		{Kafka, "\x7f\xff\xff\xff\x00\x00\x00\x07", Greeting{}},
		{Kafka, "\x00\x00\x00\x06\x00\x00\x00\x08\x00\x00", Greeting{}},
	} {
		got, err := Probe(t.Context(), tt.product, listening(tt.product, serve(t, say(tt.answer))))
		if got != tt.want || (err != nil) != (tt.want == Greeting{}) {
			t.Errorf("%s that answers %q: %+v, %v; want %+v", tt.product, tt.answer, got, err, tt.want)
		}
	}
	for _, product := range []Product{RabbitMQ, Kafka, SQS, Redis} {
		for _, other := range []string{"", "AMQP\x00\x00\x09\x01", web("200 OK", "nginx", "<html>")} {
			if got, err := Probe(t.Context(), product, listening(product, serve(t, say(other)))); err == nil {
				t.Errorf("what answers %q passes for %s: %+v", other, product, got)
			}
		}
		if _, err := Probe(t.Context(), product, listening(product, "127.0.0.1:1")); err == nil {
			t.Errorf("a closed port passes for %s", product)
		}
		frozen := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := Probe(short, product, listening(product, frozen)); err == nil {
			t.Errorf("what never answers passes for %s", product)
		}
		cancel()
	}
}

// TestKafkaTakesPart: a Kafka that answers is not ready before it lists itself.
func TestKafkaTakesPart(t *testing.T) {
	versions := kmsg.ApiVersionsResponse{Version: 3, SupportedFeatures: []kmsg.ApiVersionsResponseSupportedFeature{
		{Name: "group.version", MaxVersion: 1}, {Name: "metadata.version", MinVersion: 7, MaxVersion: 30},
	}}
	unknown, refused := versions, versions
	unknown.SupportedFeatures, refused.ErrorCode = versions.SupportedFeatures[:1], 35
	for _, tt := range []struct {
		versions kmsg.ApiVersionsResponse
		brokers  int
		want     string // "" for an error
		err      error
	}{
		{versions: versions, brokers: 1, want: "4.3"},
		{versions: versions, err: errNotListed},
		{versions: unknown, brokers: 1, err: errMalformed},
		{versions: refused, brokers: 1, err: errMalformed},
	} {
		metadata := kmsg.MetadataResponse{Version: 1, Brokers: make([]kmsg.MetadataResponseBroker, tt.brokers)}
		address := serve(t, func(conn net.Conn) {
			for _, body := range [][]byte{tt.versions.AppendTo(nil), metadata.AppendTo(nil)} {
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = fmt.Fprintf(conn, "\x00\x00\x00%c\x00\x00\x00\x07%s", len(body)+4, body)
			}
		})
		if got, err := Probe(t.Context(), Kafka, address); got.Version != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("Probe = %+v, %v; want %q, %v", got, err, tt.want, tt.err)
		}
	}
}

// TestAnotherVersionIsNotReady, although it answers.
func TestAnotherVersionIsNotReady(t *testing.T) {
	b := Broker{Name: "redis7", Product: Redis, Version: "7.0."}
	address := serve(t, say(info("redis_version:6.2.1\r\n")))
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &b.Port); err != nil {
		t.Fatal(err)
	}
	if err := new(Harness).await(t.Context(), b); err == nil || !strings.Contains(err.Error(), "Redis 6.2.1 answers at "+address) {
		t.Errorf("await = %v, want that another version answers", err)
	}
}

func TestSelect(t *testing.T) {
	for _, tt := range []struct{ names, want []string }{ // no want: an error
		{nil, []string{"rabbitmq3", "rabbitmq4", "kafka43", "kafka39", "elasticmq", "redis7", "valkey8"}},
		{[]string{"redis"}, []string{"redis7"}},
		{[]string{"kafka39", "rabbitmq"}, []string{"rabbitmq3", "rabbitmq4", "kafka39"}},
		{[]string{"kafka43", "kafka"}, []string{"kafka43", "kafka39"}},
		{[]string{"kafka43", "nats"}, nil},
		{[]string{""}, nil},
	} {
		got, err := Select(tt.names...)
		if !slices.Equal(names(got), tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("Select(%q) = %q, %v; want %q", tt.names, names(got), err, tt.want)
		}
	}
}

// TestAddressesOfTheUser: a broker of one's own takes the place of ours.
func TestAddressesOfTheUser(t *testing.T) {
	brokers, err := Select("kafka")
	must(t, err)
	t.Setenv("REDRIVE_KAFKA_URL", "mine:9092")
	t.Setenv("REDRIVE_KAFKA39_URL", "")
	want := []string{"REDRIVE_KAFKA_URL=mine:9092", "REDRIVE_KAFKA39_URL=127.0.0.1:25676"}
	if got := Environment(brokers); !slices.Equal(got, want) || Provided(brokers) {
		t.Errorf("with one address of two: Environment = %q, Provided %v; want %q, false", got, Provided(brokers), want)
	}
	t.Setenv("REDRIVE_KAFKA39_URL", "mine:9093")
	if !Provided(brokers) {
		t.Error("not Provided with all addresses")
	}
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
