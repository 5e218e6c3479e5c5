package idempotency

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redrive-go/redrive/classify"
)

const (
	defaultKeys = 100_000
	sweepStep   = 8 // expired keys that one call removes
)

var errFull = classify.Transient(errors.New("idempotency: all keys of the memory store are claimed: raise its bound above the number of handlers that run at once"))

// Memory is a Store in this process: for tests, and for one worker that may
// forget everything when it ends. It keeps its bound by forgetting, of the
// successes, the one that would end first; claims are never forgotten.
type Memory struct {
	max int

	mu      sync.Mutex
	entries map[string]*entry
	claims  byExpiry
	dones   byExpiry
}

// NewMemory makes a Memory of at most max keys, about 400 bytes each. Less
// than 1 means 100,000.
func NewMemory(max int) *Memory {
	if max < 1 {
		max = defaultKeys
	}
	return &Memory{max: max, entries: make(map[string]*entry)}
}

// Begin implements Store. It fails only if ctx has ended, or as many keys are
// claimed as there is room for.
func (s *Memory) Begin(ctx context.Context, c Claim, lease time.Duration) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.find(c.Key, now)
	switch {
	case e != nil && e.done:
		return Record{State: Done, Fingerprint: e.fingerprint, Left: e.expires.Sub(now)}, nil
	case e != nil && e.token != c.Token:
		return Record{State: InProgress, Fingerprint: e.fingerprint, Left: e.expires.Sub(now)}, nil
	case e == nil && !s.makeRoom():
		return Record{}, errFull
	}
	s.put(e, c, false, now.Add(lease))
	return Record{State: Claimed, Fingerprint: c.Fingerprint, Left: lease}, nil
}

// Complete implements Store.
func (s *Memory) Complete(ctx context.Context, c Claim, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.find(c.Key, now)
	switch {
	case e != nil && e.token != c.Token:
		return ErrClaimLost
	case e == nil && !s.makeRoom():
		return errFull
	}
	s.put(e, c, true, now.Add(ttl))
	return nil
}

// Release implements Store.
func (s *Memory) Release(ctx context.Context, c Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[c.Key]; e != nil && !e.done && e.token == c.Token {
		s.remove(e)
	}
	return nil
}

// Len returns how many keys are claimed or done, including some that have
// ended and are still to be removed.
func (s *Memory) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// find returns the entry of key, nil if it is absent or has ended, and removes
// a few that have ended.
func (s *Memory) find(key string, now time.Time) *entry {
	for range sweepStep {
		if !s.sweep(&s.claims, now) && !s.sweep(&s.dones, now) {
			break
		}
	}
	e := s.entries[key]
	if e != nil && !now.Before(e.expires) {
		s.remove(e)
		return nil
	}
	return e
}

func (s *Memory) sweep(h *byExpiry, now time.Time) bool {
	if len(*h) == 0 || now.Before((*h)[0].expires) {
		return false
	}
	s.remove((*h)[0])
	return true
}

func (s *Memory) makeRoom() bool {
	if len(s.entries) < s.max {
		return true
	}
	if len(s.dones) == 0 {
		return false
	}
	s.remove(s.dones[0])
	return true
}

func (s *Memory) put(e *entry, c Claim, done bool, expires time.Time) {
	if e != nil {
		s.remove(e)
	}
	e = &entry{key: c.Key, token: c.Token, fingerprint: c.Fingerprint, done: done, expires: expires}
	s.entries[c.Key] = e
	heap.Push(s.heapOf(e), e)
}

func (s *Memory) remove(e *entry) {
	delete(s.entries, e.key)
	heap.Remove(s.heapOf(e), e.index)
}

func (s *Memory) heapOf(e *entry) *byExpiry {
	if e.done {
		return &s.dones
	}
	return &s.claims
}

type entry struct {
	key, token, fingerprint string

	done    bool
	expires time.Time
	index   int // in its heap
}

// byExpiry is a heap: the entry that ends first is at index 0.
type byExpiry []*entry

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }

func (h byExpiry) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *byExpiry) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *byExpiry) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}

var _ Store = (*Memory)(nil)
