package sqstest

import (
	"container/heap"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// queueWait is how long AWS wants to have passed between two purges of a
// queue, and before the name of a deleted queue is used again.
const queueWait = time.Minute

type createRequest struct {
	QueueName  string
	Attributes map[string]string
}

func (r *createRequest) queueName() string { return r.QueueName }

type getURLRequest struct {
	QueueName              string
	QueueOwnerAWSAccountID *string `json:"QueueOwnerAWSAccountId"`
}

func (r *getURLRequest) queueName() string { return r.QueueName }

type urlResult struct {
	QueueURL string `json:"QueueUrl"`
}

type getAttributesRequest struct {
	target
	AttributeNames []string
}

type attributesResult struct {
	Attributes map[string]string `json:",omitempty"`
}

type setAttributesRequest struct {
	target
	Attributes map[string]string
}

type queueRequest struct{ target }

type listRequest struct{ QueueNamePrefix string }

func (*listRequest) queueName() string { return "" }

type listResult struct {
	QueueUrls []string `json:",omitempty"`
}

// plainName reports whether a name is one of a queue or an entry of a batch.
func plainName(name string) bool {
	return name != "" && len(name) <= 80 && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) })
}

// find returns the queue of a URL.
func (s *Server) find(address string) (*queue, error) {
	if address == "" {
		return nil, missing("QueueUrl")
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fail("InvalidAddress", "The address %s is not valid for this endpoint.", address)
	}
	owner, name, ok := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if !ok || u.Host == "" || strings.Contains(name, "/") {
		return nil, fail("InvalidAddress", "The address %s is not valid for this endpoint.", address)
	}
	if q := s.queues[name]; q != nil && owner == account {
		return q, nil
	}
	return nil, errNoQueue()
}

func errNoQueue() error {
	return fail("QueueDoesNotExist", "The specified queue does not exist.")
}

// byARN returns the queue of an ARN, nil if there is none.
func (s *Server) byARN(arn string) *queue {
	name, ok := strings.CutPrefix(arn, arnPrefix)
	if !ok {
		return nil
	}
	return s.queues[name]
}

func (s *Server) createQueue(_ *call, in *createRequest) (any, error) {
	fifo := strings.HasSuffix(in.QueueName, ".fifo")
	if len(in.QueueName) > 80 || !plainName(strings.TrimSuffix(in.QueueName, ".fifo")) {
		return nil, fail("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	for name, value := range in.Attributes {
		in.Attributes[name] = lowerBoolean(value)
	}
	if fifo != (in.Attributes["FifoQueue"] == "true") {
		return nil, fail("InvalidParameterValue", "The name of a FIFO queue ends with the .fifo suffix, and its FifoQueue attribute is true; no other queue has either.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if q := s.queues[in.QueueName]; q != nil {
		for name, value := range in.Attributes {
			if q.settings.texts[name] != value {
				return nil, fail("QueueNameExists", "A queue already exists with the same name and a different value for attribute %s", name)
			}
		}
		return &urlResult{q.report.URL}, nil
	}
	if at, ok := s.deleted[in.QueueName]; ok && now.Sub(at) < queueWait {
		return nil, fail("QueueDeletedRecently", "You must wait 60 seconds after deleting a queue before you can create another with the same name.")
	}
	q := newQueue(s, in.QueueName, now)
	q.fifo = fifo
	var err error
	if q.settings, err = parseSettings(defaults(fifo), in.Attributes, fifo); err != nil {
		return nil, err
	}
	if err := s.checkRedrive(q, q.settings); err != nil {
		return nil, err
	}
	s.queues[q.report.Name] = q
	return &urlResult{q.report.URL}, nil
}

// checkRedrive checks a redrive policy against the dead-letter queue.
func (s *Server) checkRedrive(q *queue, next settings) error {
	if next.redrive == nil {
		return nil
	}
	bad := func(reason string) error { return invalid("RedrivePolicy", next.texts["RedrivePolicy"], reason) }
	dead := s.byARN(next.redrive.target)
	switch {
	case dead == nil && next.redrive.target != q.report.ARN:
		return bad("Dead letter target does not exist.")
	case dead == nil || dead == q:
		return bad("A queue cannot be its own dead-letter queue.")
	case dead.fifo != q.fifo:
		return bad("Dead-letter queue must be same type of queue as the source.")
	}
	return nil
}

func (s *Server) getQueueURL(_ *call, in *getURLRequest) (any, error) {
	if in.QueueName == "" {
		return nil, missing("QueueName")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[in.QueueName]
	if q == nil || in.QueueOwnerAWSAccountID != nil && *in.QueueOwnerAWSAccountID != account {
		return nil, errNoQueue()
	}
	return &urlResult{q.report.URL}, nil
}

func (s *Server) getQueueAttributes(_ *call, in *getAttributesRequest) (any, error) {
	out := &attributesResult{}
	return out, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		all := q.attributes()
		if slices.Contains(in.AttributeNames, "All") {
			out.Attributes = all
			return nil
		}
		out.Attributes = make(map[string]string)
		for _, name := range in.AttributeNames {
			if !attributeExists(name) {
				return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
			}
			if value, ok := all[name]; ok {
				out.Attributes[name] = value
			}
		}
		return nil
	})
}

func (s *Server) setQueueAttributes(_ *call, in *setAttributesRequest) (any, error) {
	return &nothing{}, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		if _, ok := in.Attributes["FifoQueue"]; ok {
			return fail("InvalidAttributeName", "Unknown Attribute FifoQueue: it cannot be changed.")
		}
		next, err := parseSettings(q.settings.texts, in.Attributes, q.fifo)
		if err != nil {
			return err
		}
		if _, changed := in.Attributes["RedrivePolicy"]; changed {
			if err := s.checkRedrive(q, next); err != nil {
				return err
			}
		}
		old := q.settings
		q.settings, q.modified = next, now
		if q.fifo && old.delay != next.delay {
			q.delayAnew()
		}
		q.tick(now)
		return nil
	})
}

// delayAnew applies the delay of a FIFO queue to what is delayed already. On
// a standard queue a change concerns only what is sent later.
func (q *queue) delayAnew() {
	for _, m := range q.due.items {
		if m.state == Delayed {
			m.due = m.sent.Add(q.settings.delay)
		}
	}
	heap.Init(&q.due)
}

func (s *Server) listQueues(_ *call, in *listRequest) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var urls []string
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if strings.HasPrefix(name, in.QueueNamePrefix) {
			urls = append(urls, s.queues[name].report.URL)
		}
	}
	return &listResult{urls}, nil
}

func (s *Server) deleteQueue(_ *call, in *queueRequest) (any, error) {
	return &nothing{}, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		delete(s.queues, q.report.Name)
		s.deleted[q.report.Name] = now
		for e := q.waiters.Front(); e != nil; e = e.Next() {
			w := e.Value.(*waiter)
			w.element = nil
			w.result <- poll{err: errNoQueue()}
		}
		q.waiters.Init()
		q.polls = 0
		return nil
	})
}

func (s *Server) purgeQueue(_ *call, in *queueRequest) (any, error) {
	return &nothing{}, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		if !q.purged.IsZero() && now.Sub(q.purged) < queueWait {
			return fail("PurgeQueueInProgress", "Only one PurgeQueue operation on %s is allowed every 60 seconds.", q.report.Name)
		}
		q.purged = now
		for len(q.age.items) > 0 {
			q.remove(q.age.first())
			q.report.Deleted++
		}
		q.window = recent[sending]{}
		return nil
	})
}
