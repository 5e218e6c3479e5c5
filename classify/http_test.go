package classify_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// respond returns what a real server and a real client make of the answer.
func respond(t *testing.T, path string, answer http.HandlerFunc) *http.Response {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	resp := must(newClient(t, &http.Transport{}).Do(get(t, srv.URL+path)))(t)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func httpError(t *testing.T, err error) *classify.HTTPError {
	t.Helper()
	e, ok := errors.AsType[*classify.HTTPError](err)
	if !ok {
		t.Fatalf("%T %v is not an *HTTPError", err, err)
	}
	return e
}

func TestFromResponseSuccess(t *testing.T) {
	for _, status := range []int{200, 204, 304, 399} {
		if err := classify.FromResponse(&http.Response{StatusCode: status}); err != nil {
			t.Errorf("status %d: %v, want nil", status, err)
		}
	}
	if e := httpError(t, classify.FromResponse(&http.Response{StatusCode: 400})); e.Status != 400 {
		t.Errorf("status 400: %+v", e)
	}
	check(t, classify.FromResponse(nil), unknown("", ""))
}

func TestRetryAfterHeader(t *testing.T) {
	// The server's clock is years off: only its own Date makes sense of its dates.
	server := time.Date(1999, time.March, 7, 12, 0, 0, 0, time.UTC)
	due := server.Add(90 * time.Second)
	tests := []struct {
		name, value string
		want        time.Duration
	}{
		{"none", "", 0},
		{"seconds", "120", 120 * time.Second},
		{"zero", "0", 0},
		{"spaces", "\t 7 ", 7 * time.Second},
		{"negative", "-5", 0},
		{"signed", "+5", 0},
		{"fraction", "1.5", 0},
		{"word", "soon", 0},
		{"a year at most", "31536001", 365 * 24 * time.Hour},
		{"more than fits a duration", "9223372037", 365 * 24 * time.Hour},
		{"more than fits an integer", strings.Repeat("9", 40), 365 * 24 * time.Hour},
		{"IMF-fixdate", due.Format(http.TimeFormat), 90 * time.Second},
		{"RFC 850", due.Format("Monday, 02-Jan-06 15:04:05 GMT"), 90 * time.Second},
		{"asctime", due.Format(time.ANSIC), 90 * time.Second},
		{"past", server.Add(-time.Hour).Format(http.TimeFormat), 0},
		{"now", server.Format(http.TimeFormat), 0},
		{"far future", "Fri, 31 Dec 9999 23:59:59 GMT", 365 * 24 * time.Hour},
		{"broken date", "Sun, 99 Mar 1999 12:00:00 GMT", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := respond(t, "/", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", server.Format(http.TimeFormat))
				if tt.value != "" {
					w.Header().Set("Retry-After", tt.value)
				}
				w.WriteHeader(http.StatusTooManyRequests)
			})
			check(t, classify.FromResponse(resp), throttled("http status 429", "429", tt.want))
		})
	}
}

// Without a usable Date the local clock has to do.
func TestRetryAfterWithoutDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, date := range []string{"", "yesterday"} {
			resp := &http.Response{StatusCode: 503, Header: http.Header{
				"Date":        {date},
				"Retry-After": {time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)},
			}}
			check(t, classify.FromResponse(resp), throttled("Retry-After with http status 503", "503", time.Minute))
		}
	})
}

