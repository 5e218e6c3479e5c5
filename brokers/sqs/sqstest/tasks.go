package sqstest

import (
	"maps"
	"slices"
	"time"
)

// moveRate is how many messages a second a move task moves at most.
const moveRate = 500

type startTaskRequest struct {
	SourceArn                    string
	DestinationArn               *string
	MaxNumberOfMessagesPerSecond *int
}

func (r *startTaskRequest) queueName() string { return arnName(r.SourceArn) }

type taskHandle struct{ TaskHandle string }

func (r *taskHandle) queueName() string { return "" }

type listTasksRequest struct {
	SourceArn  string
	MaxResults *int
}

func (r *listTasksRequest) queueName() string { return arnName(r.SourceArn) }

type listTasksResult struct{ Results []taskResult }

type taskResult struct {
	TaskHandle                        string `json:",omitempty"`
	Status                            string
	SourceArn                         string
	DestinationArn                    *string `json:",omitempty"`
	MaxNumberOfMessagesPerSecond      *int    `json:",omitempty"`
	ApproximateNumberOfMessagesMoved  int
	ApproximateNumberOfMessagesToMove int
	FailureReason                     string `json:",omitempty"`
	StartedTimestamp                  int64
}

type movedResult struct{ ApproximateNumberOfMessagesMoved int }

type sourcesRequest struct {
	target
	page
}

type sourcesResult struct {
	QueueUrls []string `json:"queueUrls"`
	NextToken string   `json:",omitempty"`
}

const (
	running   = "RUNNING"
	completed = "COMPLETED"
	cancelled = "CANCELLED"
	failed    = "FAILED"
)

// A task moves the messages that a dead-letter queue had at its start.
type task struct {
	handle      string
	source      *queue
	destination *string
	rate        *int
	started     time.Time
	todo        []*message
	moved       int
	expected    int
	status      string
	reason      string
}

func arnName(arn string) string {
	if len(arn) < len(arnPrefix) {
		return arn
	}
	return arn[len(arnPrefix):]
}

