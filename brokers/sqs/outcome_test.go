package sqs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestUnknownOutcomes loses the answers to calls that took effect.
func TestUnknownOutcomes(t *testing.T) {
	lost := func(s *scene, operation string) (heal func()) {
		return s.server.Inject(sqstest.Fault{Operation: operation, Cut: true, AfterEffect: true})
	}
	// An ack may be asked for again.
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		heal := lost(s, deleteBatch)
		s.failsForNow(src, ack(d))
		heal()
		s.settle(src, ack(d))
	})
	// What was given back may be with somebody else.
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		defer lost(s, changeBatch)()
		s.fails(src, release(d), brokers.ErrUnknownOutcome)
		s.fails(src, ack(d), brokers.ErrLeaseLost)
	})
	// So may what was retried in place, when it is due.
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		begun := time.Now()
		heal := lost(s, changeBatch)
		s.fails(src, again(d, 12*time.Second), brokers.ErrUnknownOutcome)
		heal()
		if took := time.Since(begun); took > 10*time.Second {
			s.Fatalf("the call took %v", took)
		}
		s.pass(time.Until(begun.Add(12*time.Second + 1)))
		s.costs(changeBatch, 0, 0, func() { s.fails(src, again(d, time.Second), brokers.ErrLeaseLost) })
		s.counts(s.one(src), 1, 0)
	})
	// A copy that nobody confirmed replaces nothing.
	hold(t, "jobs", Options{Copies: true}, func(s *scene, src *source, d *brokers.Delivery) {
		heal := lost(s, sendBatch)
		s.fails(src, again(d, time.Minute), brokers.ErrUnknownOutcome)
		heal()
		if n := s.server.Queue(s.topic).Deleted; n != 0 {
			s.Errorf("%d messages were deleted without a confirmed copy", n)
		}
		s.settle(src, again(d, time.Minute))
		if n := s.server.Queue(s.topic).Deleted; n != 1 {
			s.Errorf("%d messages were deleted, want the original", n)
		}
	})
	// An extension promises nothing.
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		s.pass(25 * time.Second)
		before := d.LeaseUntil
		defer lost(s, changeBatch)()
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		if err := src.Extend(ctx, time.Minute, []*brokers.Delivery{d})[0]; err == nil || errors.Is(err, brokers.ErrLeaseLost) {
			s.Errorf("Extend returned %v, want an error to try again after", err)
		}
		if !d.LeaseUntil.Equal(before) {
			s.Errorf("LeaseUntil became %v, and nobody confirmed that", d.LeaseUntil)
		}
		s.settle(src, ack(d))
	})
}

// TestHidingEndsBeforeTheMessageIsBack does not have the SDK repeat a change when
// its message may be with somebody else.
func TestHidingEndsBeforeTheMessageIsBack(t *testing.T) {
	hold(t, "jobs", Options{CallTimeout: time.Hour}, func(s *scene, src *source, d *brokers.Delivery) {
		s.server.Inject(sqstest.Fault{Operation: changeBatch, Latency: 2 * time.Hour})
		begun := time.Now()
		if err := s.errorOf(src, again(d, 3*time.Second)); !errors.Is(err, brokers.ErrUnknownOutcome) || time.Since(begun) > 3*time.Second {
			s.Errorf("Settle returned %v after %v, want an unknown outcome after 3 s at most", err, time.Since(begun))
		}
	})
}

// TestCallsEndWithTheLease does not wait for an answer beyond the lease.
func TestCallsEndWithTheLease(t *testing.T) {
	hold(t, "jobs", Options{CallTimeout: time.Hour}, func(s *scene, src *source, d *brokers.Delivery) {
		s.server.Inject(sqstest.Fault{Operation: deleteBatch, Latency: 2 * time.Hour})
		begun := time.Now()
		if err := s.errorOf(src, ack(d)); err == nil || time.Since(begun) > 52*time.Second {
			s.Errorf("Settle returned %v after %v, want an error when the timeout of the message is over", err, time.Since(begun))
		}
	})
}
