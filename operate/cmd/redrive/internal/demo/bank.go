package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// order is the body of a message.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	Currency string `json:"currency"`
	Card     string `json:"card"`
}

// bank is a payment server on loopback. Since this morning's release it refuses
// yen, until somebody mends it.
type bank struct {
	url    string
	server *http.Server
	served sync.WaitGroup
	asked  chan struct{} // closed by the first charge
	first  sync.Once
	opened time.Time

	mu      sync.Mutex
	mended  bool
	charged map[string]int // charges by order
}

func openBank(address string) (*bank, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the payment server needs %s: %w", address, err)
	}
	b := &bank{url: "http://" + listener.Addr().String(), asked: make(chan struct{}), charged: map[string]int{}, opened: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", b.charge)
	mux.HandleFunc("POST /mend", b.mend)
	mux.HandleFunc("POST /mails", b.mail)
	b.server = &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	b.served.Go(func() { _ = b.server.Serve(listener) })
	return b, nil
}

func (b *bank) close() {
	_ = b.server.Close()
	b.served.Wait()
}

func (b *bank) mend(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mended = true
	fmt.Fprintln(w, "the payment server takes yen again")
}

func (b *bank) charge(w http.ResponseWriter, r *http.Request) {
	b.first.Do(func() { close(b.asked) })
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o); err != nil {
		problem(w, http.StatusBadRequest, "no charge", err.Error())
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case o.Currency == "JPY" && !b.mended:
		problem(w, http.StatusUnprocessableEntity, "unknown currency", "no minor unit of JPY in table currencies_v2")
	case o.Card == declined:
		problem(w, http.StatusPaymentRequired, "card declined", "the bank of customer "+o.Customer+" declined order "+o.ID)
	default:
		b.charged[o.ID]++
		w.WriteHeader(http.StatusNoContent)
	}
}

// mail takes a mail. In the second third of each minute it is out of order.
func (b *bank) mail(w http.ResponseWriter, _ *http.Request) {
	if into := time.Since(b.opened) % time.Minute; 20*time.Second <= into && into < 40*time.Second {
		problem(w, http.StatusServiceUnavailable, "out of order", "the mail server is out of order for 20 s of each minute")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// problem answers with an RFC 9457 problem.
func problem(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"title": title, "detail": detail})
}
