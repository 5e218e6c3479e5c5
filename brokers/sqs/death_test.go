package sqs

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// dying returns the Retry by which the pipeline lets d wait for its dead letter.
func (s *scene) dying(d *brokers.Delivery, delay time.Duration) brokers.Settlement {
	st := again(d, delay)
	st.Meta.Attempt = s.sub.MaxAttempts
	st.Meta.Death = &brokers.Death{
		Reason: "poison", At: time.Now().Truncate(time.Millisecond).UTC(), By: "worker-1", Attempt: 1, ErrorType: "*errors.errorString",
		ErrorText: strings.Repeat("no article, ", 100), Fingerprint: "9f86d081884c7d65", Rule: "permanent",
	}
	return st
}

// TestDeathIsCopied checks that any worker receives the Death of a message, after
// several waits, with a secret and without.
func TestDeathIsCopied(t *testing.T) {
	for name, o := range map[string]Options{"default": {}, "copies": {Copies: true}, "secret": {Secret: secret}} {
		hold(t, "jobs", o, func(s *scene, src *source, d *brokers.Delivery) {
			want := s.dying(d, time.Minute).Meta.Death
			for _, wait := range []time.Duration{2 * time.Second, time.Minute, 20 * time.Minute} {
				st := s.dying(d, wait)
				st.Meta.Death = want
				s.settle(src, st)
				src = s.relieve(src, o)
				d = s.one(src)
				s.counts(d, s.sub.MaxAttempts, 0)
				if !reflect.DeepEqual(d.Meta().Death, want) {
					s.Errorf("%s: after %v another worker has %+v, want %+v", name, wait, d.Meta().Death, want)
				}
			}
			s.settle(src, ack(d))
		})
	}
}

// TestDeathOnFIFO checks that the worker alone remembers a Death, as it does the Meta
// of every retry on a FIFO queue. Another worker runs the message again.
func TestDeathOnFIFO(t *testing.T) {
	hold(t, "jobs.fifo", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		st := s.dying(d, time.Minute)
		s.settle(src, st)
		if d = s.one(src); !reflect.DeepEqual(d.Meta(), st.Meta) {
			s.Errorf("the worker has\n%+v, want\n%+v", d.Meta(), st.Meta)
		}
		s.settle(src, s.dying(d, time.Minute))
		if d = s.one(s.relieve(src, Options{})); d.Meta().Death != nil || d.Meta().Attempt < 1 || d.Meta().Attempt >= s.sub.MaxAttempts {
			s.Errorf("another worker has attempt %d and %+v, want an estimate and no death", d.Meta().Attempt, d.Meta().Death)
		}
	})
}

// TestDeathIsShortened checks a Death for which the message leaves little room. Its
// reason and fingerprint stay, and Truncated names the parts that are cut. Without
// room even for these, the message waits in place, and its worker remembers the
// whole Death.
func TestDeathIsShortened(t *testing.T) {
	for name, tt := range map[string]struct {
		room  int // beside the body
		short bool
		here  bool // only this worker knows the Death
	}{
		"room enough": {room: 4000}, "little room": {room: 1300, short: true}, "no room": {room: 300, here: true},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			src := s.open()
			s.store(s.topic, brokers.Message{ID: "large", Body: []byte(strings.Repeat("x", largest-tt.room))})
			st := s.dying(s.one(src), time.Minute)
			s.settle(src, st)
			if !tt.here {
				src = s.relieve(src, Options{})
			}
			d := s.one(src)
			got, want := d.Meta().Death, st.Meta.Death
			if got == nil || got.Reason != want.Reason || got.Attempt != 1 || got.Fingerprint != want.Fingerprint {
				s.Fatalf("the message waited with %+v, want %+v", got, want)
			}
			text := strings.TrimSuffix(got.ErrorText, "…")
			if short := text != want.ErrorText; short != tt.short || len(text) < 64 || !strings.HasPrefix(want.ErrorText, text) {
				s.Errorf("its error is %q, want one that is shortened: %t", got.ErrorText, tt.short)
			}
			if said := slices.Contains(got.Truncated, "error-message"); said != tt.short {
				s.Errorf("it is said to be shortened: %t, want %t", said, tt.short)
			}
			s.settle(src, ack(d))
		})
	}
}