func TestProblem(t *testing.T) {
	tests := []struct {
		name, media, body string
		want              classify.HTTPError // the members only
	}{
		{"full", "application/problem+json", `{"type":"https://pay.test/declined","title":"Declined","detail":"No funds.","status":200,"balance":3}`,
			classify.HTTPError{Type: "https://pay.test/declined", Title: "Declined", Detail: "No funds."}},
		{"charset", `Application/Problem+JSON; charset="utf-8"`, `{"title":"Declined"}`, classify.HTTPError{Title: "Declined"}},
		{"wrong types", "application/problem+json", `{"type":7,"title":["a"],"detail":"No funds."}`, classify.HTTPError{Detail: "No funds."}},
		{"other media", "application/json", `{"title":"Declined"}`, classify.HTTPError{}},
		{"bad parameter", "application/problem+json;;=", `{"title":"Declined"}`, classify.HTTPError{Title: "Declined"}},
		{"no media", "", `{"title":"Declined"}`, classify.HTTPError{}},
		{"not an object", "application/problem+json", `["title"]`, classify.HTTPError{}},
		{"no body", "application/problem+json", "", classify.HTTPError{}},
		{"html", "application/problem+json", "<html>", classify.HTTPError{}},
		{"long text", "application/problem+json", `{"title":"` + strings.Repeat("ä", 1000) + `"}`, classify.HTTPError{Title: strings.Repeat("ä", 512)}},
		{"text cut inside a character", "application/problem+json", `{"title":"x` + strings.Repeat("ä", 1000) + `"}`, classify.HTTPError{Title: "x" + strings.Repeat("ä", 511)}},
		{"huge", "application/problem+json", `{"title":"Declined","pad":"` + strings.Repeat("x", 64<<10) + `"}`, classify.HTTPError{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := respond(t, "/", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.media)
				w.WriteHeader(http.StatusPaymentRequired)
				io.WriteString(w, tt.body)
			})
			err := classify.FromResponse(resp)
			e := httpError(t, err)
			if e.Type != tt.want.Type || e.Title != tt.want.Title || e.Detail != tt.want.Detail {
				t.Errorf("got type %q, title %q, detail %q\nwant %q, %q, %q",
					e.Type, e.Title, e.Detail, tt.want.Type, tt.want.Title, tt.want.Detail)
			}
			check(t, err, poison("http status 402", "402"))
		})
	}
}

// endless is a body that counts how it is used.
type endless struct {
	read   int
	closed bool
}

func (b *endless) Read(p []byte) (int, error) { b.read += len(p); return len(p), nil }
func (b *endless) Close() error               { b.closed = true; return nil }

type failing struct{ io.Reader }

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (failing) Close() error             { return nil }

func TestFromResponseBody(t *testing.T) {
	response := func(media string, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: 500, Body: body, Header: http.Header{"Content-Type": {media}}}
	}
	var problem, other endless
	for media, body := range map[string]*endless{"application/problem+json": &problem, "text/html": &other} {
		check(t, classify.FromResponse(response(media, body)), ambiguous("http status 500", "500"))
		if body.closed {
			t.Errorf("%s: the body was closed; that is the caller's", media)
		}
	}
	if problem.read > 64<<10 {
		t.Errorf("read %d bytes of a problem, want at most 64 KiB", problem.read)
	}
	if other.read != 0 {
		t.Errorf("read %d bytes of an HTML body, want none", other.read)
	}
	check(t, classify.FromResponse(response("application/problem+json", failing{})), ambiguous("http status 500", "500"))
	check(t, classify.FromResponse(response("application/problem+json", nil)), ambiguous("http status 500", "500"))
}

func TestHTTPErrorText(t *testing.T) {
	resp := respond(t, "/charge/7?token=secret", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"title":"Closed","detail":"The till is\nclosed.\u001b[2J"}`)
	})
	resp.Request.URL.User = url.UserPassword("shop", "secret")
	want := "GET http://" + resp.Request.URL.Host + "/charge/7: http status 503 Service Unavailable: Closed: The till is closed. [2J (retry after 3s)"
	if got := classify.FromResponse(resp).Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for want, err := range map[string]error{
		"http status 404 Not Found":         &classify.HTTPError{Status: 404},
		"http status 599":                   &classify.HTTPError{Status: 599},
		"GET /a: http status 404 Not Found": classify.FromResponse(&http.Response{StatusCode: 404, Request: &http.Request{URL: &url.URL{Path: "/a"}}}),
		"PUT: http status 404 Not Found":    classify.FromResponse(&http.Response{StatusCode: 404, Request: &http.Request{Method: "PUT"}}),
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
