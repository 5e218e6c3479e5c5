//go:build !unix

package postgrestest

import "errors"

// Server is a Postgres that tests have started.
type Server struct{ URL string }

// Start fails on this system.
func Start(...string) (*Server, error) {
	return nil, errors.New("the tests start none on this system")
}

// Stop does nothing on this system.
func (s *Server) Stop() {}

// Kill fails on this system.
func (s *Server) Kill() error { return errors.ErrUnsupported }

// Restart fails on this system.
func (s *Server) Restart() error { return errors.ErrUnsupported }
