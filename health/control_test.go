package health

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// stub notes what it is asked for, and returns err.
type stub struct {
	asked []string
	err   error
	by    []ByHand
}

func (s *stub) Status() Status { return Status{At: time.Now(), State: Running, ByHand: s.by} }

func (s *stub) note(format string, args ...any) error {
	s.asked = append(s.asked, fmt.Sprintf(format, args...))
	return s.err
}

func (s *stub) Pause(p ByHand) error {
	left := "for ever"
	if !p.Until.IsZero() {
		left = time.Until(p.Until).Round(time.Minute).String()
	}
	return s.note("pause %s%s%s %s by %s: %s", p.Topic, p.Dependency, p.Tenant, left, p.By, p.Why)
}
func (s *stub) Resume(p ByHand) error {
	return s.note("resume %s%s%s", p.Topic, p.Dependency, p.Tenant)
}
func (s *stub) Skip(topic, id, why string) error {
	return s.note("skip %s %s: %s", topic, id, why)
}
func (s *stub) Drain() error { return s.note("drain") }

const testToken = "0123456789abcdef"

func request(h http.Handler, method, target, authorization, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestActions(t *testing.T) {
	in2h := time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)
	for _, tt := range []struct{ target, body, asked string }{
		{"/pause?topic=orders&for=2h", "", "pause orders 2h0m0s by : "},
		{"/pause", "topic=orders&for=90m&by=ada&why=the+bank", "pause orders 1h30m0s by ada: the bank"},
		{"/pause?dependency=bank&until=" + in2h, "", "pause bank 2h0m0s by : "},
		{"/pause?tenant=acme", "forever=true", "pause acme for ever by : "},
		{"/resume?topic=orders", "", "resume orders"},
		{"/skip?topic=orders&id=17", "", "skip orders 17: "},
		{"/skip?topic=orders&id=17&by=ada&why=stuck", "", "skip orders 17: ada: stuck"},
		{"/drain", "", "drain"},
	} {
		s := &stub{by: []ByHand{{Topic: "orders", By: "ada", Why: "the bank"}}}
		h := HandlerFor(s, Options{Token: testToken})
		w := request(h, "POST", tt.target, "bearer "+testToken, tt.body)
		if w.Code != 200 || len(s.asked) != 1 || s.asked[0] != tt.asked || !strings.Contains(w.Body.String(), "paused by hand: topic orders, since") {
			t.Errorf("%s %s: %d %q, asked %q, want %q", tt.target, tt.body, w.Code, w.Body, s.asked, tt.asked)
		}
		path, _, _ := strings.Cut(tt.target, "?")
		if w := request(h, "GET", path, "Bearer "+testToken, ""); w.Code != 405 {
			t.Errorf("GET %s: %d, want 405", path, w.Code)
		}
		if w := request(Handler(s), "POST", tt.target, "Bearer "+testToken, tt.body); w.Code != 404 {
			t.Errorf("%s without a token in the options: %d, want 404", tt.target, w.Code)
		}
		if len(s.asked) != 1 {
			t.Errorf("%s was done without a token", tt.target)
		}
	}
}

func TestActionsNeedTheToken(t *testing.T) {
	s := &stub{}
	h := HandlerFor(s, Options{Token: testToken})
	for _, header := range []string{"", "Bearer", "Bearer ", testToken, "Basic " + testToken, "Bearer " + testToken[1:], "Bearer " + testToken + "0", "Bearer " + testToken + " "} {
		w := request(h, "POST", "/drain", header, "")
		if w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" || len(s.asked) > 0 {
			t.Errorf("%q: %d %q, asked %q", header, w.Code, w.Header(), s.asked)
		}
	}
	if w := request(h, "GET", "/statusz", "", ""); w.Code != 200 {
		t.Errorf("/statusz needs a token: %d", w.Code)
	}
}

