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
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/template"
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
	// that their context has ended, before /livez fails. Negative means for ever.
	// Default 10 min.
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
	if o.LoopFor == 0 {
		o.LoopFor = defaultLoopFor
	}
	if o.StuckFor == 0 {
		o.StuckFor = defaultStuckFor
	}
	mux := http.NewServeMux()
	probe := func(path string, faults func(*http.Request) []string) {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) { answer(rw, faults(r)) })
	}
	probe("/livez", func(r *http.Request) []string {
		faults := o.frozen(w.Status())
		if len(faults) > 0 {
			select {
			case <-time.After(secondLook):
			case <-r.Context().Done():
			}
			faults = o.frozen(w.Status())
		}
		return faults
	})
	probe("/readyz", func(*http.Request) []string { return w.Status().unready() })
	probe("/startupz", func(*http.Request) []string { return w.Status().unopened() })
	mux.HandleFunc("GET /statusz", func(rw http.ResponseWriter, r *http.Request) { w.Status().write(rw, r) })
	o.control(mux, w)
	return mux
}

// answer is 200 if there are no faults, else 503 with a line for each.
func answer(rw http.ResponseWriter, faults []string) {
	begin(rw, "text/plain; charset=utf-8")
	if len(faults) == 0 {
		io.WriteString(rw, "ok\n")
		return
	}
	rw.WriteHeader(http.StatusServiceUnavailable)
	io.WriteString(rw, strings.Join(faults, "\n")+"\n")
}

func begin(rw http.ResponseWriter, contentType string) {
	rw.Header().Set("Content-Type", contentType)
	rw.Header().Set("Cache-Control", "no-store")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
}

// frozen are the faults of s that a restart cures.
func (o Options) frozen(s Status) (faults []string) {
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
	return faults
}

// unopened says why the topology is not verified yet.
func (s Status) unopened() []string {
	if !s.Opened.IsZero() {
		return nil
	}
	return []string{s.stage()}
}

// unready says why the worker receives nothing.
func (s Status) unready() []string {
	switch {
	case s.State != Running:
		return []string{s.stage()}
	case s.Broker.State == Opening:
		return []string{s.broker()}
	}
	return nil
}

// stage is State in words.
func (s Status) stage() string {
	text := string(s.State)
	if !s.Since.IsZero() {
		text += " for " + brief(s.At.Sub(s.Since))
	}
	if s.Error != "" {
		text += ": " + s.Error
	}
	return text
}

// broker is the connection in words; "" if nothing is known of it.
func (s Status) broker() string {
	text := ""
	switch s.Broker.State {
	case Running:
		text = "connected to the broker for " + brief(s.At.Sub(s.Broker.Since))
	case Opening:
		text = "not connected to the broker for " + brief(s.At.Sub(s.Broker.Since))
	}
	if s.Broker.Error == "" {
		return text
	}
	if text != "" {
		text += "; "
	}
	return text + fmt.Sprintf("last error of the broker %s: %s", s.ago(s.Broker.ErrorAt), s.Broker.Error)
}

// write answers with s, as text or JSON.
func (s Status) write(rw http.ResponseWriter, r *http.Request) {
	if r.FormValue("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		begin(rw, "application/json")
		json.NewEncoder(rw).Encode(s)
		return
	}
	begin(rw, "text/plain; charset=utf-8")
	io.WriteString(rw, s.String())
}

// String is s for people.
func (s Status) String() string {
	var b strings.Builder
	page := template.Must(template.New("").Funcs(template.FuncMap{
		"stage": s.stage, "broker": s.broker, "ago": s.ago,
		"for": func(t time.Time) string { return brief(s.At.Sub(t)) },
		"in":  func(t time.Time) string { return brief(max(0, t.Sub(s.At))) },
	}).Parse(page))
	if err := page.Execute(&b, s); err != nil {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}

const page = `{{stage}}
{{with broker}}{{.}}
{{end}}{{range .ByHand}}paused by hand: {{.}}
{{end}}{{range .Loops}}loop "{{.Name}}" is late by {{.Late}}
{{end}}{{range .Topics}}
{{.Name}}: {{.Running}} of {{.Slots}} slots run{{if .Stuck}}, {{.Stuck}} stuck{{end}}; {{.InFlight}} messages in flight, {{.Waiting}} wait, {{.Dying}} die{{if not .Oldest.IsZero}}; the oldest came {{ago .Oldest}}{{end}}
{{with .Pause}}  paused for {{for .Since}}{{if not .Next.IsZero}}, {{if .ByHand}}ends{{else}}next probe{{end}} in {{in .Next}}{{end}}: {{.Cause}}
{{end}}  10 min: {{.Attempts10m}} attempts, {{.DeadLetters10m}} dead letters; last success {{ago .LastSuccess}}
  dependency {{.Dependency}}: limit {{printf "%.3g" .Limit}}{{with .Budget}}, budget {{printf "%.1f of %.0f" .Tokens .Capacity}} tokens, {{.Waiting}} retries wait for one{{end}}
  policy: {{with .Policy}}{{.MaxAttempts}} attempts in {{.MaxAge}}, delay up to {{.MaxDelay}}, timeout {{.Timeout}}{{end}}
{{end}}{{range .Broker.Partitions}}
{{.Topic}}/{{.Partition}}: position {{.Position}}, lag {{.Lag}}, last record {{ago .LastRecord}}{{if not .StalledSince.IsZero}}; stalled for {{for .StalledSince}}{{end}}{{end}}
`

// ago is t as seen from the time of s.
func (s Status) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return brief(s.At.Sub(t)) + " ago"
}

// brief rounds d for people.
func brief(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
