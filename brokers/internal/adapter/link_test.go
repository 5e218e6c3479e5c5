package adapter_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/health"
)

func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l adapter.Link
		began := time.Now()
		is := func(state health.State, since time.Duration, text string, at time.Duration) {
			t.Helper()
			c := l.Connection()
			if c.State != state || c.Since.Sub(began) != since || c.Error != text || text != "" && c.ErrorAt.Sub(began) != at {
				t.Errorf("got %+v, want %s since %v, %q", c, state, since, text)
			}
			time.Sleep(time.Second)
		}
		l.Up()
		is(health.Running, 0, "", 0)
		l.Up()
		is(health.Running, 0, "", 0)
		l.Down(nil)
		is(health.Opening, 2*time.Second, "", 0)
		l.Down(errors.New("refused"))
		is(health.Opening, 2*time.Second, "refused", 3*time.Second)
		l.Up()
		is(health.Running, 4*time.Second, "refused", 3*time.Second)
	})
}