func TestActionsRefuseParameters(t *testing.T) {
	for target, want := range map[string]string{
		"/pause?topic=orders":                                        "give one for=30m or until=",
		"/pause?topic=orders&for=1h&forever=true":                    "give one for=30m or until=",
		"/pause?topic=orders&for=-1h":                                "is not an end",
		"/pause?topic=orders&for=0s":                                 "is not an end",
		"/pause?topic=orders&for=1000h":                              "is not an end",
		"/pause?topic=orders&for=2562047h48m":                        "is not an end",
		"/pause?topic=orders&for=soon":                               "is not an end",
		"/pause?topic=orders&forever=yes":                            "is not an end",
		"/pause?topic=orders&until=14:00":                            "is not an end",
		"/pause?topic=orders&until=2001-01-01T00:00:00Z":             " at this worker, and for=30m needs no clock",
		"/pause?for=1h":                                              "give one topic=NAME or dependency=",
		"/pause?topic=orders&tenant=a&for=1h":                        "give one topic=NAME or dependency=",
		"/pause?topic=orders&topic=mails&for=1h":                     "give one topic=NAME",
		"/pause?topic=&for=1h":                                       "give one topic=NAME",
		"/pause?topic=orders&fr=1h":                                  `no parameter "fr"`,
		"/pause?topic=orders&for=1h&why=%1b[31m":                     "bytes that print",
		"/pause?topic=orders&for=1h&why=" + strings.Repeat("x", 201): "up to 200 bytes",
		"/resume":                 "give one topic=NAME or dependency=",
		"/resume?topic=a&for=1h":  `no parameter "for"`,
		"/skip?topic=orders":      "give one ",
		"/skip?id=1":              "give one ",
		"/drain?topic=orders":     `no parameter "topic"`,
		"/pause?topic=%zz&for=1h": "invalid URL escape",
	} {
		s := &stub{}
		w := request(HandlerFor(s, Options{Token: testToken}), "POST", target, "Bearer "+testToken, "")
		if w.Code != 400 || !strings.Contains(w.Body.String(), want) || len(s.asked) > 0 {
			t.Errorf("%s: %d %q, asked %q, want %q", target, w.Code, w.Body, s.asked, want)
		}
	}
	s := &stub{}
	if w := request(HandlerFor(s, Options{Token: testToken}), "POST", "/drain", "Bearer "+testToken, "x="+strings.Repeat("x", formMost)); w.Code != 400 || len(s.asked) > 0 {
		t.Errorf("a large body: %d", w.Code)
	}
}

func TestActionsAnswerErrors(t *testing.T) {
	for err, want := range map[error]int{errors.New("it drains"): 409, fmt.Errorf("topic: %w", ErrUnknown): 404} {
		s := &stub{err: err}
		if w := request(HandlerFor(s, Options{Token: testToken}), "POST", "/resume?topic=orders", "Bearer "+testToken, ""); w.Code != want || w.Body.String() != err.Error()+"\n" {
			t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
		}
	}
}

type watched struct{}

func (watched) Status() Status { return Status{} }

func TestTokenIsRefused(t *testing.T) {
	for want, make := range map[string]func(){
		"has 15 bytes":            func() { HandlerFor(&stub{}, Options{Token: testToken[1:]}) },
		"is for a health.watched": func() { HandlerFor(watched{}, Options{Token: testToken}) },
	} {
		func() {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), want) || strings.Contains(fmt.Sprint(v), testToken[1:]) {
					t.Errorf("panic %v, want %q", v, want)
				}
			}()
			make()
		}()
	}
}

func TestByHandIsALine(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for want, p := range map[string]ByHand{
		"topic orders, since 2026-11-30T12:00:00Z, without an end":                                  {Topic: "orders", Since: noon},
		"dependency bank, since 2026-11-30T12:00:00Z, until 2026-11-30T14:00:00Z, by ada: it moves": {Dependency: "bank", Since: noon, Until: noon.Add(2 * time.Hour), By: "ada", Why: "it moves"},
		"tenant acme, since 2026-11-30T12:00:00Z, without an end: too loud":                         {Tenant: "acme", Since: noon, Why: "too loud"},
	} {
		if got := p.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// Whatever a request has in it, an action is for one thing, on one line, and a pause
// ends within a month or was asked to last.
func FuzzOrder(f *testing.F) {
	for _, seed := range []string{"topic=orders&for=2h", "tenant=a&until=2026-12-01T00:00:00Z&by=x", "dependency=b&forever=true&why=%0a", "topic=a&topic=b&for=1h", "for=9223372036854775807ns&topic=%ff"} {
		f.Add(seed)
	}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("POST", "/pause", strings.NewReader(query))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		p, _, err := order(r, whatOf+endOf+whoOf, now)
		if err != nil {
			return
		}
		named := 0
		for _, name := range []string{p.Topic, p.Dependency, p.Tenant} {
			if name != "" {
				named++
			}
		}
		left := p.Until.Sub(now)
		if named != 1 || p.Until.IsZero() != (r.Form.Get("forever") == "true") || !p.Until.IsZero() && (left <= 0 || left > pauseMost) || strings.ContainsAny(p.String(), "\n\r\x1b\u202e") {
			t.Errorf("%q: %+v", query, p)
		}
	})
}
