package sqstest

import (
	"container/list"
	"slices"
	"strconv"
	"strings"
	"time"
)

type receiveRequest struct {
	target
	AttributeNames              []string
	MaxNumberOfMessages         *int
	MessageAttributeNames       []string
	MessageSystemAttributeNames []string
	ReceiveRequestAttemptID     *string `json:"ReceiveRequestAttemptId"`
	VisibilityTimeout           *int
	WaitTimeSeconds             *int
}

type receiveResult struct {
	Messages []received `json:",omitempty"`
}

// received is one message on the wire.
type received struct {
	MessageID              string `json:"MessageId"`
	ReceiptHandle          string
	MD5OfBody              string
	Body                   string
	Attributes             map[string]string    `json:",omitempty"`
	MD5OfMessageAttributes string               `json:",omitempty"`
	MessageAttributes      map[string]attribute `json:",omitempty"`
}

// A waiter is an open long poll. It outlives the request of a client that goes
// away: until its time is over it takes messages that nobody gets.
type waiter struct {
	queue      *queue
	in         *receiveRequest
	most       int
	visibility time.Duration
	until      time.Time
	gone       bool
	result     chan poll
	element    *list.Element
}

// A poll is how a long poll ends.
type poll struct {
	messages []received
	err      error
}

func (s *Server) receiveMessage(c *call, in *receiveRequest) (any, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	var out []received
	var w *waiter
	var timer *sleeper
	err := s.with(in.QueueURL, func(q *queue, now time.Time) error {
		if in.ReceiveRequestAttemptID != nil && !q.fifo {
			return invalid("ReceiveRequestAttemptId", *in.ReceiveRequestAttemptID, notForThisType)
		}
		visibility := seconds(in.VisibilityTimeout, q.settings.visibility)
		wait := seconds(in.WaitTimeSeconds, q.settings.wait)
		most := number(in.MaxNumberOfMessages, 1)
		if wait == 0 && !q.fifo && q.inFlight >= s.options.InFlightLimit {
			return fail("OverLimit", "Too many messages in flight. The limit of this queue is %d.", s.options.InFlightLimit)
		}
		out = q.collect(in, now, most, visibility)
		if len(out) == 0 && wait > 0 {
			w = &waiter{queue: q, in: in, most: most, visibility: visibility, until: now.Add(wait), result: make(chan poll, 1)}
			w.element = q.waiters.PushBack(w)
			q.polls++
			timer = s.sleeper(w.until, now)
		}
		return nil
	})
	if w != nil {
		out, err = s.await(c, w, timer)
	}
	if err != nil {
		return nil, err
	}
	if c.fault != nil && c.fault.Corrupt {
		corruptBodies(out, c.fault)
	}
	return &receiveResult{Messages: out}, nil
}

// await waits for a long poll to end.
func (s *Server) await(c *call, w *waiter, timer *sleeper) ([]received, error) {
	var end poll
	select {
	case end = <-w.result:
	case <-timer.timer.C:
	case <-c.ctx.Done():
		end.err = errCut
	case <-s.done:
		end.err = errCut
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(timer)
	now := s.now()
	w.queue.tick(now)
	s.touch(w.queue)
	select {
	case end = <-w.result: // it came while the poll ended
	default:
		w.queue.giveUp(w, now)
	}
	s.flush(now)
	return end.messages, end.err
}

// giveUp has no client wait for a long poll any more. Before its time is over
// the queue does not notice.
func (q *queue) giveUp(w *waiter, now time.Time) {
	if w.element == nil {
		return
	}
	w.gone = true
	q.polls--
	if w.until.After(now) {
		q.report.Cancelled++
	} else {
		q.drop(w)
	}
}

// drop ends a long poll for the queue.
func (q *queue) drop(w *waiter) {
	q.waiters.Remove(w.element)
	w.element = nil
	if !w.gone {
		q.polls--
	}
}

// collect receives messages for a request, in the form of the wire.
func (q *queue) collect(in *receiveRequest, now time.Time, most int, visibility time.Duration) []received {
	attempt := in.ReceiveRequestAttemptID
	var messages []*message
	if attempt != nil {
		messages = q.repeat(*attempt, now, visibility)
	}
	if messages == nil {
		messages = q.take(now, most, visibility)
		if attempt != nil && len(messages) > 0 {
			q.attempted(*attempt, now, messages)
		}
	}
	out := make([]received, 0, len(messages))
	for _, m := range messages {
		out = append(out, q.render(m, in))
	}
	return out
}

// serve hands out to open polls what can be received at that time.
func (q *queue) serve(at time.Time) {
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*waiter)
		next := e.Next()
		if w.until.Before(at) {
			if w.gone {
				q.drop(w)
			}
		} else {
			out := q.collect(w.in, at, w.most, w.visibility)
			if len(out) == 0 {
				return
			}
			q.drop(w)
			w.result <- poll{messages: out}
		}
		e = next
	}
}

