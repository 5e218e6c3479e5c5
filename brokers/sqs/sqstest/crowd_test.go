package sqstest_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

const crowdMessages = 150

// TestNothingIsLostAndNothingIsEarly runs random calls of several workers, and
// follows each message: it is held by one worker at a time, in the order of
// its group, and all messages are accounted for in the end.
func TestNothingIsLostAndNothingIsEarly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, name := range []string{"orders", "orders.fifo"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sqstest.Options{InFlightLimit: 40}, func(w *world) {
				(&crowd{
					world: w, name: name, fair: strings.HasSuffix(name, ".fifo"), rand: rand.New(rand.NewPCG(seed, 1)),
					held: map[string]time.Time{}, done: map[string]bool{}, groups: map[string][]string{},
				}).run()
			})
		})
	}
}

// A crowd is workers on one queue, and what the test knows of its messages, by
// their bodies.
type crowd struct {
	*world
	name string
	url  string
	fair bool // a FIFO queue

	mu     sync.Mutex
	rand   *rand.Rand
	held   map[string]time.Time // until when
	done   map[string]bool      // about to be deleted
	groups map[string][]string  // in the order of their sends
}

func (c *crowd) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

func (c *crowd) run() {
	if c.fair {
		c.url = c.fifo(c.name)
	} else {
		c.url = c.queue(c.name)
	}
	var workers sync.WaitGroup
	workers.Go(c.produce)
	for range 6 {
		workers.Go(c.work)
	}
	workers.Wait()
	c.wantCounts(c.name, 0, 0, 0)
	if q := c.server.Queue(c.name); q.Sent != crowdMessages || q.Deleted != crowdMessages || q.Stale != 0 {
		c.Errorf("%d sent, %d deleted, %d stale calls; want %d, the same, 0", q.Sent, q.Deleted, q.Stale, crowdMessages)
	}
}

func (c *crowd) produce() {
	for n := range crowdMessages {
		body := fmt.Sprint(n)
		if c.fair {
			group := fmt.Sprint(c.pick(5))
			c.mu.Lock()
			c.groups[group] = append(c.groups[group], body)
			c.mu.Unlock()
			c.sendGroup(c.url, group, body)
		} else {
			c.delayed(c.url, body, int32(c.pick(30)))
		}
		pass(time.Duration(c.pick(3000)) * time.Millisecond)
	}
}

// work receives until all messages are deleted, and deletes, gives back, holds
// longer or forgets what it received.
func (c *crowd) work() {
	for c.server.Queue(c.name).Deleted < crowdMessages {
		hide := int32(1 + c.pick(20))
		batch := c.receive(c.url, int32(1+c.pick(10)), int32(c.pick(20)), hide)
		c.check(batch, time.Duration(hide)*time.Second)
		for _, m := range batch {
			switch c.pick(4) {
			case 0, 1:
				c.mu.Lock()
				c.done[*m.Body] = true
				c.mu.Unlock()
				c.wantCode(c.delete(c.url, m), "")
			case 2:
				change := c.pick(30)
				c.mu.Lock()
				c.held[*m.Body] = time.Now().Add(time.Duration(change) * time.Second)
				c.mu.Unlock()
				c.wantCode(c.change(c.url, m, int32(change)), "")
			}
		}
	}
}

// check compares what was received with what may be.
func (c *crowd) check(batch []types.Message, hide time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	mine := map[string]bool{}
	for _, m := range batch {
		body := *m.Body
		if until := c.held[body]; now.Before(until) || c.done[body] {
			c.Errorf("message %s received at %v, held until %v, deleted: %t", body, now, until, c.done[body])
		}
		c.held[body] = now.Add(hide)
		mine[body] = true
		for _, earlier := range c.groups[m.Attributes["MessageGroupId"]] {
			if earlier == body {
				break
			}
			if !c.done[earlier] && !mine[earlier] {
				c.Errorf("message %s received before message %s of its group was settled", body, earlier)
			}
		}
	}
}
