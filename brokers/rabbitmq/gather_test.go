package rabbitmq

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

// recorder keeps what is written to it, write by write.
type recorder struct {
	net.Conn
	writes []string
	err    error
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	r.writes = append(r.writes, string(p))
	return len(p), nil
}

func TestGatherer(t *testing.T) {
	r := &recorder{}
	g := newGatherer(r)
	write := func(s string) {
		t.Helper()
		if n, err := g.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write(%q) = %d, %v", s, n, err)
		}
	}
	flush := func() {
		t.Helper()
		if err := g.flush(); err != nil {
			t.Fatalf("flush: %v", err)
		}
	}
	write("at once")
	g.gather()
	write("a")
	write("b")
	g.gather()
	write("c")
	flush() // the inner one sends too: its caller waits for an answer
	write("d")
	flush()
	write("at once again")
	g.gather()
	flush()
	if want := []string{"at once", "abc", "d", "at once again"}; !slices.Equal(r.writes, want) {
		t.Errorf("written %.60q, want %.60q", r.writes, want)
	}
	r.writes = nil
	g.gather()
	write(strings.Repeat("x", 1<<20))
	if len(r.writes) == 0 {
		t.Error("a mebibyte is kept, want it to be written")
	}
}

func TestGathererReportsErrors(t *testing.T) {
	r := &recorder{err: errors.New("broken")}
	g := newGatherer(r)
	g.gather()
	if _, err := g.Write([]byte("a")); err != nil {
		t.Errorf("Write before flush: %v, want none yet", err)
	}
	if err := g.flush(); !errors.Is(err, r.err) {
		t.Errorf("flush = %v, want %v", err, r.err)
	}
	if _, err := g.Write([]byte("a")); !errors.Is(err, r.err) {
		t.Errorf("Write = %v, want %v", err, r.err)
	}
}
