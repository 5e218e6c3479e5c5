package gallery

import (
	"context"
	"sync"
	"time"
)

// Server makes a dependency that has a state, for one run of the incident.
type Server func(*tally) Dependency

// afterwards is bad as long as the incident lasts, and otherwise what s makes.
func afterwards(bad Dependency, s Server) Server {
	return func(t *tally) Dependency { return when(inIncident, bad, s(t)) }
}

// limits answers n calls a second, and others with status 429.
func limits(n float64) Server {
	return func(t *tally) Dependency {
		var mu sync.Mutex
		tokens, last := n, t.began
		return func(ctx context.Context, c Call) error {
			mu.Lock()
			now := time.Now()
			tokens, last = min(n, tokens+n*now.Sub(last).Seconds()), now
			served := tokens >= 1
			if served {
				tokens--
			}
			mu.Unlock()
			if !served {
				return fails(status(429))(ctx, c)
			}
			return fine(ctx, c)
		}
	}
}

// queues answers n calls a second, one after the other. It also works on calls
// whose caller has given up.
func queues(n float64) Server {
	return func(t *tally) Dependency {
		var mu sync.Mutex
		free := t.began
		return func(ctx context.Context, _ Call) error {
			mu.Lock()
			now := time.Now()
			if free.Before(now) {
				free = now
			}
			free = free.Add(time.Duration(float64(time.Second) / n))
			mine := free.Sub(now)
			mu.Unlock()
			return wait(ctx, mine)
		}
	}
}

// Collapses: calls of fragile take that long, it is down for downFor after each,
// and cold for coldFor after that.
const (
	fragileCall = 100 * time.Millisecond
	downFor     = 30 * time.Second
	coldFor     = 2 * time.Minute
)

// fragile bears warm calls at once, and cold ones in the first minutes after it
// was down. One more makes it collapse: all calls fail, and it is down.
func fragile(warm, cold int) Server {
	return func(t *tally) Dependency {
		var mu sync.Mutex
		under, up := 0, time.Time{} // up: since when, or from when on
		enter := func(c Call) (ok bool) {
			mu.Lock()
			defer mu.Unlock()
			now, most := time.Now(), warm
			if c.On {
				up = now.Add(c.Left)
			}
			if now.Before(up) {
				return false
			}
			if now.Sub(up) < coldFor {
				most = cold
			}
			if under >= most {
				up = now.Add(downFor)
				t.collapsed()
				return false
			}
			under++
			return true
		}
		leave := func() (ok bool) {
			mu.Lock()
			defer mu.Unlock()
			under--
			return !time.Now().Before(up)
		}
		return func(ctx context.Context, c Call) error {
			if !enter(c) {
				return fails(errRefused)(ctx, c)
			}
			err := wait(ctx, fragileCall)
			if !leave() {
				return errRefused
			}
			return err
		}
	}
}
