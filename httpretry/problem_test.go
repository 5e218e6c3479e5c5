package httpretry_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/httpretry"
)

// circle is an error that wraps itself.
type circle struct{}

func (circle) Error() string { return "circle" }
func (circle) Unwrap() error { return circle{} }

func TestProblemTypesOfErrors(t *testing.T) {
	const base = "https://pay.test/"
	types := map[string]string{
		base + "declined": classify.ClassPoison,
		base + "busy":     classify.ClassTransient,
		base + "quota":    classify.ClassThrottled,
		base + "odd":      "odd",
		"":                classify.ClassPoison,
	}
	rule := httpretry.ProblemTypes(types)
	types[base+"late"] = classify.ClassPoison // has no effect: the map is copied

	problem := func(status int, typ string) error {
		return &classify.HTTPError{Status: status, Type: typ, Wait: time.Minute}
	}
	name := func(typ string) string { return "problem type " + base + typ }
	tests := []struct {
		name  string
		err   error
		class string
		rule  string
		code  string
	}{
		{"poison for all its status", problem(502, base+"declined"), classify.ClassPoison, name("declined"), "502"},
		{"transient for all its status", problem(409, base+"busy"), classify.ClassTransient, name("busy"), "409"},
		{"throttled", problem(400, base+"quota"), classify.ClassThrottled, name("quota"), "400"},
		{"wrapped", fmt.Errorf("charge: %w", problem(500, base+"busy")), classify.ClassTransient, name("busy"), "500"},
		{"status without a meaning", problem(0, base+"busy"), classify.ClassTransient, name("busy"), ""},
		{"class off the list", problem(500, base+"odd"), classify.ClassUnknown, name("odd"), "500"},
		{"unlisted type", problem(502, base+"late"), classify.ClassTransient, "http status 502", "502"},
		{"no type", problem(502, ""), classify.ClassTransient, "http status 502", "502"},
		{"second branch", errors.Join(io.EOF, problem(502, base+"late"), problem(402, base+"busy")), classify.ClassTransient, name("busy"), "402"},
		{"two types", errors.Join(problem(402, base+"declined"), problem(402, base+"busy")), classify.ClassTransient, name("busy"), "402"},
		{"mark", classify.Transient(problem(402, base+"declined")), classify.ClassTransient, "mark: transient", "402"},
		{"no problem at all", io.EOF, classify.ClassUnknown, "io.EOF", ""},
	}
	for _, tt := range tests {
		v := classify.Of(tt.err, rule)
		if v.Class != tt.class || v.Rule != tt.rule || v.Code != tt.code {
			t.Errorf("%s: Of = %+v, want %s by %q, code %q", tt.name, v, tt.class, tt.rule, tt.code)
		}
		if plain := classify.Of(tt.err); tt.code == "500" && (!v.Ambiguous || v.RetryAfter != plain.RetryAfter) {
			t.Errorf("%s: Of = %+v, want Ambiguous and RetryAfter of the status, as in %+v", tt.name, v, plain)
		}
	}
	for _, err := range []error{circle{}, (*classify.HTTPError)(nil)} {
		if got := classify.Of(err, rule); got.Class != classify.ClassUnknown {
			t.Errorf("Of(%T) = %+v, want unknown", err, got)
		}
	}
}

func ExampleProblemTypes() {
	rule := httpretry.ProblemTypes(map[string]string{
		"https://pay.example/card-declined": classify.ClassPoison,
		"https://pay.example/bank-offline":  classify.ClassTransient,
	})

	err := &classify.HTTPError{Status: 422, Type: "https://pay.example/bank-offline"}
	fmt.Println(classify.Of(err).Class)
	fmt.Println(classify.Of(err, rule).Class)
	// Output:
	// poison
	// transient
}
