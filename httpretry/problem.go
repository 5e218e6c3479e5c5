package httpretry

import (
	"errors"
	"maps"

	"github.com/redrive-go/redrive/classify"
)

// ProblemTypes returns a rule that judges a [classify.HTTPError] by the type of
// its RFC 9457 problem: for the Rules of a [Policy], and of a consumer whose
// handlers return what [Check] or classify.FromResponse does. A type that is not
// in the map leaves the error to the rules after it, and so to its status.
// Ambiguous and RetryAfter stay those of the status. Types are compared as text;
// the map is copied.
func ProblemTypes(types map[string]string) classify.Rule {
	types = maps.Clone(types)
	return func(err error) error {
		s := search{types: types, left: maxErrors}
		s.visit(err)
		return errors.Join(s.marked...)
	}
}

// maxErrors is how many errors of a tree are searched.
const maxErrors = 1000

// search looks for problems of known types.
type search struct {
	types  map[string]string
	left   int
	marked []error
}

func (s *search) visit(err error) {
	if s.left--; s.left < 0 {
		return
	}
	switch e := err.(type) {
	case *classify.HTTPError:
		if e == nil || e.Type == "" {
			return
		}
		if class, ok := s.types[e.Type]; ok {
			s.marked = append(s.marked, classify.With(e, classify.Verdict{Class: class, Rule: "problem type " + e.Type}))
		}
	case interface{ Unwrap() error }:
		s.visit(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, branch := range e.Unwrap() {
			s.visit(branch)
		}
	}
}
