package sqs

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// idleConnections are kept for each host: polls, settlements and sends together.
const idleConnections = 128

// httpClient makes requests with bodies of its own. The SDK closes the body of
// a request as soon as the headers of the answer are there. If net/http is not
// done with that body, it closes the connection under the answer, and what a
// poll received is in flight with nobody who knows of it.
type httpClient struct {
	next  aws.HTTPClient
	owned *http.Transport // nil if the connections are somebody else's
}

// newHTTPClient makes one of what the configuration has. A client that the SDK
// can build upon, or none, becomes one with enough idle connections.
func newHTTPClient(configured aws.HTTPClient) *httpClient {
	buildable, ok := configured.(*awshttp.BuildableClient)
	switch {
	case configured == nil:
		buildable = awshttp.NewBuildableClient()
	case !ok:
		return &httpClient{next: configured}
	}
	transport := buildable.GetTransport()
	transport.MaxIdleConnsPerHost = max(transport.MaxIdleConnsPerHost, idleConnections)
	return &httpClient{
		owned: transport,
		next: &http.Client{
			Transport: transport,
			Timeout:   buildable.GetTimeout(),
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // the signature is for one host
			},
		},
	}
}

// Do implements aws.HTTPClient.
func (c *httpClient) Do(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return c.next.Do(req)
	}
	body, err := readAll(req.Body, req.ContentLength)
	_ = req.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	own := req.WithContext(req.Context())
	own.ContentLength = int64(len(body))
	own.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	own.Body, _ = own.GetBody()
	return c.next.Do(own)
}

// readAll reads r, which is about size bytes long if that is known.
func readAll(r io.Reader, size int64) ([]byte, error) {
	var b bytes.Buffer
	if size > 0 {
		b.Grow(int(size) + bytes.MinRead)
	}
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}

// closeIdle closes the connections that nobody uses.
func (c *httpClient) closeIdle() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}
