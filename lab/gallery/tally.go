package gallery

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// Report is what became of the messages.
type Report struct {
	All     Figures
	Streams map[string]Figures

	// DoneAfter is how long after the incident all messages from before its end
	// were served or dead; Undone, how many never were.
	DoneAfter time.Duration
	Undone    int

	// Amplification is runs in the incident by messages published in it.
	Amplification float64

	// Peak is the most runs in a minute after the incident, by what is published
	// in a minute on average in it.
	Peak float64

	// Load is the runs in each second from the first run after the incident on.
	Load [rampFor]int

	// Recovered is how long after the incident the last message was done that
	// waited longer than 2 s.
	Recovered time.Duration

	Collapses int     // of a dependency that a load can break
	Calls     float64 // of the broker by the workers, per second of the incident

	Unlively []string // what /livez said when it failed, which would have been a restart
}

const (
	rampFor = 600             // seconds
	slow    = 2 * time.Second // a wait that shows in a latency
)

// Figures are those of one stream, or of all.
type Figures struct {
	Published, Served, Runs int
	Dead                    map[string]int // by reason
	Wait                    time.Duration  // the longest, from published to served or dead
	Late                    int            // how many waited longer than 10 s
}

// late is a wait that somebody notices.
const late = 10 * time.Second

// tally counts what happens.
type tally struct {
	Incident
	began    time.Time
	server   Dependency
	finished chan struct{} // closed when every message is done

	mu      sync.Mutex
	streams []count
	done    int
	total   int
	during  int           // runs in the incident
	minutes []int         // runs in each
	last    time.Duration // when a message from before its end was done

	first     time.Duration // the first run after the incident
	load      [rampFor]int  // runs in each second from then on
	slow      time.Duration // when the last message was done that waited for long
	calls     int           // of the broker in the incident
	collapses int
	failures  []string // of /livez
}

// count is what is known about one stream.
type count struct {
	Figures
	messages []progress
}

// progress is that of a message.
type progress struct {
	published time.Duration
	runs      int
	done      bool
}

func newTally(i Incident) *tally {
	t := &tally{
		Incident: i,
		began:    time.Now(),
		finished: make(chan struct{}),
		streams:  make([]count, len(i.Traffic)),
		minutes:  make([]int, (i.end()+i.Watch)/time.Minute+1),
	}
	for n, s := range i.Traffic {
		t.total += s.Load.Count
		t.streams[n].messages = make([]progress, 0, s.Load.Count)
		t.streams[n].Dead = map[string]int{}
	}
	return t
}

func (t *tally) published(stream int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.streams[stream]
	s.Published++
	s.messages = append(s.messages, progress{published: time.Since(t.began)})
}

// runs counts a run of the nth message of a stream.
func (t *tally) runs(stream, nth int) Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, at := &t.streams[stream], time.Since(t.began)
	m := &s.messages[nth]
	draw := rand.New(rand.NewPCG(uint64(nth), uint64(m.runs))).Float64()
	call := Call{On: t.lasts(at), Since: at - t.Warm, Left: t.end() - at, Draw: draw}
	m.runs++
	s.Runs++
	if call.On {
		t.during++
	}
	if at >= t.end() {
		t.ramps(at)
	}
	t.minutes[at/time.Minute]++
	return call
}

// lasts reports whether the incident does.
func (t *tally) lasts(at time.Duration) bool { return t.Warm <= at && at < t.end() }

// ramps counts a run after the incident. mu is held.
func (t *tally) ramps(at time.Duration) {
	if t.first == 0 {
		t.first = at
	}
	if s := (at - t.first) / time.Second; s < rampFor {
		t.load[s]++
	}
}

// asked counts a call of the broker, and reports whether the incident lasts.
func (t *tally) asked() (lasts bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lasts = t.lasts(time.Since(t.began)); lasts {
		t.calls++
	}
	return lasts
}

// collapsed counts a dependency that broke.
func (t *tally) collapsed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.collapses++
}

// unlively notes that /livez failed.
func (t *tally) unlively(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, why)
}

// Observe implements consumer.Observer.
func (t *tally) Observe(_ context.Context, e consumer.Event) {
	acked := e.Kind == consumer.EventSettled && e.Action == brokers.Ack
	if !acked && e.Kind != consumer.EventDeadLettered {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	stream, n := place(e.Message)
	s := &t.streams[stream]
	m := &s.messages[n]
	if m.done {
		return // the original of a dead letter
	}
	m.done = true
	if e.Kind == consumer.EventDeadLettered {
		s.Dead[e.DeadLetter.Reason]++
	} else {
		s.Served++
	}
	at := time.Since(t.began)
	s.waited(at - m.published)
	if at-m.published > slow {
		t.slow = at
	}
	if m.published < t.end() {
		t.last = max(t.last, at)
	}
	if t.done++; t.done == t.total {
		close(t.finished)
	}
}

func (f *Figures) waited(d time.Duration) {
	f.Wait = max(f.Wait, d)
	if d > late {
		f.Late++
	}
}

func (t *tally) result() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Report{
		Streams:   map[string]Figures{},
		DoneAfter: max(0, t.last-t.end()),
		Load:      t.load,
		Recovered: max(0, t.slow-t.end()),
		Collapses: t.collapses,
		Calls:     float64(t.calls) / t.Length.Seconds(),
		Unlively:  t.failures,
	}
	now := time.Since(t.began)
	during := 0
	for i := range t.streams {
		s := &t.streams[i]
		for _, m := range s.messages {
			before := m.published < t.end()
			if before && m.published >= t.Warm {
				during++
			}
			if m.done {
				continue
			}
			s.waited(now - m.published)
			if before {
				r.Undone++
			}
		}
		r.Streams[t.Traffic[i].Name] = s.Figures
		r.All.add(s.Figures)
	}
	r.Amplification = float64(t.during) / float64(max(1, during))
	after := slices.Max(t.minutes[t.end()/time.Minute:])
	r.Peak = float64(after) * t.Length.Minutes() / float64(max(1, during))
	return r
}

// add takes in those of another stream.
func (f *Figures) add(g Figures) {
	f.Published += g.Published
	f.Served += g.Served
	f.Runs += g.Runs
	f.Late += g.Late
	f.Wait = max(f.Wait, g.Wait)
	if f.Dead == nil {
		f.Dead = map[string]int{}
	}
	for reason, n := range g.Dead {
		f.Dead[reason] += n
	}
}

// dead is how many are dead, for whatever reason.
func (f Figures) dead() (n int) {
	for _, of := range f.Dead {
		n += of
	}
	return n
}
