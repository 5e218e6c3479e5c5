package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// greetSQS lists queues, as the SDK does but for its signature, which an
// ElasticMQ does not look at. It asks for none of them: there may be thousands.
func greetSQS(ctx context.Context, address string) (Greeting, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(`{"QueueNamePrefix":"no-queue-has-it"}`))
	if err != nil {
		return Greeting{}, err
	}
	request.Close = true
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "AmazonSQS.ListQueues")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return Greeting{}, err
	}
	defer answer.Body.Close()
	return readQueues(answer)
}

// readQueues reads the answer, which has to be a list of queues. ElasticMQ does
// not tell its version, but that of the HTTP server in it: 1.7 has the same as
// the last of 1.6.
func readQueues(answer *http.Response) (Greeting, error) {
	if answer.StatusCode != http.StatusOK {
		return Greeting{}, fmt.Errorf("%w: status %s", errMalformed, answer.Status)
	}
	var list struct{ QueueUrls []string }
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&list); err != nil {
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
