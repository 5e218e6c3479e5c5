package retries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/service"
)

// Letters makes dead letters of tasks that are exhausted, and tasks of letters that
// are sent back.
type Letters struct {
	Broker brokers.Broker
	Topic  string // for dead letters
	Origin string // that letters say they come from, and that they are sent back to
	Group  string // the consumer group that receives there; empty where the broker has none
	Worker string // who buries them
}

// letterDoc is a task in its letter. Sent back, it brings back the task that has the ID
// of the message, from the death that TaskVersion stands for, and from no other.
type letterDoc struct {
	TaskID         string   `json:"taskId"`
	Tenant         string   `json:"tenant"`
	IdempotencyKey string   `json:"idempotencyKey"`
	Method         string   `json:"method"`
	TargetURL      string   `json:"targetUrl"`
	HeaderNames    []string `json:"headerNames,omitempty"` // values may be secrets
	BodyRef        string   `json:"bodyRef,omitempty"`
	PolicyID       string   `json:"policyId"`
	PolicyVersion  int      `json:"policyVersion"`
	TaskVersion    int64    `json:"taskVersion"` // of the row, which stays while the task is dead
}

// Letter is the dead letter of a task.
func (l *Letters) Letter(t service.Task) (dlq.Entry, error) {
	doc := letterDoc{
		TaskID: t.ID, Tenant: t.Tenant, IdempotencyKey: t.IdempotencyKey, Method: t.Method, TargetURL: t.TargetURL,
		HeaderNames: slices.Sorted(maps.Keys(t.Headers)), BodyRef: t.BodyRef, PolicyID: t.PolicyID, PolicyVersion: t.PolicyVersion,
		TaskVersion: t.Version,
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return dlq.Entry{}, err
	}
	reason, fault, ok := strings.Cut(t.LastError, ": ") // as the decision on the task has it
	if !ok || !text.IsWord(reason) {
		reason, fault = "exhausted", t.LastError
	}
	e := dlq.Entry{
		Message: brokers.Message{ID: t.ID, Topic: l.Origin, Key: t.Tenant, Body: body, PublishedAt: t.CreatedAt},
		Meta: brokers.Meta{
			Attempt: t.AttemptNumber, FirstFailedAt: t.FirstFailedAt, LastFailedAt: t.UpdatedAt, IdempotencyKey: t.IdempotencyKey, Trace: t.LastSpan,
		},
		Reason: reason, Group: l.Group, DeadAt: t.UpdatedAt, DeadBy: l.Worker,
	}
	if parent := t.Traceparent(); parent != "" {
		e.Message.Headers = brokers.Headers{{Name: "traceparent", Value: parent}}
	}
	code := ""
	if t.LastStatus != 0 {
		code = strconv.Itoa(t.LastStatus)
	}
	e.DescribeError("", code, fault, "", nil)
	return e, nil
}

// Bury publishes the letter of a task, and returns nil when it is confirmed.
func (l *Letters) Bury(ctx context.Context, t service.Task) error {
	e, err := l.Letter(t)
	if err != nil {
		return err
	}
	return l.Broker.Publish(ctx, l.Topic, e.Encode(0))
}

// reopen is how long a broker is left alone that cannot be received from.
const reopen = 5 * time.Second

// Receive gives the ID of each task whose letter is sent back to revive, with the
// version that it died with, until ctx ends. A letter of no task becomes one again.
func (l *Letters) Receive(ctx context.Context, log *slog.Logger, revive func(ctx context.Context, taskID string, version int64) error) {
	for ctx.Err() == nil {
		worker, err := consumer.New(l.Broker, consumer.Config{Group: l.Group, DeadLetter: l.Topic, Logger: log})
		if err == nil {
			worker.Handle(l.Origin, func(ctx context.Context, m *brokers.Message) error {
				var doc letterDoc
				if err := json.Unmarshal(m.Body, &doc); err != nil || doc.TaskVersion <= 0 {
					return classify.Permanent(errNoLetter)
				}
				return revived(revive(ctx, m.ID, doc.TaskVersion))
			})
			err = worker.Run(ctx)
		}
		if err != nil && ctx.Err() == nil {
			log.Error("letters that are sent back cannot be received: they stay in the broker, and it is tried again in 5 s", "topic", l.Origin, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reopen):
		}
	}
}

var errNoLetter = errors.New("the message does not say of which death of a task it is the letter: POST /retry-tasks/{taskId}/redrive brings one back")

// revived says what an attempt to bring a task back means for its letter. A task that
// is no longer dead as the letter says came back in another way, or by a copy of it.
func revived(err error) error {
	_, twice := errors.AsType[*service.StateError](err)
	switch {
	case twice:
		return nil
	case errors.Is(err, service.ErrNotFound):
		return classify.Permanent(fmt.Errorf("the letter is of no task that there is: %w", err))
	}
	return err
}

// revive makes a task PENDING again, and has it called.
func (s *Server) revive(runner *service.Service) func(context.Context, string, int64) error {
	return func(ctx context.Context, id string, version int64) error {
		t, err := s.Store.ReviveAt(ctx, id, version)
		if err == nil {
			_ = runner.Scheduled(ctx, service.Due{Row: t.Row, Tenant: t.Tenant, At: t.NextAttemptAt}) // or the sweeper does
		}
		return err
	}
}