// arm sets the alarm for what comes due next while polls are open.
func (q *queue) arm(now time.Time) {
	switch {
	case len(q.due.items) == 0 || q.polls == 0 || q.server.closed:
		q.disarm()
	case q.alarm == nil:
		q.alarm = time.AfterFunc(q.due.first().due.Sub(now), q.ring)
	default:
		q.alarm.Reset(q.due.first().due.Sub(now))
	}
}

func (q *queue) disarm() {
	if q.alarm != nil {
		q.alarm.Stop()
	}
}

// ring does what came due.
func (q *queue) ring() {
	s := q.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := s.now()
	q.tick(now)
	s.touch(q)
	s.flush(now)
}

// render writes a message as the request wants it.
func (q *queue) render(m *message, in *receiveRequest) received {
	out := received{
		MessageID:     m.id,
		ReceiptHandle: q.handle(m).String(),
		MD5OfBody:     m.bodySum,
		Body:          m.body,
		Attributes:    m.system(in),
	}
	out.MessageAttributes = selectAttributes(m.attributes, in.MessageAttributeNames)
	if len(out.MessageAttributes) == len(m.attributes) {
		out.MD5OfMessageAttributes = m.attributesSum
	} else {
		out.MD5OfMessageAttributes = sumAttributes(out.MessageAttributes)
	}
	return out
}

// system returns the system attributes that were asked for.
func (m *message) system(in *receiveRequest) map[string]string {
	if len(in.AttributeNames) == 0 && len(in.MessageSystemAttributeNames) == 0 {
		return nil
	}
	out := make(map[string]string, 9)
	wanted := func(name string) bool {
		asked := func(names []string) bool { return slices.Contains(names, "All") || slices.Contains(names, name) }
		return asked(in.MessageSystemAttributeNames) || asked(in.AttributeNames)
	}
	put := func(name, value string) {
		if value != "" && wanted(name) {
			out[name] = value
		}
	}
	put("SenderId", senderID)
	put("SentTimestamp", strconv.FormatInt(m.sent.UnixMilli(), 10))
	put("ApproximateReceiveCount", strconv.Itoa(m.receives))
	put("ApproximateFirstReceiveTimestamp", strconv.FormatInt(m.first.UnixMilli(), 10))
	put("MessageGroupId", m.group)
	put("MessageDeduplicationId", m.dedup)
	put("SequenceNumber", sequenceText(m.sequence))
	put("AWSTraceHeader", m.trace)
	put("DeadLetterQueueSourceArn", m.source)
	return out
}

const senderID = "AIDASQSTESTSQSTESTSQS"

// selectAttributes returns the message attributes that were asked for, by
// name, by prefix ("trace.*") or all of them.
func selectAttributes(attributes map[string]attribute, names []string) map[string]attribute {
	if len(names) == 0 || len(attributes) == 0 {
		return nil
	}
	if slices.Contains(names, "All") || slices.Contains(names, ".*") {
		return attributes
	}
	out := make(map[string]attribute)
	for name, a := range attributes {
		for _, wanted := range names {
			prefix, wild := strings.CutSuffix(wanted, ".*")
			if name == wanted || wild && strings.HasPrefix(name, prefix) {
				out[name] = a
			}
		}
	}
	return out
}

func (in *receiveRequest) check() error {
	if n := in.MaxNumberOfMessages; n != nil && (*n < 1 || *n > 10) {
		return invalid("MaxNumberOfMessages", *n, "Must be between 1 and 10, if provided.")
	}
	if n := in.WaitTimeSeconds; n != nil && (*n < 0 || *n > 20) {
		return invalid("WaitTimeSeconds", *n, "Must be >= 0 and <= 20, if provided.")
	}
	if n := in.VisibilityTimeout; n != nil && (*n < 0 || *n > maxVisibility) {
		return invalid("VisibilityTimeout", *n, "Must be >= 0 and <= 43200, if provided.")
	}
	if id := in.ReceiveRequestAttemptID; id != nil && !printable(*id) {
		return invalid("ReceiveRequestAttemptId", *id, idRule)
	}
	return nil
}

// seconds is an optional number of seconds.
func seconds(n *int, otherwise time.Duration) time.Duration {
	if n == nil {
		return otherwise
	}
	return time.Duration(*n) * time.Second
}

func number(n *int, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return *n
}
