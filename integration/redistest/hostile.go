package redistest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// answer is a reply that a server gives to every command.
type answer struct {
	name string
	text string
	odd  bool // well-formed but of the wrong type: a command may accept it
}

// answers are replies of a broken or hostile server. Go's client panics on the
// first of them. On the next ones, the runtime ends the process.
var answers = []answer{
	{"string longer than an int", "$9223372036854775807\r\n", false},
	{"huge string", "$9000000000000000000\r\n", false},
	{"huge array", "*9000000000000000\r\n", false},
	{"huge map", "%9000000000000000\r\n", false},
	{"huge set", "~9000000000000000\r\n", false},
	{"huge push", ">9000000000000000\r\n", false},
	{"huge attribute", "|9000000000000000\r\n", false},
	{"huge verbatim string", "=9000000000000000000\r\n", false},
	{"huge error", "!9000000000000000000\r\n", false},
	{"map with an array as a key", "%1\r\n*0\r\n+x\r\n", false},
	{"map with a map as a key", "*1\r\n%1\r\n%0\r\n+x\r\n", false},
	{"array beyond the memory", "*9000000000000\r\n", false},
	{"string beyond the memory", "$100000000000000\r\n", false},
	{"array of huge arrays", "*2\r\n*3000000\r\n*3000000\r\n", false},
	{"deep arrays", strings.Repeat("*1\r\n", 100_000), false},
	{"negative length", "*-7\r\n", false},
	{"negative string", "$-7\r\n", false},
	{"length in words", "$many\r\n", false},
	{"no length", "*\r\n", false},
	{"unknown type", "\x00\r\n", false},
	{"empty line", "\r\n", false},
	{"another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n", false},
	{"endless line", "+" + strings.Repeat("a", 2<<20), false},
	{"status", "+OK\r\n", true},
	{"number", ":7\r\n", true},
	{"nil", "$-1\r\n", true},
	{"RESP 3 nil", "_\r\n", true},
	{"nil array", "*-1\r\n", true},
	{"empty array", "*0\r\n", true},
	{"array of arrays", "*3\r\n*0\r\n*0\r\n*0\r\n", true},
	{"array of nils", "*3\r\n$-1\r\n$-1\r\n$-1\r\n", true},
	{"map", "%1\r\n+a\r\n+b\r\n", true},
	{"boolean", "#t\r\n", true},
	{"attribute before a number", "|1\r\n+a\r\n+b\r\n:1\r\n", true},
}

// Hostile has a server give malformed answers: to the greeting, to each
// command, or to each command but the first. The call that prepare returns
// fails then, and succeeds again once the server is mended. Hostile tests a
// client whose pool has one connection, and a client of a cluster of one node.
// Everything runs in a bubble of synctest. The map good has the correct answer
// to each command, by its name in lower case.
func Hostile(t *testing.T, good map[string]string, prepare func(t *testing.T, client redis.UniversalClient) (call func() error)) {
	t.Helper()
	for _, a := range answers {
		for mode, when := range []string{"greeting", "command", "second command"} {
			for _, kind := range []string{"client", "cluster"} {
				t.Run(fmt.Sprintf("%s to the %s of a %s", a.name, when, kind), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &hostile{answer: a.text, good: good, greeting: mode == 0}
						client := s.client(kind)
						defer func() {
							_ = client.Close()
							time.Sleep(time.Minute) // a cluster's goroutines end
						}()
						call := prepare(t, client)
						if mode > 0 { // begin with a connection that has worked
							if err := call(); err != nil {
								t.Fatalf("the call fails on a good server: %v", err)
							}
						}
						s.spoil(max(mode-1, 0))
						err := call()
						if given := s.mend(); given > 0 && err == nil && !a.odd {
							t.Errorf("no error after %d malformed answers", given)
						}
						for range 30 {
							if err = call(); err == nil {
								return
							}
							time.Sleep(time.Second)
						}
						t.Errorf("the call still fails on the mended server: %v", err)
					})
				})
			}
		}
	}
}

// hostile is the server.
type hostile struct {
	answer   string
	good     map[string]string
	greeting bool // is spoiled like a command

	mu      sync.Mutex
	spoiled bool
	after   int // commands that still get a good answer
	given   int // malformed answers so far
}

func (s *hostile) client(kind string) redis.UniversalClient {
	dial := func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.serve(theirs)
		return ours, nil
	}
	if kind == "cluster" {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, MaxRetries: -1, Dialer: dial})
	}
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, PoolSize: 1, Dialer: dial})
}

func (s *hostile) spoil(after int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoiled, s.after, s.given = true, after, 0
}

func (s *hostile) mend() (given int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoiled = false
	return s.given
}

// serve answers commands until the client hangs up.
func (s *hostile) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		name, err := readCommand(r)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, s.reply(name)); err != nil {
			return
		}
	}
}

// readCommand returns the name of a command. For CLUSTER that includes the name
// of the subcommand.
func readCommand(r *bufio.Reader) (name string, err error) {
	length := func() (n int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	words, err := length()
	if err != nil {
		return "", err
	}
	for i := range words {
		n, err := length()
		if err != nil {
			return "", err
		}
		word := make([]byte, n+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return "", err
		}
		switch text := strings.ToLower(string(word[:n])); {
		case i == 0:
			name = text
		case i == 1 && name == "cluster":
			name += " " + text
		}
	}
	return name, nil
}

func (s *hostile) reply(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	good, known := s.good[name]
	switch {
	case name == "cluster slots":
		good = "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:1\r\n$1\r\na\r\n"
	case name == "command": // the client of a cluster sends it
		good = "*0\r\n"
	case !known:
		good = "-ERR unknown command\r\n"
	}
	if !s.spoiled || !known && !(s.greeting && name == "hello") {
		return good
	}
	if s.after--; s.after >= 0 {
		return good
	}
	s.given++
	return s.answer
}
