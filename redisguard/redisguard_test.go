package redisguard

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// valid are well-formed answers. They stay so if they are joined.
var valid = []string{
	"+OK\r\n", "-ERR no\r\n", ":-7\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123456789012345678901234567890\r\n",
	"$-1\r\n", "$0\r\n\r\n", "$5\r\na\r\nb\n\r\n", "!5\r\nERR x\r\n", "=7\r\ntxt:abc\r\n",
	"*-1\r\n", "*0\r\n", "*2\r\n*1\r\n$1\r\n*\r\n:1\r\n", "~1\r\n+a\r\n", ">2\r\n+message\r\n$1\r\nx\r\n",
	"%0\r\n", "%2\r\n+a\r\n*1\r\n%1\r\n:1\r\n_\r\n$1\r\nb\r\n-ERR nested\r\n",
	"|1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+a\r\n+b\r\n:1\r\n", "|0\r\n+OK\r\n",
	"*100000\r\n" + strings.Repeat(":1\r\n", 100_000),
	"*3000000\r\n" + strings.Repeat("*0\r\n", 3_000_000),
	"$1000000\r\n" + strings.Repeat("x", 1_000_000) + "\r\n",
}

// malformed are answers with a bad part that is refused, after a good part.
var malformed = []struct{ good, bad, want string }{
	{"", "$9000000000000000000\r\n", "more than 536870912 bytes"},
	{"+OK\r\n$3\r\nabc\r\n", "$536870913\r\n", "more than 536870912 bytes"},
	{"*2\r\n$2\r\nab\r\n", "*9000000000000\r\n", "more than 536870912 bytes"},
	{"*2\r\n*3000000\r\n:1\r\n", "*3000000\r\n", "more than 536870912 bytes"},
	{"*64\r\n" + strings.Repeat("*1\r\n", 63), "*1\r\n", "more than 64 arrays"},
	{"%1\r\n", "*0\r\n", `a map whose key begins with '*'`},
	{"%2\r\n+a\r\n+b\r\n", "-ERR\r\n", `a map whose key begins with '-'`},
	{"%1\r\n", "$-1\r\n", `a map whose key begins with '$'`},
	{"%1\r\n", "_\r\n", `a map whose key begins with '_'`},
	{"", "*-2\r\n", `the length "-2"`},
	{"", "*\r\n", `the length ""`},
	{"", "*1\n", `the length "1\n"`},
	{"", "$00000000000000000000000000001\r\n", "the length"},
	{":1\r\n", "\r\n", `a value with '\r'`},
	{":1\r\n", "HTTP/1.1 400 Bad Request\r\n", `a value with 'H'`},
	{"", "+" + strings.Repeat("a", 1<<20) + "\r\n", "a line of more than 1048576 bytes"},
}

// feed checks an answer in pieces of n bytes, and returns how many are good.
func feed(c *checker, answer string, n int) (good int) {
	for len(answer) > 0 && c.err == nil {
		piece := answer[:min(n, len(answer))]
		good += c.check([]byte(piece))
		answer = answer[len(piece):]
	}
	return good
}

func TestCheck(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 4096, 1 << 30} {
		var all checker
		for _, answer := range valid {
			var c checker
			if good := feed(&c, answer, n); c.err != nil || good != len(answer) || len(c.open) > 0 || c.announced > 0 {
				t.Errorf("%.40q in pieces of %d: %d bytes are good: %v", answer, n, good, c.err)
			}
			if feed(&all, answer, n); all.err != nil {
				t.Fatalf("%.40q in pieces of %d, after others: %v", answer, n, all.err)
			}
		}
		for _, tt := range malformed {
			var c checker
			good := feed(&c, tt.good+tt.bad+"+OK\r\n", n)
			if !errors.Is(c.err, ErrMalformed) || !strings.Contains(c.err.Error(), tt.want) || n > 1<<20 && good != len(tt.good) {
				t.Errorf("%.40q, %.40q in pieces of %d: %d bytes are good: %v, want %q", tt.good, tt.bad, n, good, c.err, tt.want)
			}
		}
	}
}

