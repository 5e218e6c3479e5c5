package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

func TestTemporaryErrorsAreTriedAgainUntilExpiry(t *testing.T) {
	play(t, 0, func(w *world) {
		w.answers(fmt.Errorf("change visibility: %w", errBusy))
		l := take("lease")
		w.Track(l)
		pass(lease - 1)
		w.wantLost(0)
		pass(time.Hour)
		cause := w.wantLost(lease, l)[0]
		w.wantLen(0)
		w.wantCause(cause, visibility.ErrExpired, errBusy)
		if want := "(held for 30s): change visibility: "; !strings.Contains(cause.Error(), want) {
			t.Errorf("cause = %q, want it to contain %q", cause, want)
		}
		if n := len(w.made()); n < 3 || n > 8 {
			t.Errorf("Extend was tried %d times before the lease ran out, want 3 to 8", n)
		}
	})
}

func TestRecoversFromTemporaryErrors(t *testing.T) {
	play(t, 0, func(w *world) {
		w.answers(errBusy)
		l := take("lease")
		w.Track(l)
		pass(lease * 4 / 6)
		w.answers(nil)
		pass(time.Hour)
		w.wantLost(0)
		w.wantLen(1)

		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error { time.Sleep(lease); return nil })
		end := time.Since(w.start) + w.left(l)
		pass(2 * lease)
		if cause := w.wantLost(end, l)[0]; errors.Is(cause, errBusy) {
			t.Errorf("cause %q blames an error that was overcome", cause)
		}
	})
}

func TestFinalErrorsLoseAtOnce(t *testing.T) {
	play(t, 0, func(w *world) {
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			time.Sleep(50 * time.Millisecond)
			return slices.Repeat([]error{fmt.Errorf("change visibility: %w", errGone)}, len(leases))
		})
		leases := takeMany(3)
		w.Track(leases...)
		pass(time.Hour)
		calls := w.made()
		for _, cause := range w.wantLost(calls[0].at+50*time.Millisecond, leases...) {
			w.wantCause(cause, errGone)
			if errors.Is(cause, visibility.ErrExpired) {
				t.Errorf("cause = %q, want the error of Extend alone", cause)
			}
		}
		w.wantLen(0)
		if len(calls) != 1 {
			t.Errorf("Extend was called %d times, want once: a lost lease is not asked for", len(calls))
		}
	})
}

func TestAnswers(t *testing.T) {
	tests := []struct {
		name  string
		errs  []error // the answer for three leases
		gone  []int   // indexes of those lost at once
		again []int   // indexes of those asked for again
	}{
		{name: "nil", errs: nil},
		{name: "all good", errs: []error{nil, nil, nil}},
		{name: "one final", errs: []error{nil, errGone, nil}, gone: []int{1}},
		{name: "one temporary", errs: []error{nil, nil, errBusy}, again: []int{2}},
		{name: "mixed", errs: []error{errBusy, errGone, nil}, gone: []int{1}, again: []int{0}},
		{name: "empty", errs: []error{}, again: []int{0, 1, 2}},
		{name: "too short", errs: []error{errGone, nil}, gone: []int{0}, again: []int{2}},
		{name: "too long", errs: []error{nil, errGone, nil, errGone, errBusy}, gone: []int{1}},
	}
	for _, test := range tests {
		play(t, 0, func(w *world) {
			w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
				if len(leases) == 3 {
					return test.errs
				}
				return nil
			})
			w.Track(takeMany(3)...)
			pass(lease * 2 / 3) // before what is extended is due again

			calls := w.made()
			first := calls[0]
			w.wantLost(first.at, pick(first.leases, test.gone)...)
			w.wantLen(3 - len(test.gone))
			var again []*held
			if len(calls) > 1 {
				again = calls[1].leases
			}
			for i, l := range first.leases {
				if got, want := slices.Contains(again, l), slices.Contains(test.again, i); got != want {
					t.Errorf("%s: entry %d of the answer: asked for again %t, want %t", test.name, i, got, want)
				}
			}
		})
	}
}

func pick(leases []*held, indexes []int) (picked []*held) {
	for _, i := range indexes {
		picked = append(picked, leases[i])
	}
	return picked
}

func TestMissingAnswersAreExplained(t *testing.T) {
	play(t, 0, func(w *world) {
		w.reply(func(context.Context, time.Duration, []*held) []error { return []error{} })
		l := take("lease")
		w.Track(l)
		pass(2 * lease)
		cause := w.wantLost(lease, l)[0]
		if want := "0 errors for 1 leases"; !strings.Contains(cause.Error(), want) {
			t.Errorf("cause = %q, want it to contain %q", cause, want)
		}
	})
}

