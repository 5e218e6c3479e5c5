package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// mood is what the payment server is like at some time of the day.
type mood int

const (
	healthy   mood = iota
	outage         // 503 to everybody
	limiting       // 429 with Retry-After to two in three
	resetting      // two in three connections break, half of them after the charge
	slow           // two in three answers come after the client has hung up
)

var moods = [...]string{"healthy", "503 outage", "429 rate limit", "connection resets", "slow answers"}

// String names the mood for people.
func (m mood) String() string { return moods[m] }

// day is the script of the server.
type day struct {
	second   time.Duration // how long a second of the script takes
	patience time.Duration // how long the worker waits for an answer
	scenes   []scene       // in the order of from
}

type scene struct {
	from float64 // seconds since the start
	mood mood
}

func badDay() day {
	return day{second: time.Second, patience: time.Second, scenes: []scene{
		{0, healthy}, {3, outage}, {6.5, healthy}, {14, resetting}, {16, healthy},
		{18, slow}, {20, healthy}, {29, limiting}, {31.5, healthy},
	}}
}

// seconds converts from the time of the script.
func (d day) seconds(n float64) time.Duration { return time.Duration(n * float64(d.second)) }

func (d day) mood(elapsed time.Duration) mood {
	now := healthy
	for _, s := range d.scenes {
		if elapsed >= d.seconds(s.from) {
			now = s.mood
		}
	}
	return now
}

// charge is an entry in the books of the bank.
type charge struct {
	order    string
	declined string // why; empty if the money moved
}

// tally counts the requests by what became of them; Requests is their sum.
type tally struct {
	Requests    int `json:"requests"`
	Charged     int `json:"charged"`
	Repeated    int `json:"repeated"` // answered from the books: the key was known
	Declined    int `json:"declined"`
	Rejected    int `json:"rejected"` // not a charge at all
	Unavailable int `json:"status_503"`
	Limited     int `json:"status_429"`
	Reset       int `json:"reset"`
	Slow        int `json:"slow"`

	// AnswersLost counts the resets and slow answers whose charge was made.
	AnswersLost int `json:"answers_lost"`
}

// bank is a payment server on loopback. It keeps its own books: the worker
// has no way to write to them but HTTP.
type bank struct {
	url    string
	day    day
	start  time.Time
	server *http.Server
	served sync.WaitGroup

	mu      sync.Mutex
	count   tally
	charges map[string]charge // by idempotency key
}

// bankPort listens on a port of this machine.
func bankPort() (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the payment server needs a port on loopback: %w", err)
	}
	return listener, nil
}

func openBank(d day, listener net.Listener) *bank {
	b := &bank{
		url:     "http://" + listener.Addr().String(),
		day:     d,
		start:   time.Now(),
		charges: map[string]charge{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", b.serve)
	b.server = &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	b.served.Go(func() { _ = b.server.Serve(listener) })
	return b
}

func (b *bank) close() {
	_ = b.server.Close()
	b.served.Wait()
}

// now returns the mood of this moment and the time since the start.
func (b *bank) now() (mood, time.Duration) {
	elapsed := time.Since(b.start)
	return b.day.mood(elapsed), elapsed
}

// serve is POST /charges.
func (b *bank) serve(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	n := b.arrive()
	var o order
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLine)).Decode(&o)
	if err != nil || key == "" || o.Cents <= 0 {
		b.note(&b.count.Rejected)
		problem(w, http.StatusUnprocessableEntity, "invalid charge", "need an Idempotency-Key and a positive amount of cents")
		return
	}
	pause(r.Context(), b.day.seconds(0.13+0.01*float64(n*7%11)))
	switch m, _ := b.now(); {
	case m == outage:
		b.note(&b.count.Unavailable)
		problem(w, http.StatusServiceUnavailable, "out of order", "our database is failing over")
	case m == limiting && n%3 != 0:
		b.limit(w, n)
	case m == resetting && n%3 != 0:
		b.reset(w, key, o, n%2 == 0)
	case m == slow && n%3 != 0:
		b.book(key, o, &b.count.Slow)
		pause(r.Context(), 2*b.day.patience)
	default:
		b.answer(w, key, o)
	}
}

// arrive counts a request and returns its number.
func (b *bank) arrive() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count.Requests++
	return b.count.Requests
}

func (b *bank) note(counter *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*counter++
}

// answer books a charge and tells the client.
func (b *bank) answer(w http.ResponseWriter, key string, o order) {
	if c := b.book(key, o, nil); c.declined != "" {
		problem(w, http.StatusPaymentRequired, c.declined, "the bank of customer "+o.Customer+" declined order "+o.ID)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"charge": "ch_" + key})
}

// book enters a charge once per key and returns what the books then say. The
// request counts as lost if that is set, otherwise as what was booked.
func (b *bank) book(key string, o order, lost *int) charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, known := b.charges[key]
	if !known {
		reason, declined := strings.CutPrefix(o.Card, "tok_declined_")
		c = charge{order: o.ID}
		if declined {
			c.declined = strings.ReplaceAll(reason, "_", " ")
		}
		b.charges[key] = c
	}
	switch {
	case lost != nil:
		*lost++
		if !known && c.declined == "" {
			b.count.AnswersLost++
		}
	case c.declined != "":
		b.count.Declined++
	case known:
		b.count.Repeated++
	default:
		b.count.Charged++
	}
	return c
}

// limit tells the client to come back later, in either form of RFC 9110.
func (b *bank) limit(w http.ResponseWriter, n int) {
	wait := max(b.day.seconds(float64(1+n%3)), time.Second).Round(time.Second)
	now := time.Now()
	b.note(&b.count.Limited)
	if n%2 == 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(wait.Seconds())))
	} else {
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		w.Header().Set("Retry-After", now.Add(wait).UTC().Format(http.TimeFormat))
	}
	problem(w, http.StatusTooManyRequests, "too many requests", "")
}

// reset breaks the connection, before the charge or after it.
func (b *bank) reset(w http.ResponseWriter, key string, o order, charged bool) {
	if charged {
		b.book(key, o, &b.count.Reset)
	} else {
		b.note(&b.count.Reset)
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST instead of FIN
	}
	_ = conn.Close()
}

// problem answers with an RFC 9457 problem.
func problem(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"title": title, "detail": detail})
}

// pause waits for d, or until the client has hung up.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
