package proof

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// fate is what becomes of the runs of a message until it is mended.
type fate string

const (
	good      fate = "good"
	poison    fate = "poison"
	transient fate = "transient"
	flaky     fate = "flaky" // good, but for the first run each time that it comes back
)

var (
	errPoison    = classify.Permanent(errors.New("no such product"))
	errTransient = classify.Transient(errors.New("connection refused"))
	errGone      = errors.New("the process is gone")
)

// script is a message with its fate.
type script struct {
	message
	fate   fate
	mended time.Time
	needs  int // poison until it was sent back so often
}

// err is what a run of the message fails with.
func (s *script) err(now time.Time, attempt, redrives int) error {
	switch {
	case s.fate == flaky && redrives > 0 && attempt == 1:
		return errTransient
	case redrives < s.needs:
		return errPoison
	case s.fate == poison && now.Before(s.mended):
		return errPoison
	case s.fate == transient && now.Before(s.mended):
		return errTransient
	}
	return nil
}

// play is what all workers share.
type play struct {
	ledger ledger

	mu      sync.Mutex
	scripts map[string]*script
}

func (p *play) add(s *script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts[s.id] = s
}

func (p *play) script(id string) *script {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scripts[id]
}

// messages are those of the scripts.
func (p *play) messages() map[string]*message {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]*message{}
	for id, s := range p.scripts {
		all[id] = &s.message
	}
	return all
}

// worker handles the messages of a topic on a broker.
type worker struct {
	*play
	brokers.Broker
	topic, receipts, group string
	dead                   string                    // as consumer.Config.DeadLetter
	work                   func(ctx context.Context) // what a run takes
	gone                   func() bool               // the worker does nothing any more; nil for never
}

func (w *worker) run(ctx context.Context) error {
	c, err := consumer.New(w, consumer.Config{
		DeadLetter: w.dead, Receipts: w.receipts, Group: w.group,
		Logger: slog.New(slog.DiscardHandler), Observers: []consumer.Observer{w},
		Guard: consumer.Guard{Off: true}, // it dead-letters on purpose, and nothing else succeeds
	})
	if err != nil {
		return err
	}
	c.HandleWith(w.topic, w.handle, consumer.TopicConfig{MaxAttempts: 3})
	return c.Run(ctx)
}

func (w *worker) handle(ctx context.Context, m *brokers.Message) error {
	w.work(ctx)
	if w.gone != nil && w.gone() {
		return errGone
	}
	meta := consumer.MetaFrom(ctx)
	e := event{Kind: ran, ID: m.ID, Send: meta.Send, Topic: m.Topic, Group: w.group, Redrives: meta.RedriveCount, Attempt: meta.Attempt}
	var err error
	if s := w.script(m.ID); s != nil && s.takes(w.group) {
		err = s.err(time.Now(), meta.Attempt, meta.RedriveCount)
	}
	e.Err = text(err)
	w.ledger.add(e)
	return err
}

// Observe implements consumer.Observer.
func (w *worker) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventPaused {
		w.ledger.add(event{Kind: paused, Topic: e.Dependency, Err: text(e.Err)})
	}
}

// Publish notes dead letters that are confirmed.
func (w *worker) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	err := w.Broker.Publish(ctx, topic, msgs...)
	for i, m := range msgs {
		if entry, notOne := dlq.Decode(m); notOne == nil && answer(err, i) == nil {
			w.ledger.add(deathEvent(m, entry))
		}
	}
	return err
}

func deathEvent(m brokers.Message, e dlq.Entry) event {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", m.Headers, m.Body))
	return event{Kind: died, ID: m.ID, Send: e.Meta.Send, Topic: e.Message.Topic, DeadAt: e.DeadAt, Content: string(sum[:])}
}

// answer is what an error of Publish or SendBack says of a message.
func answer(err error, i int) error {
	if partial, ok := errors.AsType[*brokers.PublishError](err); ok {
		return partial.Failed[i]
	}
	return err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// explain lists what the ledger has of a message.
func explain(events []event, id string) (lines []string) {
	for _, e := range events {
		if e.ID == id || e.ID == "" {
			lines = append(lines, fmt.Sprintf("\t%s %s process %d, send %q, %s group %q, redrives %d, attempt %d, died %s: %s",
				e.At.Format("15:04:05.000"), e.Kind, e.Process, e.Send, e.Topic, e.Group, e.Redrives, e.Attempt, e.DeadAt.Format("15:04:05.000"), e.Err))
		}
	}
	return lines
}
