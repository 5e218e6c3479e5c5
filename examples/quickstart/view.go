package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/flow"
)

// view shows the job while it runs: a few lines redrawn in place on a
// terminal, otherwise a line every few seconds. It lives on the events of the
// consumer; the report does not.
type view struct {
	out   io.Writer
	live  bool
	color bool

	mu      sync.Mutex
	handled int
	retries int
	dead    int
	due     map[string]time.Time // of messages that wait for their retry
	held    map[string]bool      // those of due that wait in the process
	aside   bool                 // it was said that orders are put aside
	limiter *flow.Limiter

	drawn   bool
	samples []sample // of the last rateSpan
}

const (
	liveTick  = 200 * time.Millisecond
	plainTick = 2 * time.Second
	rateSpan  = 2 * time.Second
)

func newView(out io.Writer, live bool, limiter *flow.Limiter) *view {
	return &view{
		out: out, live: live, color: live && os.Getenv("NO_COLOR") == "", limiter: limiter,
		due: map[string]time.Time{}, held: map[string]bool{},
	}
}

// isTerminal reports whether w is a terminal that can redraw lines.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Observe implements consumer.Observer.
func (v *view) Observe(_ context.Context, e consumer.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e.Kind {
	case consumer.EventPaused:
		v.say("%s: %v", e.Dependency, e.Err)
	case consumer.EventResumed:
		v.say("%s: the payment server serves again", e.Dependency)
	}
	if e.Message == nil {
		return
	}
	id := e.Message.ID
	switch e.Kind {
	case consumer.EventSucceeded:
		v.handled++
	case consumer.EventDeadLettered:
		v.dead++
	case consumer.EventFailed:
		if e.Decision.Retry {
			v.retries++
			v.due[id] = e.Meta.DueAt
		}
	case consumer.EventDeferred:
		v.due[id] = e.Meta.DueAt
		if e.Decision.Reason == "poison" && !v.aside {
			v.aside = true
			v.say("orders are put aside: %v", e.Err)
		}
	case consumer.EventHeld:
		v.held[id] = true
	case consumer.EventStarted, consumer.EventLeaseLost:
		delete(v.due, id)
		delete(v.held, id)
	case consumer.EventSettled:
		delete(v.held, id)
		if e.Action == brokers.Release {
			delete(v.due, id)
		}
	}
}

// limitOf says how many orders may run at once.
func limitOf(s flow.Status) string {
	if s.Limit < 1 {
		return fmt.Sprintf("one in %.1f s", s.Interval.Seconds())
	}
	return fmt.Sprintf("%d of %d", int(s.Limit), s.Slots)
}

// say writes a line between the frames of a log. mu is held.
func (v *view) say(format string, args ...any) {
	if !v.live {
		fmt.Fprintf(v.out, "         "+format+"\n", args...)
	}
}

// frame is what the view shows at one moment.
type frame struct {
	elapsed        time.Duration
	mood           mood
	total          int
	handled, dead  int
	retries        int
	held, inBroker int // that wait for their due time
	nextDue        time.Duration
	rate           float64 // finished a second
	limit          string  // how many orders may run at once
}

// run shows frames until ctx ends.
func (v *view) run(ctx context.Context, broker *memory.Broker, b *bank, total int) {
	tick := plainTick
	if v.live {
		tick = liveTick
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		last := ctx.Err() != nil
		mood, elapsed := b.now()
		v.show(v.frame(elapsed, mood, total, broker.Stats(topic).Delayed))
		if last {
			return
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (v *view) frame(elapsed time.Duration, m mood, total, inBroker int) frame {
	f := frame{elapsed: elapsed, mood: m, total: total, inBroker: inBroker}
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	f.handled, f.dead, f.retries = v.handled, v.dead, v.retries
	f.limit = limitOf(v.limiter.Adjust(now, flow.Change{}))
	for id, due := range v.due {
		wait := due.Sub(now)
		if wait <= 0 {
			continue // it waits for a free slot
		}
		if v.held[id] {
			f.held++
		}
		if f.nextDue == 0 || wait < f.nextDue {
			f.nextDue = wait
		}
	}
	f.rate = v.rate(f.elapsed, f.handled+f.dead)
	return f
}

// sample is how many messages were finished at some time.
type sample struct {
	at       time.Duration
	finished int
}

// rate is how many messages a second were finished in the last rateSpan.
func (v *view) rate(now time.Duration, finished int) float64 {
	v.samples = append(v.samples, sample{now, finished})
	for len(v.samples) > 2 && now-v.samples[1].at >= rateSpan {
		v.samples = v.samples[1:]
	}
	first := v.samples[0]
	if now == first.at {
		return 0
	}
	return float64(finished-first.finished) / (now - first.at).Seconds()
}

func (v *view) show(f frame) {
	if !v.live {
		fmt.Fprintln(v.out, f.line())
		return
	}
	var b strings.Builder
	lines := f.lines(v.paint)
	if v.drawn {
		fmt.Fprintf(&b, "\x1b[%dA", len(lines))
	}
	b.WriteString("\x1b[?7l") // a narrow terminal cuts lines instead of wrapping them
	for _, line := range lines {
		b.WriteString("\r\x1b[2K" + line + "\n")
	}
	b.WriteString("\x1b[?7h")
	v.drawn = true
	_, _ = io.WriteString(v.out, b.String())
}

// Colours of the terminal.
const (
	green  = 32
	yellow = 33
	red    = 31
	bold   = 1
)

func (v *view) paint(code int, s string) string {
	if !v.color {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, s)
}

// lines is the frame for a terminal.
func (f frame) lines(paint func(int, string) string) []string {
	done := f.handled + f.dead
	filled := bar(done, f.total, barWidth)
	rest := strings.Repeat("░", barWidth-utf8.RuneCountInString(filled))
	weather := green
	if f.mood != healthy {
		weather = red
	}
	row := func(label string, color, n int, note string) string {
		return fmt.Sprintf("  %-9s%s   %s", label, paint(color, fmt.Sprintf("%7s", thousands(n))), note)
	}
	return []string{
		"  payment server: " + paint(weather, f.mood.String()),
		"  runs at once:   " + f.limit,
		"",
		fmt.Sprintf("  %s%s %3d %%  %s", paint(green, filled), rest, 100*done/f.total, brief(f.elapsed)),
		"",
		row("handled", bold, f.handled, fmt.Sprintf("%.0f a second", f.rate)),
		row("waiting", yellow, f.held+f.inBroker, f.waits()),
		row("retried", bold, f.retries, "times"),
		row("dead", red, f.dead, "in the topic "+deadTopic),
	}
}

func (f frame) waits() string {
	if f.held+f.inBroker == 0 {
		return "for a retry"
	}
	return fmt.Sprintf("for a retry: %d held here, %d in the broker, next due in %.2f s", f.held, f.inBroker, f.nextDue.Seconds())
}

// line is the frame for a log.
func (f frame) line() string {
	waiting := thousands(f.held + f.inBroker)
	if f.nextDue > 0 {
		waiting += fmt.Sprintf(" (next due in %.2f s)", f.nextDue.Seconds())
	}
	return fmt.Sprintf("%7s  handled %s, waiting %s, retried %s, dead %s, %.0f a second; payment server: %s; runs at once: %s", brief(f.elapsed),
		thousands(f.handled), waiting, thousands(f.retries), thousands(f.dead), f.rate, f.mood, f.limit)
}
