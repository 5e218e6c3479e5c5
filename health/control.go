package health

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Controlled is a Worker that people control. A *consumer.Consumer is one. Its
// methods do not wait for messages, and may be called twice. An error wraps
// ErrUnknown, or says why the worker cannot do that in its present state.
type Controlled interface {
	Worker

	// Pause pauses what p names. Another call changes Until, By and Why.
	Pause(p ByHand) error

	// Resume ends the pause of what p names, if there is one.
	Resume(p ByHand) error

	// Skip makes a message that runs or waits in the worker a dead letter.
	Skip(topic, id, why string) error

	// Drain stops the worker, as the end of the context of its Run does.
	Drain() error
}

// ErrUnknown means that a worker does not have what a person named.
var ErrUnknown = errors.New("not known to this worker")

// ByHand is a pause that a person asked for. It has a Topic, a Dependency or a Tenant.
type ByHand struct {
	Topic      string    `json:"topic,omitempty"`
	Dependency string    `json:"dependency,omitempty"` // with all topics that depend on it
	Tenant     string    `json:"tenant,omitempty"`     // a name that TopicConfig.DependencyOf returns
	Since      time.Time `json:"since,omitzero"`       // set by the worker
	Until      time.Time `json:"until,omitzero"`       // zero: until a person ends it
	By         string    `json:"by,omitempty"`
	Why        string    `json:"why,omitempty"`
}

// String is b on one line.
func (b ByHand) String() string {
	text := "tenant " + b.Tenant
	if b.Topic != "" {
		text = "topic " + b.Topic
	} else if b.Dependency != "" {
		text = "dependency " + b.Dependency
	}
	text += ", since " + b.Since.UTC().Format(time.RFC3339)
	if b.Until.IsZero() {
		text += ", without an end"
	} else {
		text += ", until " + b.Until.UTC().Format(time.RFC3339)
	}
	if b.By != "" {
		text += ", by " + b.By
	}
	if b.Why != "" {
		text += ": " + b.Why
	}
	return text
}

const (
	tokenLeast = 16                  // bytes
	textMost   = 200                 // bytes of a parameter
	formMost   = 1 << 13             // bytes of a body
	pauseMost  = 31 * 24 * time.Hour // for a pause with an end
)

// control adds the actions to mux, if there is a token.
func (o Options) control(mux *http.ServeMux, w Worker) {
	if o.Token == "" {
		return
	}
	c, ok := w.(Controlled)
	if !ok || len(o.Token) < tokenLeast {
		panic(fmt.Sprintf("health: Options.Token has %d bytes and is for a %T: it must have %d or more, as openssl rand -hex 32 prints, and be for a Controlled", len(o.Token), w, tokenLeast))
	}
	action := func(path, known string, do func(p ByHand, id string) error) {
		mux.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) {
			if !o.admits(r) {
				rw.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(rw, "send the token of this worker, as Authorization: Bearer TOKEN", http.StatusUnauthorized)
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, formMost)
			p, id, err := order(r, strings.Fields(known), time.Now())
			code := http.StatusBadRequest
			if err == nil {
				err, code = do(p, id), http.StatusConflict
			}
			if errors.Is(err, ErrUnknown) {
				code = http.StatusNotFound
			}
			if err != nil {
				http.Error(rw, err.Error(), code)
				return
			}
			w.Status().write(rw, r)
		})
	}
	action("/pause", "topic dependency tenant for until forever by why", func(p ByHand, _ string) error { return c.Pause(p) })
	action("/resume", "topic dependency tenant", func(p ByHand, _ string) error { return c.Resume(p) })
	action("/skip", "topic id by why", func(p ByHand, id string) error { return c.Skip(p.Topic, id, strings.Trim(p.By+": "+p.Why, ": ")) })
	action("/drain", "", func(ByHand, string) error { return c.Drain() })
}

// admits reports whether r has the token, in a time that does not tell how much of
// another token is right.
func (o Options) admits(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(o.Token))
	return subtle.ConstantTimeCompare(given[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// order returns what r asks for at now. Known are the parameters of the action.
func order(r *http.Request, known []string, now time.Time) (p ByHand, id string, err error) {
	if err := r.ParseForm(); err != nil {
		return p, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		text := strings.Join(r.Form[name], "\n")
		if !slices.Contains(known, name) {
			return p, "", fmt.Errorf("there is no parameter %q here, but %q", name, known)
		}
		if text == "" || len(text) > textMost || strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) {
			return p, "", fmt.Errorf("%s must be there once, and have up to %d bytes that print", name, textMost)
		}
	}
	p = ByHand{Topic: r.Form.Get("topic"), Dependency: r.Form.Get("dependency"), Tenant: r.Form.Get("tenant"), By: r.Form.Get("by"), Why: r.Form.Get("why")}
	given := func(names ...string) (n int) {
		for _, name := range names {
			n += len(r.Form[name])
		}
		return n
	}
	switch id = r.Form.Get("id"); {
	case slices.Contains(known, "tenant") && given("topic", "dependency", "tenant") != 1:
		err = errors.New("name one topic, one dependency or one tenant, such as topic=orders")
	case slices.Contains(known, "id") && given("topic", "id") != 2:
		err = errors.New("name the topic and the id of a message")
	case slices.Contains(known, "for") && given("for", "until", "forever") != 1:
		err = errors.New("say how long, by one of for=30m, until=2026-01-31T15:04:05Z and forever=true")
	case given("for", "until", "forever") == 1:
		p.Until, err = end(r.Form.Get("for"), r.Form.Get("until"), r.Form.Get("forever"), now)
	}
	return p, id, err
}

// end returns when a pause ends, by the one parameter that is set.
func end(length, until, forever string, now time.Time) (at time.Time, err error) {
	if forever == "true" {
		return at, nil
	}
	if until != "" {
		at, err = time.Parse(time.RFC3339, until)
	} else {
		var d time.Duration
		d, err = time.ParseDuration(length)
		at = now.Add(d)
	}
	if left := at.Sub(now); err != nil || left <= 0 || left > pauseMost {
		return at, fmt.Errorf("%q is not an end from now to %s from now: it is %s at this worker, and for=30m needs no clock", length+until+forever, pauseMost, now.UTC().Format(time.RFC3339))
	}
	return at, nil
}
