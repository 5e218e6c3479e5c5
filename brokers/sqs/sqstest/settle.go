package sqstest

import (
	"time"
)

// maxVisibility is the most seconds that one receive hides a message.
const maxVisibility = 43_200

type deleteRequest struct {
	target
	ReceiptHandle string
}

type deleteBatchRequest struct {
	target
	Entries []deleteEntry
}

type deleteEntry struct {
	ID            string `json:"Id"`
	ReceiptHandle string
}

func (e deleteEntry) entryID() string { return e.ID }

type changeRequest struct {
	target
	ReceiptHandle     string
	VisibilityTimeout *int
}

type changeBatchRequest struct {
	target
	Entries []changeEntry
}

type changeEntry struct {
	ID                string `json:"Id"`
	ReceiptHandle     string
	VisibilityTimeout *int
}

func (e changeEntry) entryID() string { return e.ID }

// nothing is the answer of operations that answer nothing.
type nothing struct{}

type entryID struct {
	ID string `json:"Id"`
}

// entryError is one failed entry of a batch.
type entryError struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

type batchResult struct {
	Successful []any
	Failed     []entryError
}

func (s *Server) deleteMessage(_ *call, in *deleteRequest) (any, error) {
	return &nothing{}, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		return q.delete(in.ReceiptHandle)
	})
}

func (s *Server) deleteMessageBatch(c *call, in *deleteBatchRequest) (any, error) {
	if err := checkBatch(in.Entries); err != nil {
		return nil, err
	}
	var out *batchResult
	err := s.with(in.QueueURL, func(q *queue, now time.Time) error {
		out = runBatch(c, in.Entries, func(_ int, e deleteEntry) (any, error) {
			return entryID{e.ID}, q.delete(e.ReceiptHandle)
		})
		return nil
	})
	return out, err
}

func (s *Server) changeMessageVisibility(_ *call, in *changeRequest) (any, error) {
	return &nothing{}, s.with(in.QueueURL, func(q *queue, now time.Time) error {
		return q.change(in.ReceiptHandle, in.VisibilityTimeout, now)
	})
}

func (s *Server) changeMessageVisibilityBatch(c *call, in *changeBatchRequest) (any, error) {
	if err := checkBatch(in.Entries); err != nil {
		return nil, err
	}
	var out *batchResult
	err := s.with(in.QueueURL, func(q *queue, now time.Time) error {
		out = runBatch(c, in.Entries, func(_ int, e changeEntry) (any, error) {
			return entryID{e.ID}, q.change(e.ReceiptHandle, e.VisibilityTimeout, now)
		})
		return nil
	})
	return out, err
}

// lookup finds the message of a receipt handle, nil if it is gone.
func (q *queue) lookup(text string) (*message, handle, error) {
	if text == "" {
		return nil, handle{}, missing("ReceiptHandle")
	}
	h, ok := parseHandle(text)
	if !ok || h.queue != q.number {
		return nil, handle{}, fail("ReceiptHandleIsInvalid", "The input receipt handle %q is not a valid receipt handle.", text)
	}
	return q.messages[h.message], h, nil
}

// delete removes the message of a receipt handle. A handle of an earlier
// receive succeeds on a standard queue and removes nothing; on a FIFO queue it
// fails as soon as its visibility timeout is over.
func (q *queue) delete(text string) error {
	m, h, err := q.lookup(text)
	if m == nil || err != nil {
		return err
	}
	stale := m.generation != h.generation
	if stale || m.state != InFlight {
		q.report.Stale++
		if q.fifo {
			return invalid("ReceiptHandle", text, "The receipt handle has expired.")
		}
	}
	if !stale {
		q.remove(m)
		q.report.Deleted++
	}
	return nil
}

// change sets the visibility timeout of a message in flight, to count from now.
func (q *queue) change(text string, timeout *int, now time.Time) error {
	if timeout == nil {
		return missing("VisibilityTimeout")
	}
	n := *timeout
	if n < 0 || n > maxVisibility {
		return invalid("VisibilityTimeout", n, "Must be between 0 and 43200, and no more than what is left of the total.")
	}
	m, h, err := q.lookup(text)
	if err != nil {
		return err
	}
	if m == nil || m.generation != h.generation {
		q.report.Stale++
		return invalid("ReceiptHandle", text, "Message does not exist or is not available for visibility timeout change.")
	}
	if m.state != InFlight {
		q.report.Stale++
		if q.fifo {
			return invalid("ReceiptHandle", text, "The receipt handle has expired.")
		}
		return fail("MessageNotInflight", "The message that the receipt handle refers to is not in flight.")
	}
	due := now.Add(time.Duration(n) * time.Second)
	if due.After(m.received.Add(maxVisibility * time.Second)) {
		return invalid("VisibilityTimeout", n, "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")
	}
	m.changed = true
	if n == 0 {
		q.show(m)
	} else {
		q.hide(m, due)
	}
	return nil
}

// checkBatch checks the number of entries and their ids.
func checkBatch[E interface{ entryID() string }](entries []E) error {
	if len(entries) == 0 {
		return fail("EmptyBatchRequest", "There should be at least one entry in the request.")
	}
	if len(entries) > 10 {
		return fail("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent %d.", len(entries))
	}
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		id := e.entryID()
		if !plainName(id) {
			return fail("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")
		}
		if seen[id] {
			return fail("BatchEntryIdsNotDistinct", "Id %s repeated.", id)
		}
		seen[id] = true
	}
	return nil
}

// runBatch runs the entries of a batch one by one. An entry that the fault of
// the call names fails, before or after its effect.
func runBatch[E interface{ entryID() string }](c *call, entries []E, do func(int, E) (any, error)) *batchResult {
	out := &batchResult{Successful: []any{}, Failed: []entryError{}}
	for i, e := range entries {
		fault := c.fault.entry(i)
		var done any
		var err error
		if fault == nil || c.fault.AfterEffect {
			done, err = do(i, e)
		}
		if fault != nil {
			err = fault
		}
		if err == nil {
			out.Successful = append(out.Successful, done)
			continue
		}
		failure := asError(err)
		out.Failed = append(out.Failed, entryError{
			ID:          e.entryID(),
			Code:        failure.kind.query,
			Message:     failure.message,
			SenderFault: failure.kind.fault() == "Sender",
		})
	}
	return out
}
