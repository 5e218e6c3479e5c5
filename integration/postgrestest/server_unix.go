//go:build unix

package postgrestest

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/integration/freeport"
	"github.com/redrive-go/redrive/integration/harness"
)

// Server is a Postgres that tests have started. Its database is gone after Stop.
type Server struct {
	URL string

	dir, port string
	args      []string
	owner     *syscall.SysProcAttr
	cmd       *exec.Cmd
}

// Start starts a server with further arguments.
func Start(args ...string) (*Server, error) {
	initdb := harness.Initdb()
	if initdb == "" {
		return nil, errors.New("install PostgreSQL (the package postgresql)")
	}
	dir, err := os.MkdirTemp("", "redrive-postgres-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.create(initdb); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.URL = "postgres://test@" + net.JoinHostPort("127.0.0.1", s.port) + "/postgres?sslmode=disable"
	s.args = append([]string{filepath.Join(filepath.Dir(initdb), "postgres"), "-D", s.data(), "-h", "127.0.0.1", "-p", s.port, "-k", dir}, args...)
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) create(initdb string) (err error) {
	if s.owner, err = ownerOf(s.dir); err != nil {
		return err
	}
	cmd := exec.Command(initdb, "-D", s.data(), "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = s.dir, s.owner
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	ports, err := freeport.Ports(1)
	if err != nil {
		return err
	}
	s.port = ports[0]
	return nil
}

// Restart starts the server on the data that it had.
func (s *Server) Restart() error {
	var log bytes.Buffer
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = s.dir, s.owner, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	if err := answers(s.URL); err != nil {
		_ = s.Kill()
		return fmt.Errorf("postgres: %w\n%s", err, log.String())
	}
	return nil
}

// Kill ends the server as a crash does: transactions and connections are cut.
func (s *Server) Kill() error {
	err := s.cmd.Process.Signal(syscall.SIGQUIT)
	_ = s.cmd.Wait() // it does not end in good order
	return err
}

// Stop ends the server and removes its data.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGINT) // ends connections, too
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// ownerOf gives dir to whoever a server may run as: root must not.
func ownerOf(dir string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(nobody.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// answers waits until the server does.
func answers(url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	for end := time.Now().Add(30 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if err = db.Ping(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
