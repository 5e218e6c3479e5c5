package sqs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestTerms(t *testing.T) {
	for _, tt := range []struct {
		asked, wait           time.Duration
		lease, hidden, margin time.Duration
		reserve               time.Duration
	}{
		{0, 20 * time.Second, 30 * time.Second, 52 * time.Second, 2 * time.Second, 15 * time.Second},
		{5 * time.Second, time.Second, 5 * time.Second, 7 * time.Second, time.Second, 2500 * time.Millisecond},
		{4700 * time.Millisecond, time.Second, 4700 * time.Millisecond, 7 * time.Second, 940 * time.Millisecond, 2350 * time.Millisecond},
		{10 * time.Minute, 20 * time.Second, 10 * time.Minute, 622 * time.Second, 2 * time.Second, 570 * time.Second},
	} {
		got := termsOf(brokers.Subscription{Lease: tt.asked}, Options{PollWait: tt.wait})
		if want := (terms{tt.lease, tt.wait, tt.margin}); got != want {
			t.Errorf("terms for a lease of %v = %v, want %v", tt.asked, got, want)
		}
		if got.hidden() != tt.hidden || got.reserve() != tt.reserve {
			t.Errorf("for a lease of %v: hidden for %v with a reserve of %v, want %v and %v", tt.asked, got.hidden(), got.reserve(), tt.hidden, tt.reserve)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int32{
		-time.Hour: 0, 0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 12 * time.Hour: 43200, 13 * time.Hour: 43200,
	} {
		if got := seconds(d); got != want {
			t.Errorf("seconds(%v) = %d, want %d", d, got, want)
		}
	}
}

// TestLeaseCountsFromThePoll has a poll wait: the lease is whole all the same,
// and SQS keeps the message for as long.
func TestLeaseCountsFromThePoll(t *testing.T) {
	for name, wait := range map[string]time.Duration{"message comes at once": 0, "message comes late": 19 * time.Second} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			src := s.open()
			time.AfterFunc(wait, func() { s.publish("a") })
			d := s.one(src)
			if left := time.Until(d.LeaseUntil); left != 30*time.Second {
				s.Errorf("%v of the lease are left, want 30 s", left)
			}
			other := s.openOn(s.start(Options{}))
			s.nothing(other, time.Until(d.LeaseUntil))
			if again := s.one(other); again.Meta().Attempt != 1 || time.Since(d.LeaseUntil) > 25*time.Second {
				s.Errorf("it came again %v after the lease, with attempt %d; want 22 s at most, and 1: the receive may have been one",
					time.Since(d.LeaseUntil), again.Meta().Attempt)
			}
		})
	}
}

// TestExtend asks SQS only if the present timeout is too short.
func TestExtend(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) { // hidden for 52 s, of which 50 s count
		extend := func(lease time.Duration, calls int) {
			s.Helper()
			s.costs(changeBatch, calls, calls, func() { s.extend(src, lease, d) })
			if left := time.Until(d.LeaseUntil); left != lease {
				s.Errorf("the lease lasts for %v, want %v", left, lease)
			}
		}
		time.Sleep(10 * time.Second)
		extend(30*time.Second, 0)
		time.Sleep(20 * time.Second)
		extend(30*time.Second, 1)
		other := s.openOn(s.start(Options{}))
		s.nothing(other, 29*time.Second)
		s.settle(src, ack(d))
		s.nothing(other, time.Minute)
		if got := s.visibilities(); len(got) != 1 || got[0][0].VisibilityTimeout != 32 {
			s.Errorf("asked for visibility timeouts of %v, want 32 s: the lease and a margin", got)
		}
	})
}

// TestExtendSomeEntriesFail reports what failed, and leaves its lease alone.
func TestExtendSomeEntriesFail(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src, ds := s.held(fill("%d", 4)...)
		time.Sleep(25 * time.Second)
		heal := s.server.Inject(sqstest.Fault{Operation: changeBatch, Entries: []int{1}, Times: 1})
		defer heal()
		gone := s.server.Inject(sqstest.Fault{Operation: changeBatch, Code: "ReceiptHandleIsInvalid", Entries: []int{0}})
		s.settle(src, ack(ds[3]))
		before := ds[1].LeaseUntil
		errs := src.Extend(s.Context(), time.Minute, append(ds, nil))
		if errs[0] != nil || errs[1] == nil || errs[2] != nil || !errors.Is(errs[3], brokers.ErrSettled) || !errors.Is(errs[4], brokers.ErrLeaseLost) {
			s.Errorf("Extend returned %v, want an error for the second, the settled and the missing one", errs)
		}
		if !ds[1].LeaseUntil.Equal(before) || time.Until(ds[2].LeaseUntil) != time.Minute {
			s.Errorf("the leases last for %v and %v", time.Until(ds[1].LeaseUntil), time.Until(ds[2].LeaseUntil))
		}
		if err := src.Extend(s.Context(), time.Minute, ds[1:2])[0]; !errors.Is(err, brokers.ErrLeaseLost) {
			s.Errorf("Extend with a bad handle returned %v, want ErrLeaseLost", err)
		}
		gone()
		s.fails(src, ack(ds[1]), brokers.ErrLeaseLost)
	})
}

