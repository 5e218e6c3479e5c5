package classify

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxExplainLines = 200
	maxExplainText  = 200 // bytes of an error's text
	maxIndent       = 40
)

// trace records how a verdict came about. A nil trace records nothing.
type trace struct {
	steps []step
	cut   bool      // there was more than the walk looks at
	asked []Verdict // answers of the user rules; without a class it is a no, and Rule may say why
}

// step is the visit of one error.
type step struct {
	err    error
	depth  int
	leaf   bool     // it wraps nothing
	own    *finding // on the error alone, nil if no rule hits
	joined Verdict  // of its branches, if it has any
}

func (t *trace) enter(err error, depth int) (line int) {
	if t == nil {
		return 0
	}
	t.steps = append(t.steps, step{err: err, depth: depth})
	return len(t.steps) - 1
}

// own notes a finding on the error that was entered last, unless there is a
// better one.
func (t *trace) own(f *finding) {
	if t == nil || f == nil {
		return
	}
	last := &t.steps[len(t.steps)-1]
	if last.own == nil || f.rank > last.own.rank {
		last.own = f
	}
}

func (t *trace) leaf(f *finding) {
	if t != nil {
		t.own(f)
		t.steps[len(t.steps)-1].leaf = true
	}
}

func (t *trace) joined(line int, v Verdict) {
	if t != nil {
		t.steps[line].joined = v
	}
}

func (t *trace) cutOff() {
	if t != nil {
		t.cut = true
	}
}

func (t *trace) answer(v Verdict) {
	if t != nil {
		t.asked = append(t.asked, v)
	}
}

// Explain tells how [Of] reaches its verdict with the same arguments, for a
// log or a puzzled author. Each error of the tree has a line with its type, its
// text, and the rule that it hits; a line after a join says which branch won;
// then come the answers of the rules and the verdict. The form is for people
// and may change.
func Explain(err error, rules ...Rule) string {
	var t trace
	v := judge(err, rules, &t)
	var b strings.Builder
	t.writeTree(&b)
	if len(t.asked) == 0 && len(rules) > 0 && err != nil {
		b.WriteString("user rules: not asked\n")
	}
	for i, answer := range t.asked {
		fmt.Fprintf(&b, "user rule %d: %s\n", i+1, outcome(answer))
	}
	b.WriteString("verdict: " + v.describe())
	return b.String()
}

func outcome(v Verdict) string {
	switch {
	case v.Class == "" && v.Rule != "":
		return "no match, because " + v.Rule
	case v.Class == "":
		return "no match"
	case v.Rule == "":
		return v.Class + ", because no rule matches"
	}
	return fmt.Sprintf("%s by %q", v.Class, v.Rule)
}

func (t *trace) writeTree(b *strings.Builder) {
	var joins []step // that are not closed yet
	closeDownTo := func(depth int) {
		for len(joins) > 0 && joins[len(joins)-1].depth >= depth {
			last := joins[len(joins)-1]
			joins = joins[:len(joins)-1]
			fmt.Fprintf(b, "%s=> joined: %s\n", indent(last.depth), outcome(last.joined))
		}
	}
	for i, s := range t.steps {
		closeDownTo(s.depth)
		if i == maxExplainLines {
			fmt.Fprintf(b, "and %d more errors\n", len(t.steps)-i)
			break
		}
		fmt.Fprintf(b, "%s%s: %s%s\n", indent(s.depth), typeName(s.err), errorText(s.err), s.hit())
		if s.joined.Class != "" {
			joins = append(joins, s)
		}
	}
	closeDownTo(0)
	if t.cut {
		fmt.Fprintf(b, "the walk ended at %d errors or a depth of %d: the rest is unknown\n", maxNodes, maxDepth)
	}
}

func indent(depth int) string { return strings.Repeat("  ", min(depth, maxIndent)) }

// hit says which rule the error itself hit.
func (s step) hit() string {
	switch {
	case s.own != nil && s.own.rank > rankNone:
		return " => " + outcome(s.own.Verdict)
	case s.leaf:
		return " => no rule"
	}
	return ""
}

func typeName(err error) string {
	if m, ok := err.(*mark); ok {
		return "classify." + m.name
	}
	return fmt.Sprintf("%T", err)
}

// errorText is the text of err on one line, whatever its Error method does.
func errorText(err error) (s string) {
	defer func() {
		if p := recover(); p != nil {
			s = "(its Error method panics)"
		}
	}()
	return oneLine(cut(err.Error(), maxExplainText))
}

// oneLine replaces what would break a line or steer a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

func (v Verdict) describe() string {
	if v.Class == "" {
		return "none, because the error is nil"
	}
	s := outcome(v)
	if v.Code != "" {
		s += ", code " + oneLine(v.Code)
	}
	if v.Ambiguous {
		s += ", may have had its effect"
	}
	if v.RetryAfter > 0 {
		s += ", retry after " + v.RetryAfter.String()
	}
	if v.MaxAttempts > 0 {
		s += ", runs at most " + strconv.Itoa(v.MaxAttempts)
	}
	if v.Deferred {
		s += ", deferred"
	}
	if v.Reason != "" {
		s += ", reason " + v.Reason
	}
	return s
}
