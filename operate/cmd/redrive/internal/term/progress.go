package term

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	lineEvery = 5 * time.Second        // where lines stay
	liveEvery = 100 * time.Millisecond // where they are written again
	barWidth  = 20
	telling   = 10 // a part of so many tells how long the rest takes
	clearLine = "\r\x1b[K"
)

// Progress shows on the stream of messages how far a command has come: in one
// line that is written again and again on a terminal, or else in a line every 5 s.
// It is safe for concurrent use.
type Progress struct {
	mu sync.Mutex

	streams Streams
	what    string
	total   int
	began   time.Time
	next    time.Time
	first   int // what was done before
	started bool
}

// NewProgress begins to show how many of total things, such as "letters", are
// done; 0 means that nobody knows how many there are.
func NewProgress(s Streams, what string, total int, now time.Time) *Progress {
	p := &Progress{streams: s, what: Safe(what), total: total, began: now, next: now.Add(lineEvery)}
	if s.Live > 0 {
		p.next = now
	}
	return p
}

// Set says how many are done by now. What the first call says was done before. It
// may be called as often as you like, and should be once a second also if nothing
// happens.
func (p *Progress) Set(done int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.first, p.started = done, true
	}
	if now.Before(p.next) {
		return
	}
	line := p.line(done, now.Sub(p.began))
	if p.streams.Live > 0 {
		p.next = now.Add(liveEvery)
		fmt.Fprint(p.streams.Err, clearLine+Fit(line, p.streams.Live-1))
		return
	}
	p.next = now.Add(lineEvery)
	fmt.Fprintln(p.streams.Err, line)
}

// Close removes the line that was written again and again, so that what is
// written next has a line of its own.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// Write writes lines that stay, of messages.
func (p *Progress) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.streams.Err.Write(lines)
}

func (p *Progress) clear() {
	if p.streams.Live > 0 {
		fmt.Fprint(p.streams.Err, clearLine)
	}
}

func (p *Progress) line(done int, took time.Duration) string {
	rate := 0.0
	if took > 0 {
		rate = float64(done-p.first) / took.Seconds()
	}
	line := fmt.Sprintf("%d %s, %.0f/s", done, p.what, rate)
	if p.total > 0 {
		line = fmt.Sprintf("%d of %d %s, %.0f/s", done, p.total, p.what, rate)
	}
	// What has only begun says little of the rest: a job begins with small waves.
	if left := p.total - done; left > 0 && rate > 0 && (done-p.first)*telling >= p.total {
		line += ", " + time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second).String() + " left"
	}
	if p.streams.Live > 0 && p.total > 0 {
		full := barWidth * min(done, p.total) / p.total
		line = "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] " + line
	}
	return line
}
