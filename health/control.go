package health

import (
	"cmp"
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
	end := ", without an end"
	if !b.Until.IsZero() {
		end = ", until " + b.Until.UTC().Format(time.RFC3339)
	}
	return cmp.Or(after("topic ", b.Topic), after("dependency ", b.Dependency), "tenant "+b.Tenant) +
		", since " + b.Since.UTC().Format(time.RFC3339) + end + after(", by ", b.By) + after(": ", b.Why)
}

// after is text with words before it, if there is text.
func after(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

const (
	tokenLeast = 16                  // bytes
	textMost   = 200                 // bytes of a parameter
	formMost   = 1 << 13             // bytes of a body
	pauseMost  = 31 * 24 * time.Hour // for a pause with an end

	// The parameters of actions, for order and for people.
	whatOf = "topic=NAME|dependency=NAME|tenant=NAME"
	endOf  = " for=30m|until=2026-01-31T15:04:05Z|forever=true"
	whoOf  = " by=NAME? why=TEXT?"
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
	action := func(path, takes string, do func(p ByHand, id string) error) {
		mux.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) {
			if !o.admits(r) {
				rw.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(rw, "send the token of this worker, as Authorization: Bearer TOKEN", http.StatusUnauthorized)
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, formMost)
			p, id, err := order(r, takes, time.Now())
			code := http.StatusBadRequest
			if err == nil {
				err, code = do(p, id), http.StatusConflict
			}
			switch {
			case err == nil:
				w.Status().write(rw, r)
			case errors.Is(err, ErrUnknown):
				http.Error(rw, err.Error(), http.StatusNotFound)
			default:
				http.Error(rw, err.Error(), code)
			}
		})
	}
	action("/pause", whatOf+endOf+whoOf, func(p ByHand, _ string) error { return c.Pause(p) })
	action("/resume", whatOf, func(p ByHand, _ string) error { return c.Resume(p) })
	action("/skip", "topic=NAME id=ID"+whoOf, func(p ByHand, id string) error { return c.Skip(p.Topic, id, strings.Trim(p.By+": "+p.Why, ": ")) })
	action("/drain", "", func(ByHand, string) error { return c.Drain() })
}

// admits reports whether r has the token, in a time that does not tell how much of
// another token is right.
func (o Options) admits(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(o.Token)) // the time is not to tell a length
	return subtle.ConstantTimeCompare(given[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// order returns what r asks for at now. Takes are groups of parameters: r has one of
// each, and one at most of a group that ends in a question mark.
func order(r *http.Request, takes string, now time.Time) (p ByHand, id string, err error) {
	if err := r.ParseForm(); err != nil {
		return p, "", err
	}
	unknown := maps.Clone(r.Form)
	for group := range strings.FieldsSeq(takes) {
		group, optional := strings.CutSuffix(group, "?")
		var given []string
		for parameter := range strings.SplitSeq(group, "|") {
			name, _, _ := strings.Cut(parameter, "=")
			given = append(given, unknown[name]...)
			delete(unknown, name)
		}
		if len(given) > 1 || len(given) == 0 && !optional || slices.ContainsFunc(given, unfit) {
			err = fmt.Errorf("give one %s, with up to %d bytes that print", strings.ReplaceAll(group, "|", " or "), textMost)
		}
	}
	for name := range unknown {
		err = fmt.Errorf("there is no parameter %q here, but %q", name, takes)
	}
	f := r.Form
	p = ByHand{Topic: f.Get("topic"), Dependency: f.Get("dependency"), Tenant: f.Get("tenant"), By: f.Get("by"), Why: f.Get("why")}
	if err == nil && strings.Contains(takes, endOf) && f.Get("forever") != "true" {
		length, wrong := time.ParseDuration(f.Get("for"))
		if p.Until = now.Add(length); f.Has("until") {
			p.Until, wrong = time.Parse(time.RFC3339, f.Get("until"))
		}
		if left := p.Until.Sub(now); wrong != nil || left <= 0 || left > pauseMost {
			err = fmt.Errorf("%q is not an end from now to %s from now: it is %s at this worker, and for=30m needs no clock", f.Get("for")+f.Get("until")+f.Get("forever"), pauseMost, now.UTC().Format(time.RFC3339))
		}
	}
	return p, f.Get("id"), err
}

func unfit(text string) bool {
	return text == "" || len(text) > textMost || strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) })
}
