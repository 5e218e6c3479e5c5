package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const barWidth = 40

// text is the report for people.
func (r report) text() string {
	var b strings.Builder
	r.writeAccounts(&b)
	r.writeAttempts(&b)
	r.writeGroups(&b)
	r.writeServer(&b)
	b.WriteString(nextSteps)
	return b.String()
}

const nextSteps = `
What next
  README.md                          what redrive promises, and how to use it
  docs/reference/failures.md         which error does what
  go run ./examples/worker           a complete worker in 30 lines
  go run ./examples/quickstart -h    your own orders, the report as JSON, the log
  docs/explanation/adapters.md       what a broker has to be able to do
`

func (r report) writeAccounts(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n\n", r.headline())
	row := func(label string, n int, note string) {
		line := fmt.Sprintf("  %-14s %7s   %s", label, thousands(n), note)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("read", r.Read, "")
	row("handled", r.Handled, "charged, by the books of the payment server")
	row("dead-lettered", r.DeadLettered, "kept in the topic "+deadTopic+", each with its story")
	if r.Unfinished > 0 {
		row("unfinished", r.Unfinished, "interrupted: still in the queue, which ends with this process")
	}
	row("lost", r.Lost, "")
	row("charged twice", r.Duplicates, "")
	row("too early", r.Early, "retries before they were due")
	if r.ChargedDead > 0 {
		row("note", r.ChargedDead, "dead letters were charged all the same: the answer to their last run got lost")
	}
}

func (r report) headline() string {
	took := fmt.Sprintf(" in %.1f s", r.Seconds)
	switch {
	case r.Lost > 0:
		return fmt.Sprintf("BROKEN: %s lost%s: lines %v", orders(r.Lost), took, r.LostLines[:min(len(r.LostLines), 10)])
	case !r.OK:
		return "BROKEN: no order is lost, but some were charged twice or retried too early" + took
	case r.Unfinished > 0:
		return "Interrupted, and all " + orders(r.Read) + " are accounted for" + took
	}
	return "All " + orders(r.Read) + " are accounted for" + took
}

func (r report) writeAttempts(b *strings.Builder) {
	fmt.Fprintf(b, "\nRuns of the handler per order (%s needed more than one)\n\n", orders(r.Retried))
	most := slices.Max(slices.Collect(maps.Values(r.Attempts)))
	for _, runs := range slices.Sorted(maps.Keys(r.Attempts)) {
		n := r.Attempts[runs]
		fmt.Fprintf(b, "  %3d  %-*s %s\n", runs, barWidth, bar(n, most, barWidth), thousands(n))
	}
}

func (r report) writeGroups(b *strings.Builder) {
	if len(r.Groups) == 0 {
		return
	}
	fmt.Fprintf(b, "\nDead letters by fingerprint, with one example each\n")
	for _, g := range r.Groups {
		e := g.Example
		fmt.Fprintf(b, "\n  %3d  %s\n", g.Count, strings.Join(wrap(safe(g.Error, 200), 72), "\n       "))
		fmt.Fprintf(b, "       reason %s, class %s, fingerprint %s\n", g.Reason, or(g.Class, "none"), g.Fingerprint)
		fmt.Fprintf(b, "       line %d: %s\n", e.Line, safe(e.Body, 60))
		fmt.Fprintf(b, "       %s\n", e.times())
	}
}

// times tells how often and when the example failed.
func (e example) times() string {
	const clock = "15:04:05.000"
	switch {
	case e.FirstFailed.IsZero():
		return "never run"
	case e.FirstFailed.Equal(e.LastFailed):
		return fmt.Sprintf("failed once, at %s", e.FirstFailed.Local().Format(clock))
	}
	return fmt.Sprintf("failed first at %s, last at %s, attempt %d", e.FirstFailed.Local().Format(clock),
		e.LastFailed.Local().Format(clock), e.Attempts)
}

func (r report) writeServer(b *strings.Builder) {
	s := r.Server
	fmt.Fprintf(b, "\nWhat the payment server saw\n\n")
	row := func(n int, what string) { fmt.Fprintf(b, "  %7s  %s\n", thousands(n), what) }
	row(s.Requests, "requests, which are")
	row(s.Charged, "charges, answered")
	row(s.Repeated, "repeats with a known idempotency key: answered, not charged again")
	row(s.Declined, "402 Payment Required: declined cards")
	row(s.Unavailable, "503 Service Unavailable")
	row(s.Limited, "429 Too Many Requests, with a Retry-After")
	row(s.Reset, "connection resets")
	row(s.Slow, "answers later than the client waits")
	row(s.Rejected, "invalid requests")
	if s.AnswersLost > 0 {
		fmt.Fprintf(b, "\n  %s charged behind a reset or a timeout; their idempotency keys kept\n  the retries from charging them again.\n", were(s.AnswersLost))
	}
}

func were(n int) string {
	if n == 1 {
		return "1 order was"
	}
	return orders(n) + " were"
}

func orders(n int) string {
	if n == 1 {
		return "1 order"
	}
	return thousands(n) + " orders"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// bar draws n of most; anything above zero is visible.
func bar(n, most, width int) string {
	if n <= 0 || most <= 0 {
		return ""
	}
	return strings.Repeat("█", max(1, n*width/most))
}

// thousands writes n with commas.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// safe makes hostile text fit for one line of a terminal, at most max
// characters of it.
func safe(s string, max int) string {
	var b strings.Builder
	n := 0
	for _, c := range s {
		if n == max {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(c) {
			c = '·'
		}
		b.WriteRune(c)
		n++
	}
	return b.String()
}

// wrap breaks s between words into lines of at most width characters, if the
// words are that short.
func wrap(s string, width int) []string {
	var lines []string
	line, n := "", 0
	for _, word := range strings.Fields(s) {
		w := utf8.RuneCountInString(word)
		if n > 0 && n+1+w > width {
			lines = append(lines, line)
			line, n = "", 0
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+word, n+w
	}
	return append(lines, line)
}

// brief rounds d for the eye.
func brief(d time.Duration) string {
	return fmt.Sprintf("%.1f s", max(0, d.Seconds()))
}
