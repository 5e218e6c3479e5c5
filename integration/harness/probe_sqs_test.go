package harness

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
)

// httpAnswer is what an HTTP server says.
func httpAnswer(status, server, body string) string {
	return "HTTP/1.1 " + status + "\r\nServer: " + server + "\r\nConnection: close\r\n\r\n" + body
}

func TestReadQueues(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		want         Greeting
		fails        bool
	}{
		{name: "ElasticMQ", answer: httpAnswer("200 OK", "pekko-http/1.3.0", `{"QueueUrls":["http://127.0.0.1:25677/000000000000/a"]}`), want: Greeting{"ElasticMQ", "1.7"}},
		{name: "without queues", answer: httpAnswer("200 OK", "pekko-http/1.3.0", `{"QueueUrls":[]}`), want: Greeting{"ElasticMQ", "1.7"}},
		{name: "an older one", answer: httpAnswer("200 OK", "pekko-http/1.1.0", `{"QueueUrls":[]}`), want: Greeting{"SQS", "on pekko-http/1.1.0"}},
		{name: "another product", answer: httpAnswer("200 OK", "hypercorn", `{"QueueUrls":[]}`), want: Greeting{"SQS", "on hypercorn"}},
		{name: "a server that starts", answer: httpAnswer("503 Service Unavailable", "pekko-http/1.3.0", ""), fails: true},
		{name: "any web server", answer: httpAnswer("200 OK", "nginx", "<html>"), fails: true},
		{name: "other JSON", answer: httpAnswer("200 OK", "nginx", `{"status": "UP"}`), fails: true},
		{name: "cut off", answer: httpAnswer("200 OK", "pekko-http/1.3.0", `{"QueueUrls":[`), fails: true},
		{name: "RabbitMQ", answer: "AMQP\x00\x00\x09\x01", fails: true},
		{name: "nothing", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readQueues(strings.NewReader(tt.answer))
			if (err != nil) != tt.fails || got != tt.want {
				t.Errorf("got %+v, %v; want %+v, failure %v", got, err, tt.want, tt.fails)
			}
		})
	}
	if _, err := readQueues(strings.NewReader(httpAnswer("503 Service Unavailable", "", ""))); !errors.Is(err, errMalformed) {
		t.Errorf("status 503 = %v, want %v", err, errMalformed)
	}
}

func FuzzReadQueues(f *testing.F) {
	f.Add(httpAnswer("200 OK", "pekko-http/1.3.0", `{"QueueUrls":[]}`))
	f.Add(httpAnswer("503 Service Unavailable", "", ""))
	f.Fuzz(func(t *testing.T, answer string) {
		got, err := readQueues(strings.NewReader(answer))
		if (err != nil) != (got == Greeting{}) {
			t.Errorf("got %+v with %v", got, err)
		}
	})
}

func TestProbeSQS(t *testing.T) {
	var target string
	address := serve(t, func(conn net.Conn) {
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		target = request.Header.Get("X-Amz-Target")
		_, _ = conn.Write([]byte(httpAnswer("200 OK", "pekko-http/1.3.0", `{"QueueUrls":[]}`)))
	})
	got, err := Probe(t.Context(), SQS, address)
	if want := (Greeting{"ElasticMQ", "1.7"}); err != nil || got != want {
		t.Errorf("Probe = %+v, %v; want %+v", got, err, want)
	}
	if target != "AmazonSQS.ListQueues" {
		t.Errorf("the probe asked for %q", target)
	}
}
