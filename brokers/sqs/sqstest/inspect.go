package sqstest

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// A Call is one request that reached the server.
type Call struct {
	Operation string
	Queue     string // its name; "" for operations without one
	Time      time.Time
	Request   json.RawMessage // as sent; not to be changed
	Status    int             // of HTTP; 0 while the call goes on, -1 if it got no answer
	Code      string          // of the error, in the spelling of the query protocol
	Failed    int             // entries of a batch
}

// The journal holds the last calls and counts all.
type journal struct {
	calls  []*Call
	bytes  int
	counts map[string]int
}

const (
	maxCalls     = 4096
	maxCallBytes = 16 << 20
)

// begun notes a call and finds its fault.
func (s *Server) begun(c *call, in request, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.record = &Call{Operation: c.operation, Queue: in.queueName(), Time: s.now(), Request: body}
	c.fault = s.faultFor(c.operation, c.record.Queue)
	j := &s.journal
	j.counts[c.operation]++
	j.counts[""]++
	j.calls = append(j.calls, c.record)
	j.bytes += len(body)
	for len(j.calls) > maxCalls || j.bytes > maxCallBytes && len(j.calls) > 1 {
		j.bytes -= len(j.calls[0].Request)
		j.calls[0] = nil
		j.calls = j.calls[1:]
	}
}

// ended notes how a call went.
func (s *Server) ended(c *call, a *answer, out any, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a == nil {
		c.record.Status = -1
		return
	}
	c.record.Status = a.status
	if err != nil {
		c.record.Code = asError(err).kind.query
	} else if batch, ok := out.(*batchResult); ok {
		c.record.Failed = len(batch.Failed)
	}
}

// Calls returns the last 4,096 calls in the order in which they came, or as many
// as have requests of 16 MiB together.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Call, len(s.journal.calls))
	for i, c := range s.journal.calls {
		out[i] = *c
	}
	return out
}

// Count returns how many calls of an operation came since the server started,
// "" for all operations.
func (s *Server) Count(operation string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal.counts[operation]
}

// Queue is what a queue holds at a moment, and what happened to its messages
// since it was created.
type Queue struct {
	Name, URL, ARN string

	Visible  int // ready to be received, in locked FIFO groups too
	InFlight int
	Delayed  int
	Polls    int // long polls that wait for messages

	Sent         int // by producers, without what was deduplicated
	Deduplicated int
	Deleted      int
	Expired      int // by the retention of the queue
	Moved        int // to another queue, by redrive policy

	// Stale counts deletions and changes of visibility with a receipt handle
	// whose visibility timeout was over.
	Stale int

	// Cancelled counts long polls whose client went away before they ended.
	// The queue does not notice: until their time is over they receive
	// messages, which nobody gets and which stay in flight.
	Cancelled int
}

// Queue looks at a queue by its name. Without such a queue the result is zero.
func (s *Server) Queue(name string) Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.current(name)
	if q == nil {
		return Queue{}
	}
	out := q.report
	out.Visible, out.InFlight, out.Delayed, out.Polls = len(q.messages)-q.inFlight-q.delayed, q.inFlight, q.delayed, q.polls
	return out
}

// current returns a queue as it is now. The caller holds s.mu.
func (s *Server) current(name string) *queue {
	now := s.now()
	q := s.queues[name]
	if q != nil {
		q.tick(now)
		s.touch(q)
	}
	s.flush(now)
	return q
}

// Message is a message of a queue.
type Message struct {
	ID         string
	Body       string
	Attributes map[string]string // names and values of message attributes
	Group      string
	DedupID    string
	State      State
	Due        time.Time // when it becomes visible, unless it is
	Sent       time.Time
	Receives   int
}

// Messages returns what a queue holds, in the order in which it was sent. It
// receives nothing.
func (s *Server) Messages(name string) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.current(name)
	if q == nil {
		return nil
	}
	all := slices.SortedFunc(maps.Values(q.messages), bySent)
	out := make([]Message, len(all))
	for i, m := range all {
		out[i] = Message{
			ID: m.id, Body: m.body, Group: m.group, DedupID: m.dedup,
			State: m.state, Sent: m.sent, Receives: m.receives,
			Attributes: make(map[string]string, len(m.attributes)),
		}
		if m.state != Visible {
			out[i].Due = m.due
		}
		for name, a := range m.attributes {
			out[i].Attributes[name] = string(a.value())
		}
	}
	return out
}
