package kafka

import (
	"bytes"
	"sync"
)

// spares are the buffers of answers, to be used again. A sync.Pool would lose most
// of them: there are several collections of garbage between two large answers.
type spares struct {
	mu   sync.Mutex
	free []*bytes.Buffer
	size int // of those
	idle int // answers in a row that needed none
}

var buffers spares

// idleAnswers is after how many small answers in a row the spares are let go.
const idleAnswers = 16

// get returns an empty buffer, the last one that was put.
func (s *spares) get() *bytes.Buffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free) - 1
	if n < 0 {
		return new(bytes.Buffer)
	}
	b := s.free[n]
	s.free[n] = nil
	s.free, s.size = s.free[:n], s.size-b.Cap()
	return b
}

// put takes b back, as far as there is room.
func (s *spares) put(b *bytes.Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle++; b.Len() >= leastBuffer {
		s.idle = 0
	}
	switch {
	case s.idle >= idleAnswers:
		s.free, s.size = nil, 0
	case s.size+b.Cap() <= mostAnswer:
		b.Reset()
		s.free, s.size = append(s.free, b), s.size+b.Cap()
	}
}
