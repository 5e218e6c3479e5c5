package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/foreign"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/store"
)

// Unreadable is the format of a letter of which the adapter could not read all.
// What was wrong is its error text.
const Unreadable = "unreadable"

// letterOf is what the store gets of a delivery.
func (c *Collector) letterOf(d *brokers.Delivery) store.Collected {
	entry, format := foreign.Decode(d)
	l := store.Collected{Broker: c.cfg.Broker, Source: d.Message.Topic, Format: string(format), Raw: d.Message, Entry: entry}
	if d.Unreadable != nil {
		l.Format = Unreadable
		if entry.Reason == "" {
			l.Entry.Reason = Unreadable
			l.Entry.DescribeError("", "", d.Unreadable.Error(), "", nil)
		}
	}
	origin := d.Meta().Origin
	partition, offset := origin.Get("partition"), origin.Get("offset")
	if c.cfg.Log && offset != "" {
		l.Position = partition + "/" + offset
	}
	return l
}

func sizeOf(m brokers.Message) int64 {
	n := len(m.Body)
	for _, h := range m.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return int64(n)
}

func sizeOfAll(ds []*brokers.Delivery) (n int64) {
	for _, d := range ds {
		n += sizeOf(d.Message)
	}
	return n
}

// parts cuts deliveries into what is committed at once.
func parts(ds []*brokers.Delivery) (list [][]*brokers.Delivery) {
	for len(ds) > 0 {
		n, size := 1, sizeOf(ds[0].Message)
		for ; n < len(ds) && size+sizeOf(ds[n].Message) <= mostBytes; n++ {
			size += sizeOf(ds[n].Message)
		}
		list = append(list, ds[:n])
		ds = ds[n:]
	}
	return list
}

// held are the deliveries that are still this collector's. The others come again.
func held(ds []*brokers.Delivery, now time.Time) []*brokers.Delivery {
	return slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool {
		return !d.LeaseUntil.IsZero() && !now.Before(d.LeaseUntil) || d.Session != nil && d.Session.Err() != nil
	})
}

// commit has the store take letters, and acks them. What the store does not take
// together it takes in halves, down to the letter that it refuses. An error is why
// the rest was released.
func (c *Collector) commit(ctx context.Context, ds []*brokers.Delivery) error {
	pending := parts(ds)
	for len(pending) > 0 {
		part := held(pending[0], time.Now())
		err := c.checkDisk()
		if err == nil {
			err = c.collect(ctx, part)
		}
		if err != nil && len(part) > 1 && !isTrouble(err) {
			half := len(part) / 2
			pending = slices.Concat([][]*brokers.Delivery{part[:half], part[half:]}, pending[1:])
			continue
		}
		if err != nil && !isTrouble(err) {
			err = c.refuse(part[0], err)
			part = nil
		}
		if err != nil {
			c.settle(ctx, brokers.Release, slices.Concat(pending...))
			return err
		}
		c.settle(ctx, brokers.Ack, part)
		pending = pending[1:]
	}
	return nil
}

// collect has the store take letters, all or none. A trouble is one of the store;
// any other error one of the letters, seen twice while the store took something
// else.
func (c *Collector) collect(ctx context.Context, ds []*brokers.Delivery) error {
	if len(ds) == 0 {
		return nil
	}
	ctx, cancel := outlive(ctx, leaseOf(ds))
	defer cancel()
	letters := make([]store.Collected, len(ds))
	for i, d := range ds {
		letters[i] = c.letterOf(d)
	}
	for again := false; ; again = true {
		added, err := c.cfg.Store.Collect(ctx, time.Now(), letters)
		if err == nil {
			c.failed = 0
			c.note(func(s *Status) {
				s.Added += int64(added)
				s.Known += int64(len(ds) - added)
			})
			c.goesOn()
			return nil
		}
		size := sizeOfAll(ds)
		if isStoreDown(err) || c.cfg.Store.Probe(ctx, size) != nil {
			c.failed = size
			return storeFails(err)
		}
		if again {
			return err
		}
	}
}

// isStoreDown reports whether an error certainly has nothing to do with what the
// store was to take.
func isStoreDown(err error) bool {
	for _, meaning := range []error{
		store.ErrLocked, store.ErrFull, store.ErrReadOnly, store.ErrDamaged, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, meaning) {
			return true
		}
	}
	return false
}

// refuse leaves a letter in the broker that the store refuses. It is held, for it
// would come again at once; when its lease or Run ends, it is given back.
func (c *Collector) refuse(d *brokers.Delivery, err error) error {
	c.note(func(s *Status) { s.Refused++ })
	c.cfg.Logger.Error("the store refuses a letter, which stays in the broker", c.attributes(err,
		slog.String("topic", text.Line(d.Message.Topic, maxName)), slog.String("msg_id", text.Line(d.Message.ID, maxName)), slog.Int64("bytes", sizeOf(d.Message)))...)
	if c.refused = append(held(c.refused, time.Now()), d); len(c.refused) > mostRefused {
		return fmt.Errorf("collect: %w: more than %d stay in %s; the error of the last one: %w", ErrRefused, mostRefused, c.cfg.Broker, err)
	}
	return nil
}

const (
	workTimeout = time.Minute     // of one transaction, or one settlement with its repetitions
	lastWords   = 5 * time.Second // for what is under way when Run is to end
)

// leaseOf is how long there is for the commit of deliveries.
func leaseOf(ds []*brokers.Delivery) time.Duration {
	least := workTimeout
	for _, d := range ds {
		if !d.LeaseUntil.IsZero() {
			least = min(least, time.Until(d.LeaseUntil))
		}
	}
	return least
}

// outlive returns a context for what should not end halfway: it lasts for d, and
// when ctx ends for a few seconds more.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	return out, func() {
		stop()
		cancel()
	}
}

// settle ends deliveries, and tries again what failed for the moment.
func (c *Collector) settle(ctx context.Context, action brokers.Action, ds []*brokers.Delivery) {
	ctx, cancel := outlive(ctx, workTimeout)
	defer cancel()
	batch := make([]brokers.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = brokers.Settlement{Delivery: d, Action: action}
	}
	for failures := 1; len(batch) > 0; failures++ {
		var lost int64
		var failure error
		batch, lost, failure = open(batch, c.cfg.Source.Settle(ctx, batch))
		if len(batch) > 0 && !sleep(ctx, backoff.Delay(failures, 0, rand.Float64())) {
			c.cfg.Logger.Warn("letters could not be settled, they come again",
				c.attributes(failure, slog.String("action", action.String()), slog.Int("letters", len(batch)))...)
			lost += int64(len(batch))
			batch = nil
		}
		if action == brokers.Ack {
			c.note(func(s *Status) { s.Unacked += lost })
		}
	}
}

// open returns the settlements that may be tried again, the last reason why they
// have to be, and how many were lost for good.
func open(batch []brokers.Settlement, errs []error) (again []brokers.Settlement, lost int64, failure error) {
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) || errors.Is(err, brokers.ErrClosed):
			lost++
		default:
			again, failure = append(again, batch[i]), err
		}
	}
	return again, lost, failure
}

// sleep waits for d, and reports whether ctx lasted.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
