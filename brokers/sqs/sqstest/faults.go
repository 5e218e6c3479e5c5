package sqstest

import (
	"net/http"
	"slices"
	"time"
)

// A Fault is something that goes wrong with calls. Operation, Queue, After and
// Times say with which; the rest says what. Latency, Cut, and an error (Code
// or Status) may come together, in this order. The zero value spoils nothing.
type Fault struct {
	Operation string // such as "ReceiveMessage"; "" is any
	Queue     string // the name of a queue; "" is any
	After     int    // so many calls that match are let pass first
	Times     int    // the number of calls after that; 0 is all

	// AfterEffect has the fault come when the call has done its work already:
	// messages are sent, received or deleted, and only the answer is slow,
	// lost or an error. By default the call does nothing.
	AfterEffect bool

	// Latency is waited for, on the clock of the server. If the client goes
	// away meanwhile, a call that has not had its effect yet will not have it.
	Latency time.Duration

	// Cut closes the connection without an answer.
	Cut bool

	// Code is the error that is answered, in either spelling, such as
	// "RequestThrottled" or "AWS.SimpleQueueService.NonExistentQueue".
	Code string

	// Status is the HTTP status of the error; 0 is that of the Code. Without a
	// Code it is an answer without a body, as of a proxy.
	Status int

	// Message is the text of the error.
	Message string

	// Entries are the indices of those entries of a batch that fail, while
	// the others succeed and the call too. Cut and Status do not count then.
	// The default Code is "InternalError".
	Entries []int

	// Corrupt makes bodies differ from their MD5: those received, and those
	// that a send claims to have stored. With Entries, only these.
	Corrupt bool
}

type activeFault struct {
	Fault
	seen int
}

// Inject makes calls fail from now on. The first fault that matches a call is
// the one that it suffers. remove ends the fault; calls that suffer it already
// go on.
func (s *Server) Inject(f Fault) (remove func()) {
	f.Entries = slices.Clone(f.Entries)
	active := &activeFault{Fault: f}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, active)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(f *activeFault) bool { return f == active })
	}
}

// faultFor finds the fault of a call. The caller holds s.mu.
func (s *Server) faultFor(operation, queue string) *Fault {
	for _, f := range s.faults {
		if f.Operation != "" && f.Operation != operation || f.Queue != "" && f.Queue != queue {
			continue
		}
		f.seen++
		if f.seen > f.After && (f.Times == 0 || f.seen <= f.After+f.Times) {
			return &f.Fault
		}
	}
	return nil
}

// suffer does what a fault does to a whole call.
func (s *Server) suffer(c *call) error {
	f := c.fault
	if f.Latency > 0 && !s.pause(c.ctx, f.Latency) {
		return errCut
	}
	switch {
	case len(f.Entries) > 0 || f.Corrupt:
		return nil
	case f.Cut:
		return errCut
	case f.Code == "" && f.Status == 0:
		return nil
	}
	return f.error()
}

// error is the error of a fault.
func (f *Fault) error() *apiError {
	e := &apiError{message: f.Message}
	switch {
	case f.Code != "":
		e.kind = kindOf(f.Code)
	case f.Status == 0 || len(f.Entries) > 0:
		e.kind = kindOf("InternalError")
	}
	if f.Status != 0 {
		e.kind.status = f.Status
	}
	if e.message == "" {
		e.message = http.StatusText(e.kind.status)
	}
	return e
}

// entry returns the error of an entry of a batch, nil if it has none.
func (f *Fault) entry(i int) error {
	if f == nil || f.Corrupt || !slices.Contains(f.Entries, i) {
		return nil
	}
	return f.error()
}

// corrupts reports whether the fault spoils the message of that index.
func (f *Fault) corrupts(i int) bool {
	return f != nil && f.Corrupt && (len(f.Entries) == 0 || slices.Contains(f.Entries, i))
}

// corruptBodies spoils messages on their way to the client.
func corruptBodies(messages []received, f *Fault) {
	for i := range messages {
		if f.corrupts(i) {
			messages[i].Body = "corrupt " + messages[i].Body
		}
	}
}