func (s *Server) startMessageMoveTask(_ *call, in *startTaskRequest) (any, error) {
	if in.SourceArn == "" {
		return nil, missing("SourceArn")
	}
	if n := in.MaxNumberOfMessagesPerSecond; n != nil && (*n < 1 || *n > moveRate) {
		return nil, invalid("MaxNumberOfMessagesPerSecond", *n, "Must be between 1 and 500, if provided.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.moveDue(now)
	source := s.byARN(in.SourceArn)
	if source == nil || in.DestinationArn != nil && s.byARN(*in.DestinationArn) == nil {
		return nil, fail("ResourceNotFoundException", "The resource that you specified for the SourceArn or DestinationArn parameter doesn't exist.")
	}
	source.tick(now)
	if err := s.checkMove(source, in.DestinationArn); err != nil {
		return nil, err
	}
	t := &task{
		handle:      newID(),
		source:      source,
		destination: in.DestinationArn,
		rate:        in.MaxNumberOfMessagesPerSecond,
		started:     now,
		todo:        source.movable(),
		status:      running,
	}
	t.expected = len(t.todo)
	s.tasks = append(s.tasks, t)
	s.moveDue(now)
	s.flush(now)
	return &taskHandle{t.handle}, nil
}

// checkMove checks source and destination of a move task.
func (s *Server) checkMove(source *queue, destination *string) error {
	for _, t := range s.tasks {
		if t.source == source && t.status == running {
			return fail("InvalidParameterValue", "There is already a task running. Only one active task is allowed for a source queue arn at a given time.")
		}
	}
	if len(s.sourcesOf(source)) == 0 {
		return fail("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
	}
	if destination == nil {
		return nil
	}
	switch to := s.byARN(*destination); {
	case to == source:
		return fail("InvalidParameterValue", "Source queue arn and destination queue arn must be different.")
	case to.fifo != source.fifo:
		return fail("InvalidParameterValue", "Source queue and destination queue must be of the same type.")
	}
	return nil
}

// movable returns the visible messages in the order in which they were sent.
func (q *queue) movable() []*message {
	var out []*message
	for _, m := range q.messages {
		if m.state == Visible {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, bySent)
	return out
}

// perSecond is the rate of a task.
func (t *task) perSecond() int { return number(t.rate, moveRate) }

// due is when the next message is moved.
func (t *task) due() time.Time {
	step := t.expected - len(t.todo)
	return t.started.Add(time.Duration(step) * time.Second / time.Duration(t.perSecond()))
}

// moveDue moves what running tasks had to move until now.
func (s *Server) moveDue(now time.Time) {
	for _, t := range s.tasks {
		if t.status == running {
			t.source.tick(now)
		}
		for t.status == running && !t.due().After(now) {
			t.step(s, now)
		}
	}
}

// nextMove is when a running task moves its next message.
func (s *Server) nextMove() (at time.Time, ok bool) {
	for _, t := range s.tasks {
		if t.status == running && (!ok || t.due().Before(at)) {
			at, ok = t.due(), true
		}
	}
	return at, ok
}

// step moves one message, or ends the task. What was received or deleted
// since the task began is passed over.
func (t *task) step(s *Server, now time.Time) {
	if len(t.todo) == 0 {
		t.status = completed
		return
	}
	m := t.todo[0]
	t.todo = t.todo[1:]
	if t.source.messages[m.number] != m || m.state != Visible {
		return
	}
	arn := m.source
	if t.destination != nil {
		arn = *t.destination
	}
	to := s.byARN(arn)
	if to == nil || to == t.source {
		t.status = failed
		t.reason = kindOf("QueueDoesNotExist").query
		return
	}
	t.source.remove(m)
	t.source.total.moved++
	t.moved++
	to.redriven(m, now)
}

// redriven takes a message that a move task brings: a new one, with the
// content of the old.
func (q *queue) redriven(old *message, now time.Time) {
	m := &message{
		id: newID(), body: old.body, bodySum: old.bodySum,
		attributes: old.attributes, attributesSum: old.attributesSum,
		trace: old.trace, group: old.group, dedup: old.dedup,
		sent: now,
	}
	if q.fifo {
		m.sequence = q.server.nextSequence()
	}
	q.put(m, now, 0)
}

func (s *Server) listMessageMoveTasks(_ *call, in *listTasksRequest) (any, error) {
	most := number(in.MaxResults, 1)
	if most < 1 || most > 10 {
		return nil, invalid("MaxResults", most, "Must be between 1 and 10, if provided.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.moveDue(now)
	s.flush(now)
	source := s.byARN(in.SourceArn)
	if source == nil {
		return nil, fail("ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist.")
	}
	out := &listTasksResult{Results: []taskResult{}}
	for _, t := range slices.Backward(s.tasks) {
		if t.source == source && len(out.Results) < most {
			out.Results = append(out.Results, t.result())
		}
	}
	return out, nil
}

func (t *task) result() taskResult {
	out := taskResult{
		Status:                            t.status,
		SourceArn:                         t.source.arn,
		DestinationArn:                    t.destination,
		MaxNumberOfMessagesPerSecond:      t.rate,
		ApproximateNumberOfMessagesMoved:  t.moved,
		ApproximateNumberOfMessagesToMove: t.expected,
		FailureReason:                     t.reason,
		StartedTimestamp:                  t.started.UnixMilli(),
	}
	if t.status == running {
		out.TaskHandle = t.handle
	}
	return out
}

func (s *Server) cancelMessageMoveTask(_ *call, in *taskHandle) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.moveDue(now)
	s.flush(now)
	for _, t := range s.tasks {
		if t.handle != in.TaskHandle {
			continue
		}
		if t.status != running {
			return nil, fail("UnsupportedOperation", "Only active tasks can be cancelled.")
		}
		t.status = cancelled
		return &movedResult{t.moved}, nil
	}
	return nil, fail("ResourceNotFoundException", "The task does not exist.")
}

// sourcesOf returns the URLs of the queues that have their dead letters in q.
func (s *Server) sourcesOf(q *queue) []string {
	var urls []string
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if p := s.queues[name].settings.redrive; p != nil && p.target == q.arn {
			urls = append(urls, s.queues[name].url)
		}
	}
	return urls
}

func (s *Server) listDeadLetterSourceQueues(_ *call, in *sourcesRequest) (any, error) {
	out := &sourcesResult{QueueUrls: []string{}}
	return out, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		urls, token, err := in.page.of(s.sourcesOf(q))
		out.QueueUrls, out.NextToken = append(out.QueueUrls, urls...), token
		return err
	})
}
