package job

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/retry"
)

// trouble is something that does not work for a while. It says how long to wait
// before the next try, and keeps the log short.
type trouble struct {
	log  *slog.Logger
	what string

	failures    int // in a row
	since, said time.Time
}

// remind is how often trouble that goes on is logged.
const remind = 5 * time.Minute

// failed says how long to wait: a second at first, up to a minute.
func (t *trouble) failed(now time.Time, err error) time.Duration {
	if t.failures++; t.failures == 1 {
		t.since = now
	}
	if t.failures == 1 || now.Sub(t.said) >= remind {
		t.log.Warn(t.what+" does not work: nothing is lost, and it is tried again", "since", t.since, "error", err)
		t.said = now
	}
	return retry.Backoff{Base: 2 * time.Second, Cap: time.Minute, Jitter: retry.EqualJitter}.Delay(t.failures, 0, rand.Float64())
}

// over says that it works.
func (t *trouble) over(now time.Time) {
	if t.failures > 0 {
		t.log.Info(t.what+" works again", "after", now.Sub(t.since))
	}
	t.failures = 0
}
