package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// askQueues lists queues, as the SDK does but for its signature, which an
// ElasticMQ does not look at. It asks for none of them: there may be thousands.
const askQueues = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
	"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nContent-Length: 37\r\n\r\n" +
	`{"QueueNamePrefix":"no-queue-has-it"}`

// greetSQS asks for the queues that there are.
func greetSQS(conn io.ReadWriter) (Greeting, error) {
	if _, err := io.WriteString(conn, askQueues); err != nil {
		return Greeting{}, err
	}
	return readQueues(conn)
}

// readQueues reads the answer, which has to be a list of queues. ElasticMQ does
// not tell its version, but that of the HTTP server in it: 1.7 has the same as
// the last of 1.6.
func readQueues(r io.Reader) (Greeting, error) {
	answer, err := http.ReadResponse(bufio.NewReader(io.LimitReader(r, maxAnswer)), nil)
	if err != nil {
		return Greeting{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return Greeting{}, fmt.Errorf("%w: status %s", errMalformed, answer.Status)
	}
	var list struct{ QueueUrls []string }
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return Greeting{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if list.QueueUrls == nil {
		return Greeting{}, fmt.Errorf("%w: it lists no queues", errMalformed)
	}
	server := answer.Header.Get("Server")
	if strings.HasPrefix(server, "pekko-http/1.3.") {
		return Greeting{Product: "ElasticMQ", Version: "1.7"}, nil
	}
	return Greeting{Product: "SQS", Version: "on " + server}, nil
}
