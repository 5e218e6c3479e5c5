package sqs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const (
	// idleConnections are kept for each host: for the polls, settlements and sends
	// of a few queues together.
	idleConnections = 128

	// largeAnswer is how much of any number of answers may be read at a time. The
	// rest of each is read alone: until it is decoded it takes several times its size.
	largeAnswer = 256 << 10
)

// httpClient makes requests with bodies of its own. The SDK closes the body of
// a request as soon as the headers of the answer are there. If net/http is not
// done with that body, it closes the connection under the answer, and what a
// poll received is in flight with nobody who knows of it.
type httpClient struct {
	next  aws.HTTPClient
	owned *http.Transport // nil if the connections are somebody else's
	turn  chan struct{}   // to read on in a large answer, or to decode it; nil reads all at once
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
	if req.Body != nil && req.Body != http.NoBody {
		var body bytes.Buffer
		body.Grow(int(max(req.ContentLength, 0)) + bytes.MinRead)
		_, err := body.ReadFrom(req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		req = req.WithContext(req.Context())
		req.ContentLength = int64(body.Len())
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.Bytes())), nil }
		req.Body, _ = req.GetBody()
	}
	resp, err := c.next.Do(req)
	if err == nil && c.turn != nil && resp.Body != nil {
		resp.Body = &answer{ReadCloser: resp.Body, ctx: req.Context(), turn: c.turn}
	}
	return resp, err
}

// closeIdle closes the connections that nobody uses.
func (c *httpClient) closeIdle() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

// answer is a body whose end is read when no other large one is read or decoded. The
// SDK closes it when it is decoded.
type answer struct {
	io.ReadCloser
	ctx  context.Context
	turn chan struct{}
	read int
	mine bool
}

func (a *answer) Read(p []byte) (int, error) {
	if a.read >= largeAnswer && !a.mine {
		select {
		case a.turn <- struct{}{}:
			a.mine = true
		case <-a.ctx.Done():
			return 0, context.Cause(a.ctx)
		}
	}
	n, err := a.ReadCloser.Read(p)
	a.read += n
	return n, err
}

func (a *answer) Close() error {
	if a.mine {
		a.mine = false
		<-a.turn
	}
	return a.ReadCloser.Close()
}