// TestSettleWaitsForExtend settles while an extension is on its way, which must
// not overtake the retry.
func TestSettleWaitsForExtend(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		time.Sleep(25 * time.Second)
		s.server.Inject(sqstest.Fault{Operation: changeBatch, Times: 1, Latency: 2 * time.Second})
		extended := make(chan []error)
		go func() { extended <- src.Extend(s.Context(), time.Minute, []*brokers.Delivery{d}) }()
		synctest.Wait()
		ended, cancel := context.WithCancelCause(s.Context())
		cancel(errStop)
		if err := src.Settle(ended, []brokers.Settlement{again(d, 5*time.Second)})[0]; !errors.Is(err, errStop) {
			s.Errorf("Settle with an ended context returned %v, want its cause", err)
		}
		begun := time.Now()
		settled := make(chan error)
		go func() { settled <- s.errorOf(src, again(d, 5*time.Second)) }()
		synctest.Wait()
		if err := src.Extend(s.Context(), time.Minute, []*brokers.Delivery{d}); err == nil {
			s.Error("Extend of a delivery that is about to be settled returned nil")
		}
		if err := <-settled; err != nil || time.Since(begun) != 2*time.Second {
			s.Errorf("Settle returned %v after %v, want nil after 2 s, when the extension was over", err, time.Since(begun))
		}
		if errs := <-extended; errs != nil {
			s.Errorf("Extend: %v", errs)
		}
		s.one(src)
		s.took(begun, 7*time.Second)
	})
}

// TestLeaseEndsWhileSettleWaits has the lease end before Settle, or while it
// waits for an extension that nobody answers: nothing is sent.
func TestLeaseEndsWhileSettleWaits(t *testing.T) {
	for name, settle := range map[string]func(*brokers.Delivery) brokers.Settlement{
		"ack":     ack,
		"release": release,
		"retry":   func(d *brokers.Delivery) brokers.Settlement { return again(d, time.Second) },
		"copy":    func(d *brokers.Delivery) brokers.Settlement { return again(d, 2*time.Hour) },
	} {
		for _, extends := range []bool{false, true} {
			hold(t, "jobs", Options{CallTimeout: time.Hour}, func(s *scene, src *source, d *brokers.Delivery) {
				extended := make(chan []error, 1)
				if extends {
					time.Sleep(25 * time.Second)
					s.server.Inject(sqstest.Fault{Operation: changeBatch, Times: 1, Latency: 10 * time.Minute})
					go func() { extended <- src.Extend(s.Context(), time.Minute, []*brokers.Delivery{d}) }()
					synctest.Wait()
				} else {
					time.Sleep(30*time.Second + 1)
					extended <- src.Extend(s.Context(), time.Minute, []*brokers.Delivery{d})
				}
				before := s.server.Count("")
				for range 2 {
					s.fails(src, settle(d), brokers.ErrLeaseLost)
				}
				calls := s.server.Count("") - before
				if errs := <-extended; len(errs) != 1 || errs[0] == nil {
					s.Errorf("%s: Extend without an answer, or of a lease that was over: %v", name, errs)
				}
				if calls != 0 {
					s.Errorf("%s: %d calls were sent for a lease that was over", name, calls)
				}
			})
		}
	}
}

// TestMaxLease extends for as long as SQS lets it, and no longer.
func TestMaxLease(t *testing.T) {
	t.Parallel()
	hold(t, "jobs.fifo", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		end := d.ReceivedAt.Add(12*time.Hour - time.Minute)
		for time.Now().Before(end) {
			s.extend(src, time.Hour, d)
			time.Sleep(25 * time.Minute)
		}
		if !d.LeaseUntil.Equal(end) || src.Capabilities().MaxLease != 12*time.Hour-time.Minute {
			s.Errorf("the lease ended after %v, want a minute less than 12 h", d.LeaseUntil.Sub(d.ReceivedAt))
		}
		s.fails(src, ack(d), brokers.ErrLeaseLost)
	})
}

// TestExpiredDeliveriesMakeRoom forgets deliveries that the worker let expire.
func TestExpiredDeliveriesMakeRoom(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.InFlight = 10
		src := s.open()
		s.publish(fill("%d", 10)...)
		s.receive(src, 10)
		time.Sleep(time.Minute)
		s.state(sqstest.Queue{Visible: 10})
		s.costs("ReceiveMessage", 1, 1, func() { s.receive(src, 10) }) // there is room for all
	})
}
