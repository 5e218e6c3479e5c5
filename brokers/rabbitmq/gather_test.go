package rabbitmq

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
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
	g := &gatherer{Conn: r}
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
	big := strings.Repeat("x", gathered)
	g.gather()
	write("y")
	write(big)
	write("z")
	flush()
	if want := []string{"at once", "abc", "d", "at once again", "y" + big, "z"}; !slices.Equal(r.writes, want) {
		t.Errorf("written %.60q, want %.60q", r.writes, want)
	}
}

func TestGathererReportsErrors(t *testing.T) {
	r := &recorder{err: errors.New("broken")}
	g := &gatherer{Conn: r}
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

func TestGathererKeepsFramesWhole(t *testing.T) {
	r := &recorder{}
	g := &gatherer{Conn: r}
	var wg sync.WaitGroup
	for i := range byte(8) {
		wg.Go(func() {
			for range 500 {
				g.gather()
				g.Write(bytes.Repeat([]byte{'a' + i}, 100))
				g.flush()
			}
		})
	}
	wg.Wait()
	all := strings.Join(r.writes, "")
	if len(all) != 8*500*100 {
		t.Fatalf("%d bytes written, want %d", len(all), 8*500*100)
	}
	for at := 0; at < len(all); at += 100 {
		if frame := all[at : at+100]; strings.Trim(frame, frame[:1]) != "" {
			t.Fatalf("frames are mixed: %q", frame)
		}
	}
}
