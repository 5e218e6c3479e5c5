package sqs

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// fickle is a body that ends when it is closed, like those of the SDK.
type fickle struct {
	io.Reader
	closed bool
}

func (f *fickle) Read(p []byte) (int, error) {
	if f.closed {
		return 0, io.EOF
	}
	return f.Reader.Read(p)
}

func (f *fickle) Close() error { f.closed = true; return nil }

func TestRequestBodiesOutliveTheirClose(t *testing.T) {
	var sent *http.Request
	c := newHTTPClient(doer(func(r *http.Request) (*http.Response, error) {
		sent = r
		return &http.Response{}, nil
	}))
	for _, length := range []int64{-1, 5} {
		body := &fickle{Reader: strings.NewReader("hello")}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sqs.invalid/", nil)
		req.Body, req.ContentLength = body, length
		if _, err := c.Do(req); err != nil {
			t.Fatal(err)
		}
		if !body.closed {
			t.Error("the SDK's body is left open")
		}
		again, err := sent.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		_ = body.Close() // what the SDK does when the headers of the answer are there
		for name, r := range map[string]io.Reader{"Body": sent.Body, "GetBody": again} {
			if got, err := io.ReadAll(r); err != nil || string(got) != "hello" || sent.ContentLength != 5 {
				t.Errorf("%s = %q, %v, length %d, want what the SDK sent", name, got, err, sent.ContentLength)
			}
		}
	}
}

func TestRequestsWithoutOrWithBadBodies(t *testing.T) {
	calls := 0
	c := newHTTPClient(doer(func(*http.Request) (*http.Response, error) { calls++; return &http.Response{}, nil }))
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://sqs.invalid/", nil)
		req.Body = body
		if _, err := c.Do(req); err != nil {
			t.Error(err)
		}
	}
	broken := errors.New("broken")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sqs.invalid/", io.MultiReader(bytes.NewReader([]byte("x")), iotest.ErrReader(broken)))
	if _, err := c.Do(req); !errors.Is(err, broken) || calls != 2 {
		t.Errorf("a body that cannot be read: %v after %d calls, want its error and no third call", err, calls)
	}
	c.closeIdle() // somebody else's: nothing to do
}

func TestHTTPClientIsBuiltUpon(t *testing.T) {
	own := newHTTPClient(nil)
	small := newHTTPClient(awshttp.NewBuildableClient().WithTimeout(time.Minute))
	large := newHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 500 }))
	for name, test := range map[string]struct {
		c    *httpClient
		want int
	}{"none": {own, 128}, "the SDK's": {small, 128}, "one with more": {large, 500}} {
		if got := test.c.owned.MaxIdleConnsPerHost; got != test.want {
			t.Errorf("%s: %d idle connections, want %d", name, got, test.want)
		}
	}
	if got := small.next.(*http.Client).Timeout; got != time.Minute {
		t.Errorf("the timeout is %v, want the configured one", got)
	}
	own.closeIdle()
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	c := newHTTPClient(nil)
	defer c.closeIdle()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("x"))
	resp, err := c.Do(req)
	if err != nil || resp.StatusCode != http.StatusTemporaryRedirect {
		t.Fatalf("got %+v, %v, want the redirect itself", resp, err)
	}
	_ = resp.Body.Close()
}