func TestForgetBetweenRequestAndAnswer(t *testing.T) {
	for _, again := range []bool{false, true} { // it is tracked
		play(t, 0, func(w *world) {
			asked, answer := make(chan bool, 1), make(chan bool)
			w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
				asked <- true
				<-answer
				return slices.Repeat([]error{errGone}, len(leases))
			})
			l := take("lease")
			w.Track(l)
			<-asked
			w.Forget(l)
			w.Forget(take("unknown"))
			at := time.Since(w.start)
			if again {
				w.Track(l)
				synctest.Wait()
			}
			close(answer)
			pass(time.Hour)
			if again { // the lease is as gone as before
				w.wantLost(at, l)
			} else {
				w.wantLost(0)
			}
			w.wantLen(0)
		})
	}
}

func TestHangingExtend(t *testing.T) {
	play(t, 0, func(w *world) {
		hangs := take("hangs")
		w.reply(func(ctx context.Context, _ time.Duration, leases []*held) []error {
			if !slices.Contains(leases, hangs) {
				return nil
			}
			begun := time.Now()
			<-ctx.Done()
			if took := time.Since(begun); took != lease/4 {
				t.Errorf("the context of Extend ended after %s, want %s", took, lease/4)
			}
			return slices.Repeat([]error{ctx.Err()}, len(leases))
		})
		w.Track(hangs)
		pass(lease / 2)
		fine := take("fine")
		w.Track(fine)
		pass(lease / 2)
		w.wantCause(w.wantLost(lease, hangs)[0], context.DeadlineExceeded)
		if len(w.made()) < 2 {
			t.Errorf("Extend was tried %d times, want a second try after the one that hung", len(w.made()))
		}
		pass(time.Hour)
		w.wantLost(lease, hangs)
		w.wantLen(1)
	})
}

// An Extend that ignores its context loses the leases in it, no others, and
// keeps Run from returning.
func TestExtendThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		stuck, fine := take("stuck"), take("fine")
		release := make(chan bool)
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			if slices.Contains(leases, stuck) {
				<-release
			}
			return nil
		})
		stopped := make(chan bool)
		stop := w.run()
		w.Track(stuck)
		pass(lease / 2)
		fine.until = time.Now().Add(lease / 4)
		w.Track(fine)
		pass(time.Hour)
		w.wantLost(lease, stuck)
		w.wantLen(1)
		go func() { stop(); close(stopped) }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Run returned while Extend was under way")
		default:
		}
		close(release)
		<-stopped
		w.wantLost(lease, stuck)
	})
}

// After an outage leases run out one after the other, faster than the broker
// answers. Each is lost at its time, and that neither cuts off the extension
// of the others nor makes the keeper ask more often.
func TestRecoveryFromOutage(t *testing.T) {
	play(t, 0, func(w *world) {
		const (
			gap       = 50 * time.Millisecond
			roundTrip = 200 * time.Millisecond
			outage    = lease + 10*time.Second
		)
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			time.Sleep(roundTrip)
			if time.Since(w.start) < outage {
				return slices.Repeat([]error{errBusy}, len(leases))
			}
			return nil
		})
		for i := range 600 {
			w.Track(take(fmt.Sprint("lease ", i)))
			pass(gap)
		}
		pass(time.Hour)
		for _, lost := range w.lost {
			if lost.at < outage && !errors.Is(lost.cause, errBusy) {
				t.Fatalf("%s: cause = %q, want it to wrap %q", lost.lease.name, lost.cause, errBusy)
			}
			if want := lost.lease.received.Sub(w.start) + lease; lost.at != want {
				t.Fatalf("%s was lost after %s, want %s", lost.lease.name, lost.at, want)
			}
		}
		least, most := int((outage-lease)/gap), int((outage-lease+lease/6+2*roundTrip)/gap)
		if n := len(w.lost); n < least || n > most {
			t.Errorf("%d of 600 leases were lost, want %d to %d: those that ran out before the first extension after the outage", n, least, most)
		}
		asked := 0
		for _, c := range w.made() {
			if c.at < outage {
				asked++
			}
		}
		if most := int(outage/(lease/12)) + 1; asked > most {
			t.Errorf("Extend was called %d times in an outage of %s, want at most %d", asked, outage, most)
		}
	})
}
