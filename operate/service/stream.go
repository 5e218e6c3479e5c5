package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// body opens a body that is kept elsewhere. Where it cannot, the task waits: nothing
// was called.
func (s *Service) body(ctx context.Context, ref string) (*stream, error) {
	if s.cfg.Bodies == nil {
		return nil, &deferral{reasonNoBodies, "", bodyPause}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	body, size, err := s.cfg.Bodies.Open(ctx, ref)
	if errors.Is(err, bodies.ErrTooLarge) {
		return nil, classify.Permanent(err)
	}
	s.trouble.note("read a body", err)
	if err != nil {
		return nil, &deferral{reasonBody, err.Error(), bodyPause}
	}
	return &stream{body: body, size: size}, nil
}

// stream is a body that is read while it is sent.
type stream struct {
	body io.ReadCloser
	size int64
	read int64 // so much of it

	mu     sync.Mutex
	closed bool
	err    *unreadError
}

// unreadError is why a body broke off. Package httpretry looks for Deferred: it is
// nothing that the breaker of the target should hear.
type unreadError struct{ error }

func (*unreadError) Deferred() bool { return true }

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if s.read += int64(n); err == io.EOF && s.read < s.size {
		err = io.ErrUnexpectedEOF // it is shorter than its store said
	}
	if err == nil || err == io.EOF {
		return n, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.err == nil { // or net/http has given up
		s.err = &unreadError{err}
	}
	return n, &unreadError{err}
}

// Close implements io.Closer. It may be called again.
func (s *stream) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	return s.body.Close()
}

// broken is why a call has failed whose body broke off; nil if it did not. The target
// may have seen a part, so it is an attempt, and one that is worth another, whatever
// the error would mean elsewhere.
func (s *stream) broken() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %v", causeBodyBroke, s.err)
}
