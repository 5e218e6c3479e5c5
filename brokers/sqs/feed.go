package sqs

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const (
	// mostBuffered bounds in bytes the messages that wait to be handed out: a few
	// polls full of the largest. Each feed has an equal share of it, so that a
	// paused feed does not take the room of others. Beside it there may be one
	// message that is larger, and those below smallMessage, of which no number that
	// a worker has room for adds up to much.
	mostBuffered = 32 << 20
	smallMessage = 8 << 10
)

// feed is a queue that the source receives from.
type feed struct {
	queue
	source   *source
	counting counting
	items    []*token       // received, in order
	bytes    int            // of the large ones among them
	largest  int            // message of late, in bytes
	groups   map[string]int // of a FIFO queue: how many messages are handed out

	pace     pace
	open     int       // polls
	asked    int       // messages, by those
	unheard  []request // of a FIFO queue, whose answers got lost
	failures int       // in a row
	rest     time.Time // no poll begins before
	gone     bool      // the queue was deleted: restore checks a new queue of its name before a poll
	single   time.Time // until then a poll asks for one message
	told     time.Time // when Receive told of a message that is of no use

	paused bool
	since  time.Time     // of the pause
	keep   time.Duration // for so long a pause leaves the buffer as it is

	heavy   bool // so much of the queue is in flight that retries must not be
	weighed time.Time
}

// idle reports whether no poll of f is open and none of its messages waits.
func (f *feed) idle() bool { return f.open == 0 && len(f.items) == 0 }

// take removes up to most items that can be handed out: the topic is not paused,
// enough of the lease is left, and, on a FIFO queue, nothing of their group is with
// the worker from an earlier Receive.
func (f *feed) take(most int, now time.Time) []*token {
	if f.paused {
		return nil
	}
	var skipped []*token
	return f.cut(func(t *token) bool {
		if most == 0 {
			return false
		}
		if t.limit.Sub(now) < f.source.terms.reserve() || f.groups[t.group()] > 0 || slices.ContainsFunc(skipped, t.follows) {
			skipped = append(skipped, t)
			return false
		}
		most--
		return true
	})
}

// add puts t behind what waits to be handed out. mu is held.
func (f *feed) add(t *token) {
	f.items = append(f.items, t)
	f.bytes += bulk(&t.record.message)
}

// cut takes items out of the buffer. mu is held.
func (f *feed) cut(which func(*token) bool) (removed []*token) {
	f.items = slices.DeleteFunc(f.items, func(t *token) bool {
		if !which(t) {
			return false
		}
		removed = append(removed, t)
		f.bytes -= bulk(&t.record.message)
		return true
	})
	return removed
}

// remove is cut when a Receive may wait for the items: it may need a poll now, and
// nothing else would tell it.
func (f *feed) remove(which func(*token) bool) []*token {
	removed := f.cut(which)
	if len(removed) > 0 {
		f.source.woken.Wake()
	}
	return removed
}

// bulk is how many bytes m takes of the room, 0 if it is small.
func bulk(m *brokers.Message) int {
	if size := len(m.Body) + adapter.Size(m.Headers); size > smallMessage {
		return size
	}
	return 0
}

// share is how many bytes of a feed may wait to be handed out.
func (f *feed) share() int { return mostBuffered / len(f.source.feeds) }

// fits is how many of n messages may be asked for, if they are as large as those of
// late. mu is held.
func (f *feed) fits(n int) int {
	if f.largest <= smallMessage {
		return n
	}
	return max(0, min(n, (f.share()-f.bytes)/f.largest-f.asked))
}

// isFull reports whether there is no room for so many bytes more. mu is held.
func (f *feed) isFull(more int) bool {
	return more > 0 && f.bytes > 0 && f.bytes+more > f.share()
}

// weigh takes in how large messages are that came together. mu is held.
func (f *feed) weigh(records []record) {
	largest := 0
	for i := range records {
		largest = max(largest, bulk(&records[i].message))
	}
	if len(records) > 0 {
		f.largest = max(largest, f.largest-f.largest/8)
	}
}

// group is within what messages keep their order, "" if they need not.
func (t *token) group() string {
	if !t.feed.fifo {
		return ""
	}
	return t.record.group
}

// follows reports whether t must not be delivered before an earlier one is
// settled.
func (t *token) follows(earlier *token) bool {
	group := t.group()
	return group != "" && earlier.group() == group
}

// followers removes from the buffer what is to be delivered after t. mu is
// held.
func (f *feed) followers(t *token) []*token {
	return f.remove(func(item *token) bool { return item.follows(t) })
}

// singly is for how long polls ask for one message after a retry: longer than
// most retries of a message are apart.
const singly = 15 * time.Minute

// block takes in that t is to come again, and with it its group, of which it removes
// from the buffer what is to be delivered after t. While retries hold up others,
// polls ask for one message: these would come with them, only to be given back at
// the next failure, and SQS counts each time. mu is held.
func (f *feed) block(t *token, now time.Time) (followers []*token) {
	followers = f.followers(t)
	if f.fifo && (now.Before(f.single) || f.groups[t.group()] > 1 || len(followers) > 0) {
		f.single = now.Add(singly)
	}
	return followers
}

// release gives messages back, or has those wait that are of no use to this worker:
// of a FIFO queue the last one first. It replaces them where one more receive would
// be their end. If it fails, they come when their visibility timeout is over.
func (f *feed) release(tokens []*token) {
	now := time.Now()
	j := &job{feed: f, deadline: now.Add(maxTotal)}
	for _, t := range tokens {
		e := &entry{token: t, seconds: seconds(t.away)}
		switch {
		case !now.Before(t.limit):
			continue
		case t.renews() && t.record.err == nil && t.record.unreadable == nil:
			j.copies = append(j.copies, e)
		default:
			j.moves = append(j.moves, e)
		}
		j.deadline = earlier(j.deadline, t.limit)
	}
	j.run(context.Background())
}
