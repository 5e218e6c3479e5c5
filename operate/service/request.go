package service

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/internal/text"

	"github.com/redrive-go/redrive/operate/service/bodies"
)

// Limits of a task.
const (
	maxURL         = 2048 // bytes
	maxKey         = 200  // characters
	maxHeaders     = 64
	maxHeaderBytes = 16 << 10 // names and values
	smallBody      = 16 << 10 // bytes: above, they are kept elsewhere, as each attempt writes the row
	inlineBody     = 64 << 10 // likewise the most where none are kept elsewhere
	maxBody        = bodies.MaxSize
	maxDelay       = 365 * 24 * time.Hour
	maxPast        = maxDelay // who repeats a request repeats its time
	maxRequest     = maxBody/2*3 + 64<<10
	maxPolicy      = 64 << 10 // bytes of a request
)

// taskRequest is what POST /retry-tasks takes.
type taskRequest struct {
	IdempotencyKey string            `json:"idempotencyKey"`
	TargetURL      string            `json:"targetUrl"`
	Method         string            `json:"method"`
	Headers        map[string]string `json:"headers"`
	Body           *string           `json:"body"`
	BodyBase64     *string           `json:"bodyBase64"`
	BodyRef        string            `json:"bodyRef"`
	PolicyID       string            `json:"policyId"`
	NextAttemptAt  *int64            `json:"nextAttemptAt"`
	DelayMs        *int64            `json:"delayMs"`
}

// parseTask reads and checks a task that is created now. Which policy, target and
// body there is, the request alone does not say; the body is in Task.Body, however
// large.
func parseTask(raw []byte, keyHeader []string, now time.Time) (Task, *problem) {
	var r taskRequest
	if p := decode(raw, namesOf[taskRequest](), &r); p != nil {
		return Task{}, p
	}
	now = now.UTC().Truncate(time.Millisecond)
	t := Task{
		TargetURL: r.TargetURL, Method: r.Method, BodyRef: r.BodyRef, PolicyID: r.PolicyID,
		Status: Pending, NextAttemptAt: now, CreatedAt: now, UpdatedAt: now, BudgetSince: now,
	}
	for _, check := range []func(*Task) *problem{
		func(t *Task) *problem { return r.key(t, keyHeader) },
		r.target, r.headers, r.body, func(t *Task) *problem { return r.due(t, now) },
	} {
		if p := check(&t); p != nil {
			return Task{}, p
		}
	}
	return t, nil
}

func (r *taskRequest) key(t *Task, header []string) *problem {
	t.IdempotencyKey = r.IdempotencyKey
	switch {
	case len(header) > 1:
		return invalidTask.in("idempotencyKey", "is in more than one header Idempotency-Key: send one")
	case len(header) == 1 && r.IdempotencyKey == "":
		t.IdempotencyKey = header[0]
	case len(header) == 1 && r.IdempotencyKey != header[0]:
		return invalidTask.in("idempotencyKey", "is not that of the header Idempotency-Key: send one of them")
	}
	if n := len(t.IdempotencyKey); n == 0 || n > maxKey || !isVisible(t.IdempotencyKey) {
		return invalidTask.in("idempotencyKey", "must have 1 to %d visible ASCII characters: use the ID of the request that is to succeed once, or a UUID that you keep", maxKey)
	}
	if !text.IsWord(r.PolicyID) {
		return invalidTask.in("policyId", "must name a policy, with at most %d letters, digits, -, _ and .", text.MaxWord)
	}
	return nil
}

var methods = regexp.MustCompile(`^[A-Z][A-Z0-9_-]{0,31}$`)

func (r *taskRequest) target(t *Task) *problem {
	if t.Method == "" {
		t.Method = http.MethodPost
	}
	if !methods.MatchString(t.Method) || t.Method == http.MethodConnect || t.Method == http.MethodTrace {
		return invalidTask.in("method", "must be an HTTP method in capitals, and neither CONNECT nor TRACE")
	}
	if len(t.TargetURL) > maxURL || !isVisible(t.TargetURL) {
		return invalidTask.in("targetUrl", "must have at most %d visible ASCII characters: write others as %%XX", maxURL)
	}
	u, err := url.Parse(t.TargetURL)
	if err != nil {
		return invalidTask.in("targetUrl", "is no URL: write one such as https://api.example.com/payments")
	}
	switch port, err := strconv.ParseUint(u.Port(), 10, 16); {
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return invalidTask.in("targetUrl", "must begin with http:// or https:// and name a host")
	case u.User != nil:
		return invalidTask.in("targetUrl", "has a user in it: use the header Authorization")
	case strings.Contains(t.TargetURL, "#"):
		return invalidTask.in("targetUrl", "has a fragment, which no server sees: remove it")
	case u.Port() != "" && (err != nil || port == 0):
		return invalidTask.in("targetUrl", "has a port that is none: use 1 to 65535")
	}
	return nil
}

