package brokertest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// failing is a source that has nothing but an error.
type failing struct {
	brokers.Source
	err error
}

func (f failing) Receive(context.Context, int) ([]*brokers.Delivery, error) { return nil, f.err }

// Why a message does not come is what the source says last.
func TestWhatReceiveSaidIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the broker is away")
		w := &worker{tr: &trial{Harness: Harness{Unit: time.Second, Slack: time.Second}, t: t, ctx: t.Context(), patience: time.Minute}, src: failing{err: why}, max: 1}
		if err := caught(func() { w.expect("a message") }); !errors.Is(err, why) {
			t.Errorf("the error is %v, want %q in it", err, why)
		}
		w.take(received{ds: []*brokers.Delivery{{}}}, time.Now().Add(time.Second))
		if w.failure != nil {
			t.Errorf("after a delivery it would still tell of %v", w.failure)
		}
	})
}
