// Package health answers the probes of Kubernetes, and shows people the status of a
// worker:
//
//		mux.Handle("/", health.Handler(worker)) // a *consumer.Consumer
//
//	  - /livez fails for a fault that a restart cures: a loop of the worker is frozen,
//	    or all slots of a topic are taken by handlers that do not end.
//	  - /readyz fails unless the worker receives messages: it has opened its topics, is
//	    connected, and is not draining.
//	  - /startupz fails until the topology is verified. The body has the refusal.
//	  - /statusz is a [Status], as text, or as JSON with ?format=json.
//	  - With Options.Token, POST /pause, /resume, /skip and /drain control the worker.
//
// A broker that is away, a pause, a rebalance, an outage of a dependency and a slow
// store never fail /livez: no restart would cure them. No answer delays a handler.
//
// The package knows no broker and no consumer, and imports nothing but the standard
// library. It does not say who may ask: mount it where only the cluster can reach it.
package health

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Worker has a status. A *consumer.Consumer is one.
type Worker interface {
	// Status is called for each request, and must not block.
	Status() Status
}

// Options are settings of a Handler. The zero value has the defaults.
type Options struct {
	// LoopFor is how long a loop may be late before /livez fails. Default 10 s.
	LoopFor time.Duration

	// StuckFor is how long all slots of a topic may be taken by handlers that ignore
	// that their context has ended, before /livez fails. Negative, such as
	// settings.None, means for ever. Default 10 min.
	StuckFor time.Duration

	// Token lets people control the worker, which has to be a Controlled: it adds
	// POST /pause, /resume, /skip and /drain for requests with the header
	// "Authorization: Bearer TOKEN". HandlerFor panics if it has fewer than 16 bytes.
	// Empty means no actions.
	Token string
}

const (
	defaultLoopFor  = 10 * time.Second
	defaultStuckFor = 10 * time.Minute

	// secondLook is after how long /livez looks at a fault again. A process that stood
	// still has all loops late when it goes on, and none a moment later.
	secondLook = 250 * time.Millisecond
)

// Handler returns a handler of /livez, /readyz, /startupz and /statusz for w, with
// the default Options.
func Handler(w Worker) http.Handler { return HandlerFor(w, Options{}) }

// HandlerFor is Handler with Options.
func HandlerFor(w Worker, o Options) http.Handler {
	o.LoopFor, o.StuckFor = cmp.Or(o.LoopFor, defaultLoopFor), cmp.Or(o.StuckFor, defaultStuckFor)
	mux := http.NewServeMux()
	probe := func(path string, fault func(Status) string, again time.Duration) {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) {
			text := fault(w.Status())
			if text != "" && again > 0 {
				select {
				case <-time.After(again):
				case <-r.Context().Done():
				}
				text = fault(w.Status())
			}
			if text != "" {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
			io.WriteString(rw, cmp.Or(text, "ok")+"\n")
		})
	}
	probe("/livez", o.frozen, secondLook)
	probe("/readyz", Status.unready, 0)
	probe("/startupz", Status.unopened, 0)
	mux.HandleFunc("GET /statusz", func(rw http.ResponseWriter, r *http.Request) { w.Status().write(rw, r) })
	o.control(mux, w)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		rw.Header().Set("Cache-Control", "no-store")
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(rw, r)
	})
}

// frozen has a line for each fault of s that a restart cures.
func (o Options) frozen(s Status) string {
	var faults []string
	for _, l := range s.Loops {
		if late := time.Duration(l.Late); late >= o.LoopFor {
			faults = append(faults, fmt.Sprintf("loop %q is frozen: it should have ticked %s ago", l.Name, brief(late)))
		}
	}
	for _, t := range s.Topics {
		if since := s.At.Sub(t.StuckSince); !t.StuckSince.IsZero() && o.StuckFor > 0 && since >= o.StuckFor {
			faults = append(faults, fmt.Sprintf("topic %q has no free slot: for %s, handlers have ignored that their context has ended", t.Name, brief(since)))
		}
	}
	return strings.Join(faults, "\n")
}

// unopened says why the topology is not verified yet.
func (s Status) unopened() string {
	if !s.Opened.IsZero() {
		return ""
	}
	return s.text("stage")
}

// unready says why the worker receives nothing.
func (s Status) unready() string {
	switch {
	case s.State != Running:
		return s.text("stage")
	case s.Broker.State == Opening:
		return s.text("broker")
	}
	return ""
}

// write answers with s, as text or JSON.
func (s Status) write(rw http.ResponseWriter, r *http.Request) {
	if r.FormValue("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		rw.Header().Set("Content-Type", "application/json")
		json.NewEncoder(rw).Encode(s)
		return
	}
	io.WriteString(rw, s.String())
}
