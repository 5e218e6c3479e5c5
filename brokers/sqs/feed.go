package sqs

import (
	"cmp"
	"context"
	"slices"
	"time"
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
	asked    int       // by those beyond the first
	first    int       // what the first of them asked for, 0 if it is not open
	unheard  []request // of a FIFO queue, whose answers got lost
	failures int       // in a row
	rest     time.Time
	gone     bool // the queue was deleted: restore checks a new queue of its name before a poll
	pressure pressure
	single   time.Time // until then a poll asks for one message
	told     time.Time // when Receive told of a message that is of no use

	paused bool
	since  time.Time     // of the pause
	keep   time.Duration // for so long a pause leaves the buffer as it is
}

// idle reports whether no poll of f is open and none of its messages waits.
func (f *feed) idle() bool { return f.open == 0 && len(f.items) == 0 }

// singly is for how long polls ask for one message after a retry: longer than
// most retries of a message are apart.
const singly = 15 * time.Minute

// batch is how many messages a poll asks for. While retries hold up others of
// their group, that is one: these would come with them, only to be given back at
// the next failure, and SQS counts each time. Where that count is short, it is one
// from the start.
func (f *feed) batch(now time.Time) int {
	if now.Before(f.single) || f.fifo && f.tight {
		return 1
	}
	return batchSize
}

// block notes that t is to come again, and with it its group. mu is held.
func (f *feed) block(t *token, now time.Time) {
	if f.fifo && (now.Before(f.single) || f.groups[t.group()] > 1 || slices.ContainsFunc(f.items, t.precedes)) {
		f.single = now.Add(singly)
	}
}

// take removes up to most items that can be handed out: the topic is not paused,
// enough of the lease is left, and, on a FIFO queue, nothing of their group is with the worker from an
// earlier Receive.
func (f *feed) take(most int, now time.Time) []*token {
	if f.paused {
		return nil
	}
	var taken, skipped []*token
	f.items = slices.DeleteFunc(f.items, func(t *token) bool {
		if len(taken) == most {
			return false
		}
		if t.limit.Sub(now) < f.source.terms.reserve() || f.groups[t.group()] > 0 || slices.ContainsFunc(skipped, t.follows) {
			skipped = append(skipped, t)
			return false
		}
		taken = append(taken, t)
		f.drop(t)
		return true
	})
	return taken
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

func (t *token) precedes(later *token) bool { return later.follows(t) }

// lock holds back the group of a token that is handed out, unlock does not any
// more. mu is held.
func (f *feed) lock(t *token) {
	if group := t.group(); group != "" {
		f.groups[group]++
	}
}

func (f *feed) unlock(t *token) {
	group := t.group()
	if group == "" {
		return
	}
	if f.groups[group]--; f.groups[group] == 0 {
		delete(f.groups, group)
	}
}

// followers removes from the buffer what is to be delivered after t. mu is
// held.
func (f *feed) followers(t *token) []*token {
	if t.group() == "" {
		return nil
	}
	return f.remove(func(item *token) bool { return item.follows(t) })
}

// remove takes items out of the buffer. A Receive that waits for them may need a
// poll now, and nothing else would tell it. mu is held.
func (f *feed) remove(which func(*token) bool) []*token {
	var removed []*token
	f.items = slices.DeleteFunc(f.items, func(t *token) bool {
		if !which(t) {
			return false
		}
		removed = append(removed, t)
		f.drop(t)
		return true
	})
	if len(removed) > 0 {
		f.source.woken.Wake()
	}
	return removed
}

// release makes messages visible again, of a FIFO queue the last one first, or
// replaces them where that would be their end.
func (f *feed) release(tokens []*token) {
	if tokens = f.renew(tokens); len(tokens) == 0 {
		return
	}
	slices.SortFunc(tokens, func(a, b *token) int { return cmp.Compare(b.seq, a.seq) })
	changes := make([]change, len(tokens))
	for i, t := range tokens {
		changes[i] = change{handle: t.record.handle}
	}
	client := f.source.broker.client
	if f.fifo {
		client.hideInOrder(context.Background(), f.url, changes)
	} else {
		client.hide(context.Background(), f.url, changes)
	}
}

// renew replaces messages by copies if one more receive of them must not count. It
// returns the others, and those that could not be copied.
func (f *feed) renew(tokens []*token) (rest []*token) {
	var out []outgoing
	var old []*token
	for _, t := range tokens {
		if t.renews() && t.record.err == nil && t.record.unreadable == nil {
			meta := t.meta
			if o, err := f.compose(t.record.message, &meta, 0); err == nil {
				out, old = append(out, o), append(old, t)
				continue
			}
		}
		rest = append(rest, t)
	}
	if len(out) == 0 {
		return rest
	}
	client := f.source.broker.client
	errs := client.send(context.Background(), f.url, out)
	var handles []string
	for i, t := range old {
		if errorAt(errs, i) != nil {
			rest = append(rest, t)
		} else {
			handles = append(handles, t.record.handle)
		}
	}
	client.remove(context.Background(), f.url, handles)
	return rest
}
