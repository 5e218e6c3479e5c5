//go:build unix

package sqlstore_test

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
)

// startPostgres starts a Postgres without persistence, and returns its URL and a
// function that stops it.
func startPostgres() (url string, stop func(), err error) {
	initdb, server, err := programs()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "redrive-postgres-")
	if err != nil {
		return "", nil, err
	}
	owner, err := ownerOf(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(initdb, "-D", data, "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	create.Dir, create.SysProcAttr = dir, owner
	if out, err := create.CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("initdb: %w\n%s", err, out), os.RemoveAll(dir))
	}
	port, err := freePort()
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	var log bytes.Buffer
	cmd := exec.Command(server, "-D", data, "-h", "127.0.0.1", "-p", port, "-k", dir, "-F")
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = dir, owner, &log
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // ends connections, too
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	url = "postgres://test@" + net.JoinHostPort("127.0.0.1", port) + "/postgres?sslmode=disable"
	if err := answers(url); err != nil {
		stop()
		return "", nil, fmt.Errorf("postgres: %w\n%s", err, log.String())
	}
	return url, stop, nil
}

// programs finds initdb and postgres in the path, or where Debian keeps the
// versions that are installed side by side.
func programs() (initdb, server string, err error) {
	if initdb, err = exec.LookPath("initdb"); err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
		if len(found) == 0 {
			return "", "", fmt.Errorf("install PostgreSQL (the package postgresql): %w", err)
		}
		initdb = found[len(found)-1]
	}
	server = filepath.Join(filepath.Dir(initdb), "postgres")
	_, err = os.Stat(server)
	return initdb, server, err
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

func freePort() (port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err = net.SplitHostPort(l.Addr().String())
	return port, err
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
