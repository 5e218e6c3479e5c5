package classify

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxProblemBody = 64 << 10
	maxProblemText = 1 << 10
)

// HTTPError is a response with a status of 400 or more, as [FromResponse]
// makes it.
type HTTPError struct {
	// Method and URL are those of the request. The URL has neither user nor
	// query, where secrets may be.
	Method, URL string
	// Status is the status code.
	Status int
	// Wait is what Retry-After asked for. 0 means no usable hint.
	Wait time.Duration
	// Type, Title and Detail are the members of an RFC 9457 problem, each cut
	// to 1 KiB. Type is as it was sent, absolute or relative.
	Type, Title, Detail string
}

// FromResponse returns an [*HTTPError] if the status of resp is 400 or more,
// otherwise nil. It reads at most 64 KiB of the body, and only of an
// application/problem+json; it does not close the body.
//
// Retry-After may be seconds or a date in any of the three forms of HTTP. A
// date is measured against the Date header of resp, so that a wrong clock at
// either end does no harm, and without one against the local clock. A past date
// or anything malformed is no hint. A wait of over a year is cut to a year.
func FromResponse(resp *http.Response) error {
	if resp == nil {
		return errors.New("classify: FromResponse of a nil response: check the error of the call first")
	}
	if resp.StatusCode < 400 {
		return nil
	}
	e := &HTTPError{
		Status: resp.StatusCode,
		Wait:   retryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date"), time.Now),
	}
	if r := resp.Request; r != nil {
		e.Method = cmp.Or(r.Method, http.MethodGet)
		if r.URL != nil {
			u := *r.URL
			u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
			e.URL = u.String()
		}
	}
	e.readProblem(resp)
	return e
}

// readProblem takes what it can get from the body. As RFC 9457 has it, a member
// of a wrong type is as good as absent.
func (e *HTTPError) readProblem(resp *http.Response) {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" || resp.Body == nil {
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblemBody))
	if err != nil {
		return
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return
	}
	e.Type = member(members, "type")
	e.Title = member(members, "title")
	e.Detail = member(members, "detail")
}

func member(members map[string]json.RawMessage, name string) string {
	var s string
	if json.Unmarshal(members[name], &s) != nil {
		return ""
	}
	return cut(s, maxProblemText)
}

// cut returns at most n bytes of s, and no broken character at the end.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// Error says what was asked, what came back, and what the problem is.
func (e *HTTPError) Error() string {
	var b strings.Builder
	if request := strings.TrimSpace(e.Method + " " + e.URL); request != "" {
		b.WriteString(request + ": ")
	}
	b.WriteString("http status " + strconv.Itoa(e.Status))
	if text := http.StatusText(e.Status); text != "" {
		b.WriteString(" " + text)
	}
	for _, s := range []string{e.Title, e.Detail} {
		if s != "" {
			b.WriteString(": " + oneLine(s))
		}
	}
	if e.Wait > 0 {
		fmt.Fprintf(&b, " (retry after %v)", e.Wait)
	}
	return b.String()
}

// HTTPStatusCode returns the status code.
func (e *HTTPError) HTTPStatusCode() int { return e.Status }

// RetryAfter returns Wait.
func (e *HTTPError) RetryAfter() time.Duration { return e.Wait }

// retryAfter parses the value of Retry-After. date is the Date header of the
// same response; now is asked only without one.
func retryAfter(value, date string, now func() time.Time) time.Duration {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxHint/time.Second) {
			return maxHint
		}
		return time.Duration(seconds) * time.Second
	}
	due, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(date)
	if err != nil {
		from = now()
	}
	return min(max(due.Sub(from), 0), maxHint)
}
