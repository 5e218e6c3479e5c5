package classify

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Beyond these the rest of an error tree is taken as unknown.
const (
	maxDepth = 100
	maxNodes = 1000
)

// rank orders the rules: in a chain of wrapped errors the highest one decides,
// and the outer one of two equals.
type rank int8

const (
	rankNone     rank = iota // nothing is known
	rankNamed                // recognised, but it does not tell whether a retry helps
	rankHint                 // Timeout and Temporary
	rankSystem               // contexts, DNS, TLS, errno, sentinels
	rankStatus               // HTTP status: less telling than a code in the same answer
	rankProtocol             // codes that a server sent
	rankLibrary              // a library that says whether to retry
	rankTimeout              // ErrAttemptTimeout: from here on no Rule is asked
	rankPanic
	rankDecode
	rankMark
)

// finding is a verdict with the rank of the rule that gave it.
type finding struct {
	rank rank
	Verdict
}

var (
	noRule = finding{rankNone, Verdict{Class: ClassUnknown}}
	cutOff = finding{rankNamed, Verdict{Class: ClassUnknown, Rule: "walk limit"}}
	broken = finding{rankNamed, Verdict{Class: ClassUnknown, Rule: "panic in a method of the error"}}
)

// unmarked is told in place of a verdict about a rule without effect.
const unmarked = "the error that it returned has no mark"

// place is where in the tree an error stands.
type place struct {
	depth   int
	request bool // a *url.Error, or below one
	dial    bool // the dial of a connection, or below one
	safe    bool // this error or one above says that the call had no effect
}

// at returns the place of err, where p is that of the error around it.
func (p place) at(err error) place {
	p.depth++
	switch e := err.(type) {
	case *url.Error:
		p.request = true
	case *net.OpError:
		if e.Op == "dial" {
			p.dial, p.safe = true, true
		}
	case interface{ SafeToRetry() bool }:
		p.safe = p.safe || e.SafeToRetry()
	}
	return p
}

// walker visits an error tree, and keeps the visit finite.
type walker struct {
	nodes int
	trace *trace // nil unless somebody wants the steps
}

// visit returns the finding on err and all that it wraps. It follows the chain
// to its end, or to where it splits. If a method of an error panics, what is
// known so far stands.
func (w *walker) visit(err error, p place) (found finding) {
	found = noRule
	defer func() {
		if recover() != nil {
			w.trace.own(&broken)
			found.absorb(&broken, false)
		}
	}()
	for {
		w.nodes++
		if p.depth >= maxDepth || w.nodes > maxNodes {
			w.trace.cutOff()
			found.absorb(&cutOff, false)
			return found
		}
		step := w.trace.enter(err, p.depth)
		p = p.at(err)
		own := nodeFinding(err)
		w.trace.own(own)
		found.absorb(own, p.safe)

		children, child := unwrap(err)
		if child != nil {
			err = child
			continue
		}
		if below, ok := w.branches(children, p); ok {
			w.trace.joined(step, below.Verdict)
			found.absorb(&below, p.safe)
			return found
		}
		if own == nil || own.rank < rankSystem {
			own = leafFinding(err, p)
			found.absorb(own, p.safe)
		}
		w.trace.leaf(own)
		return found
	}
}

// unwrap returns what err wraps, in whichever of the two forms.
func unwrap(err error) (children []error, child error) {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return nil, e.Unwrap()
	case interface{ Unwrap() []error }:
		return e.Unwrap(), nil
	}
	return nil, nil
}

// branches joins the findings on errs. It reports false if all of them are nil.
func (w *walker) branches(errs []error, p place) (all finding, ok bool) {
	for _, err := range errs {
		if err == nil {
			continue
		}
		next := w.visit(err, p)
		if ok {
			next = join(all, next)
		}
		all, ok = next, true
		if w.nodes > maxNodes {
			break
		}
	}
	return all, ok
}

// absorb adds to f, the finding on a chain so far, the one on the next error
// inwards. The one of lower rank still supplies what the other does not know.
func (f *finding) absorb(inner *finding, safe bool) {
	if inner == nil {
		return
	}
	win, lose := f.Verdict, inner.Verdict
	lose.Ambiguous = lose.Ambiguous && !safe
	if inner.rank > f.rank {
		win, lose = lose, win
		f.rank = inner.rank
	}
	if win.Code == "" {
		win.Code = lose.Code
	}
	if win.RetryAfter == 0 {
		win.RetryAfter = lose.RetryAfter
	}
	if f.rank >= rankDecode {
		win.Ambiguous = win.Ambiguous || lose.Ambiguous
	}
	f.Verdict = win
}

// join merges the findings on two branches.
func join(a, b finding) finding {
	win, lose := a, b
	if outweighs(b, a) {
		win, lose = b, a
	}
	if win.retryable() && lose.retryable() {
		win.Ambiguous = win.Ambiguous || lose.Ambiguous
		win.RetryAfter = max(win.RetryAfter, lose.RetryAfter)
	}
	return win
}

// outweighs reports whether b decides over the earlier branch a.
func outweighs(b, a finding) bool {
	if x, y := b.tier(), a.tier(); x != y {
		return x > y
	}
	if x, y := weight(b.Class), weight(a.Class); x != y {
		return x > y
	}
	if b.Deferred != a.Deferred {
		return a.Deferred
	}
	// The more patient one: a name that does not exist must not cut short the
	// wait for one whose server is down.
	return a.MaxAttempts != 0 && (b.MaxAttempts == 0 || b.MaxAttempts > a.MaxAttempts)
}

// tier is what counts in a join before the class does.
func (f finding) tier() int {
	switch {
	case f.rank >= rankDecode:
		return 2
	case f.rank == rankTimeout:
		return 1
	default:
		return 0
	}
}

// weight orders the classes for a join. It is 0 for what is not on the list.
func weight(c string) int {
	switch c {
	case ClassThrottled:
		return 8
	case ClassEnvironment:
		return 7
	case ClassTransient:
		return 6
	case ClassUnknown:
		return 5
	case ClassLost:
		return 4
	case ClassShutdown:
		return 3
	case ClassPoison:
		return 2
	case ClassSkipped:
		return 1
	}
	return 0
}

// ask returns the verdict of the caller's rule at index i. Its class is empty if
// the rule has no opinion.
func ask(rule Rule, i int, err error) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			v = Verdict{Class: ClassUnknown, Rule: fmt.Sprintf("user rule %d: panic: %v", i+1, p)}.finish()
		}
	}()
	if rule == nil {
		return Verdict{}
	}
	marked := rule(err)
	if marked == nil {
		return Verdict{}
	}
	var w walker
	f := w.visit(marked, place{})
	if f.rank < rankTimeout {
		return Verdict{Rule: unmarked}
	}
	if mark, ok := strings.CutPrefix(f.Rule, markRule); ok {
		f.Rule = fmt.Sprintf("user rule %d: %s", i+1, mark)
	}
	return f.finish()
}