// FuzzCheck tests that an answer in pieces is checked like the whole answer. It
// also tests that no accepted answer makes the client reserve more than
// maxAnswer.
func FuzzCheck(f *testing.F) {
	for _, s := range valid[:21] {
		f.Add(s, 3)
	}
	for _, tt := range malformed[:15] {
		f.Add(tt.good+tt.bad, 2)
	}
	f.Fuzz(func(t *testing.T, answer string, n int) {
		var whole, pieces checker
		whole.check([]byte(answer))
		feed(&pieces, answer, max(n&0xff, 1))
		if (whole.err == nil) != (pieces.err == nil) || whole.err != nil && whole.err.Error() != pieces.err.Error() {
			t.Fatalf("%q: %v as a whole, %v in pieces", answer, whole.err, pieces.err)
		}
		if whole.announced > maxAnswer && whole.err == nil || len(whole.open) > maxDepth {
			t.Fatalf("%q: %d bytes, %d deep", answer, whole.announced, len(whole.open))
		}
	})
}

// answer answers SET with +OK, and the commands of a greeting with an error. It
// ends when the client hangs up, or after most answers to SET.
func answer(c net.Conn, most int) {
	defer func() { _ = c.Close() }()
	for in := bufio.NewScanner(c); most > 0 && in.Scan(); {
		var reply string
		switch strings.ToLower(in.Text()) {
		default:
			continue
		case "hello", "client":
			reply = "-ERR unknown command\r\n"
		case "set":
			reply = "+OK\r\n"
			most--
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// server returns a dialer that reports each connection.
func server(dials chan<- string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		dials <- "dial"
		go answer(theirs, math.MaxInt)
		return ours, nil
	}
}

type bomb struct{}

func (bomb) MarshalBinary() ([]byte, error) { panic("a bug of the caller") }

// TestPanicIsAnError makes the client panic in the middle of a command, alone
// and in a pipeline. The commands fail. The next command uses another
// connection, also with the oldest version of the client.
func TestPanicIsAnError(t *testing.T) {
	for name, call := range map[string]func(context.Context, *redis.Client) error{
		"command": func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, "a", bomb{}, 0).Err() },
		"pipeline": func(ctx context.Context, c *redis.Client) error {
			cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "a", "b", 0)
				p.Set(ctx, "a", bomb{}, 0)
				return nil
			})
			for _, cmd := range cmds {
				err = errors.Join(err, cmd.Err())
				if cmd.Err() == nil {
					return nil
				}
			}
			return err
		},
		"transaction": func(ctx context.Context, c *redis.Client) error {
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "a", bomb{}, 0)
				return nil
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dials := make(chan string, 100)
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: server(dials), PoolSize: 1, MaxRetries: -1})
				defer client.Close()
				Protect(client)
				Protect(client) // a second time is safe
				if err := client.Set(t.Context(), "a", "b", 0).Err(); err != nil {
					t.Fatal(err)
				}
				before := len(dials)
				for range 3 {
					if err := call(t.Context(), client); !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), "a bug of the caller") {
						t.Fatalf("%v, want ErrPanic", err)
					}
					var err error
					for range 3 { // the first attempts may fail on the old connection
						if err = client.Set(t.Context(), "a", "b", 0).Err(); err == nil {
							break
						}
					}
					if err != nil {
						t.Fatalf("after the panic: %v", err)
					}
				}
				if now := len(dials); now == before {
					t.Errorf("%d connections, want new ones after the panics", now)
				}
			})
		})
	}
}

// TestDialThatPanics makes the caller's dialer panic. go-redis calls the dialer
// in its own goroutines.
func TestDialThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialTimeout: time.Second,
			Dialer: func(context.Context, string, string) (net.Conn, error) { panic("a bug of the caller") }})
		defer func() {
			_ = client.Close()
			time.Sleep(time.Minute) // the goroutines of the pool end
		}()
		Protect(client)
		for range 100 { // after some failures, a goroutine of the pool dials
			if err := client.Set(t.Context(), "a", "b", 0).Err(); err == nil || !strings.Contains(err.Error(), "a bug of the caller") {
				t.Fatalf("%v, want the panic as an error", err)
			}
		}
	})
}

// TestSocketStaysVisible tests that the pool notices a server that hung up.
func TestSocketStaysVisible(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hungUp := make(chan struct{}, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				answer(c, 1)
				hungUp <- struct{}{}
			}()
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1})
	defer client.Close()
	Protect(client)
	for range 5 {
		if err := client.Set(t.Context(), "a", "b", 0).Err(); err != nil {
			t.Fatalf("a connection that the server has closed was used: %v", err)
		}
		<-hungUp
	}
}
