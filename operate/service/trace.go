package service

import (
	"maps"
	"net/http"
	"regexp"
	"strings"
)

// The headers of the W3C trace context, as net/http spells them.
const (
	traceparent = "Traceparent"
	tracestate  = "Tracestate"
)

// mostState bounds a tracestate, in bytes: what each recipient at least passes on.
const mostState = 512

var (
	validParent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
	zeroParent  = regexp.MustCompile(`^00-(0{32}|[0-9a-f]{32}-0{16})-`)
	validMember = regexp.MustCompile(`^[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{1,256}$`)
)

// traceOf returns the trace context in the headers of a request, nil if there is
// none. It leaves out a malformed header, as each recipient of a trace context does.
func traceOf(h http.Header) map[string]string {
	parent := h.Values(traceparent)
	if len(parent) != 1 || !validParent.MatchString(parent[0]) || zeroParent.MatchString(parent[0]) {
		return nil
	}
	trace := map[string]string{traceparent: parent[0]}
	if state := strings.Join(h.Values(tracestate), ","); isState(state) {
		trace[tracestate] = state
	}
	return trace
}

// Traceparent returns the W3C traceparent among the headers of t: that of the request
// which created it, or one that it brought itself; "" if there is no valid one.
func (t Task) Traceparent() string {
	return traceOf(http.Header{traceparent: {t.Headers[traceparent]}})[traceparent]
}

// isState reports whether s is a tracestate that has members.
func isState(s string) bool {
	if len(s) > mostState {
		return false
	}
	members := 0
	for m := range strings.SplitSeq(s, ",") {
		if m = strings.Trim(m, " \t"); m == "" {
			continue
		}
		if members++; !validMember.MatchString(m) {
			return false
		}
	}
	return members > 0 && members <= 32
}

// withTrace returns headers with a trace context, unless they have one of their own.
func withTrace(headers, trace map[string]string) map[string]string {
	for _, name := range []string{traceparent, tracestate} {
		if _, own := headers[name]; own {
			return headers
		}
	}
	if len(trace) == 0 {
		return headers
	}
	all := maps.Clone(trace)
	maps.Copy(all, headers)
	return all
}