func (r *taskRequest) headers(t *Task) *problem {
	if len(r.Headers) > maxHeaders {
		return invalidTask.in("headers", "are %d: use at most %d", len(r.Headers), maxHeaders)
	}
	size := 0
	for name, value := range r.Headers {
		canonical := http.CanonicalHeaderKey(name)
		_, twice := t.Headers[canonical]
		size += len(name) + len(value)
		switch {
		case !isToken(name):
			return invalidTask.in("headers", "have the name %q, which is none", shortened(name))
		case !isHeaderValue(value):
			return invalidTask.in("headers", "have a value of %s that is none: use visible ASCII characters, and spaces between them", canonical)
		case reserved[canonical]:
			return invalidTask.in("headers", "have %s, which the service sets itself: remove it", canonical)
		case twice:
			return invalidTask.in("headers", "have %s twice: join the values", canonical)
		}
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers[canonical] = value
	}
	if size > maxHeaderBytes {
		return invalidTask.in("headers", "have %d bytes: use at most %d", size, maxHeaderBytes)
	}
	return nil
}

func (r *taskRequest) body(t *Task) *problem {
	given := 0
	for _, there := range []bool{r.Body != nil, r.BodyBase64 != nil, r.BodyRef != ""} {
		if there {
			given++
		}
	}
	if given > 1 {
		return invalidTask.in("body", "is there more than once: use one of body, bodyBase64 and bodyRef")
	}
	switch {
	case r.Body != nil:
		t.Body = []byte(*r.Body)
	case r.BodyBase64 != nil:
		var err error
		if t.Body, err = base64.StdEncoding.DecodeString(*r.BodyBase64); err != nil {
			return invalidTask.in("bodyBase64", "is no base64: %v", err)
		}
	}
	if len(t.Body) > maxBody {
		return tooLarge.in("body", "has %d bytes: send at most %d, or a reference to where the rest is", len(t.Body), maxBody)
	}
	return nil
}

func (r *taskRequest) due(t *Task, now time.Time) *problem {
	switch {
	case r.NextAttemptAt != nil && r.DelayMs != nil:
		return invalidTask.in("delayMs", "and nextAttemptAt are both there: use one of them")
	case r.DelayMs != nil:
		if *r.DelayMs < 0 || *r.DelayMs > maxDelay.Milliseconds() {
			return invalidTask.in("delayMs", "is %d: use 0 to %d, a year of milliseconds", *r.DelayMs, maxDelay.Milliseconds())
		}
		t.NextAttemptAt = now.Add(time.Duration(*r.DelayMs) * time.Millisecond)
	case r.NextAttemptAt != nil:
		first, last := now.Add(-maxPast).UnixMilli(), now.Add(maxDelay).UnixMilli()
		if *r.NextAttemptAt < first || *r.NextAttemptAt > last {
			return invalidTask.in("nextAttemptAt", "is %d: use milliseconds since 1970, from a year ago to a year ahead, which is %d to %d now", *r.NextAttemptAt, first, last)
		}
		t.NextAttemptAt = time.UnixMilli(max(*r.NextAttemptAt, now.UnixMilli())).UTC()
	}
	return nil
}

// ParsePolicy reads a policy as POST /retry-policies takes it, fills what is unset,
// and refuses what that refuses.
func ParsePolicy(raw []byte) (Policy, error) {
	p, fault := parsePolicy(raw)
	if fault != nil {
		return Policy{}, errors.New(fault.Detail)
	}
	return p, nil
}

// parsePolicy reads a policy, fills what is not in it, and checks it.
func parsePolicy(raw []byte) (Policy, *problem) {
	var p Policy
	if fault := decode(raw, policyNames(), &p); fault != nil {
		return Policy{}, fault
	}
	if !text.IsWord(p.ID) {
		return Policy{}, invalidPolicy.in("policyId", "must have 1 to %d letters, digits, -, _ and .", text.MaxWord)
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return Policy{}, malformed.because("%v", err)
	}
	for name, value := range given {
		if empty := strings.Trim(string(value), `-0."`) == ""; empty && name != "multiplier" {
			return Policy{}, invalidPolicy.in(name, "is %s: leave it out for the default", shortened(string(value)))
		}
	}
	p = p.WithDefaults()
	err := p.Validate()
	if err == nil {
		return p, nil
	}
	fault := invalidPolicy.because("%v", err)
	if e, ok := errors.AsType[*PolicyError](err); ok {
		fault.Field = e.Faults[0].Field
	}
	return Policy{}, fault
}

// policyNames are the fields of a policy that callers may send: the service counts
// versions.
func policyNames() (names []string) {
	for _, name := range namesOf[Policy]() {
		if name != "version" {
			names = append(names, name)
		}
	}
	return names
}

func isVisible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isHeaderValue(s string) bool {
	return s == strings.Trim(s, " \t") && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' })
}
