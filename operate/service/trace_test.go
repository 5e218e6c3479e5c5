package service

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	someParent  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	otherParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-00"
)

// TestTraceOfTheCaller creates tasks in a trace, restarts the store, and looks at the
// headers of their calls.
func TestTraceOfTheCaller(t *testing.T) {
	long := "a=" + strings.Repeat("x", 255) + ",b=" + strings.Repeat("x", 252)
	full := strings.TrimSuffix(strings.Repeat("k=v,", 32), ",")
	none := http.Header{}
	for name, tt := range map[string]struct {
		sent          http.Header // of the request that creates the task
		own           string      // the headers of the task
		parent, state []string
	}{
		"parent":          {sent: http.Header{"Traceparent": {someParent}}, parent: []string{someParent}},
		"parent, state":   {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {"a=1", "b@c=2 3"}}, parent: []string{someParent}, state: []string{"a=1,b@c=2 3"}},
		"other headers":   {sent: http.Header{"Traceparent": {someParent}}, own: `"X-A": "1"`, parent: []string{someParent}},
		"largest state":   {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {long}}, parent: []string{someParent}, state: []string{long}},
		"oversized state": {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {long + "x"}}, parent: []string{someParent}},
		"most members":    {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {full}}, parent: []string{someParent}, state: []string{full}},
		"more members":    {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {full + ",k=v"}}, parent: []string{someParent}},
		"empty members":   {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {"a=1, ,b=2"}}, parent: []string{someParent}, state: []string{"a=1, ,b=2"}},
		"empty state":     {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {" "}}, parent: []string{someParent}},
		"state, no key":   {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {"a"}}, parent: []string{someParent}},
		"state, é":        {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {"a=é"}}, parent: []string{someParent}},
		"state alone":     {sent: http.Header{"Tracestate": {"a=1"}}},
		"nothing":         {sent: none},

		"own parent":   {sent: http.Header{"Traceparent": {someParent}, "Tracestate": {"a=1"}}, own: `"traceparent": "` + otherParent + `"`, parent: []string{otherParent}},
		"own state":    {sent: http.Header{"Traceparent": {someParent}}, own: `"tracestate": "b=2"`, state: []string{"b=2"}},
		"own, sent no": {sent: none, own: `"traceparent": "` + otherParent + `"`, parent: []string{otherParent}},

		"empty":      {sent: http.Header{"Traceparent": {""}}},
		"two":        {sent: http.Header{"Traceparent": {someParent, otherParent}}},
		"capitals":   {sent: http.Header{"Traceparent": {strings.ToUpper(someParent)}}},
		"long":       {sent: http.Header{"Traceparent": {someParent + "-" + strings.Repeat("a", 20_000)}}},
		"short":      {sent: http.Header{"Traceparent": {someParent[:54]}}},
		"line":       {sent: http.Header{"Traceparent": {someParent + "\r\nX-Forged: 1"}}},
		"version ff": {sent: http.Header{"Traceparent": {"ff" + someParent[2:]}}},
		"no trace":   {sent: http.Header{"Traceparent": {"00-" + strings.Repeat("0", 32) + someParent[35:]}}},
		"no span":    {sent: http.Header{"Traceparent": {someParent[:36] + strings.Repeat("0", 16) + "-01"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got http.Header
			target := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
			o := newOffice(t)
			o.policy()
			body := taskBody(fmt.Sprintf(`"targetUrl": "%s", "headers": {%s}`, target, tt.own))
			doc, _ := o.do(exchange{method: "POST", path: "/retry-tasks", header: tt.sent, body: body, status: http.StatusAccepted})
			must(t, o.store.Close())
			o.open()
			stored := o.task("default", doc)
			if status, err := callOnce(t, thisMachine, nil, stored, time.Minute); status != http.StatusOK || err != nil {
				t.Fatal(status, err)
			}
			same(t, "traceparent", got.Values("Traceparent"), tt.parent)
			same(t, "tracestate", got.Values("Tracestate"), tt.state)
			same(t, "forged header", got.Get("X-Forged"), "")

			// A client that is instrumented sends the same request in another span.
			again, _ := o.do(exchange{method: "POST", path: "/retry-tasks", header: http.Header{"Traceparent": {otherParent}}, body: body, status: http.StatusOK})
			same(t, "task", again["taskId"], doc["taskId"])
			same(t, "headers", o.task("default", again).Headers, stored.Headers)
		})
	}
}
