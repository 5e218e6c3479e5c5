package service

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/internal/web"
)

// TestLargeRequests reads few of them at once, however many there are, and fewer of a
// tenant.
func TestLargeRequests(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		tenants, each, accepted int
	}{
		{"one that is slow", 1, mostQueued + 3, mostLarge / 2},
		{"many", 4, mostLarge, mostLarge},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			o.policy()
			for tenant := range tt.tenants {
				o.store.policies[[2]string{fmt.Sprint("tenant-", tenant), "quick"}] = []Policy{{ID: "quick", Version: 1}}
			}
			many := tt.tenants * tt.each
			var sending sync.WaitGroup
			var read, accepted, refused atomic.Int64
			finish := make(chan struct{})
			send := func(tenant, key string, until chan struct{}) int {
				body := taskBody(fmt.Sprintf(`"idempotencyKey": "%s", "body": "%s"`, key, strings.Repeat("a", smallRequest+1000)))
				r := httptest.NewRequest(http.MethodPost, "/retry-tasks", &stuck{text: strings.NewReader(body), until: until, read: &read})
				r.Host = "localhost"
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-Tenant", tenant)
				w := httptest.NewRecorder()
				o.handler.ServeHTTP(w, r)
				return w.Code
			}
			for n := range many {
				sending.Go(func() {
					switch code := send(fmt.Sprint("tenant-", n%tt.tenants), fmt.Sprint(n), finish); code {
					case http.StatusAccepted:
						accepted.Add(1)
					case http.StatusServiceUnavailable:
						refused.Add(1)
					default:
						t.Errorf("%s: answered with %d", tt.name, code)
					}
				})
			}
			synctest.Wait()
			if n, in := int(read.Load()), min(tt.accepted, mostLarge); n > many*smallRequest+in*2048 || n < many*smallRequest+in*1000 {
				t.Errorf("%s: %d bytes read of %d requests, want 1 MiB of each and all of %d", tt.name, n, many, in)
			}
			if n := int(refused.Load()); n != max(tt.each-mostQueued, 0) {
				t.Errorf("%s: %d are refused at once", tt.name, n)
			}
			if tt.tenants == 1 {
				now := make(chan struct{})
				close(now)
				if code := send("default", "another", now); code != http.StatusAccepted {
					t.Errorf("%s: another tenant is answered with %d", tt.name, code)
				}
			}
			time.Sleep(2 * turnTime) // the others have waited long enough
			close(finish)
			sending.Wait()
			if int(accepted.Load()) != tt.accepted || int(refused.Load()) != many-tt.accepted {
				t.Errorf("%s: %d of %d are accepted, %d refused, want %d accepted", tt.name, accepted.Load(), many, refused.Load(), tt.accepted)
			}
		})
	}
}

// stuck is a body whose end does not come until a channel is closed.
type stuck struct {
	text  *strings.Reader
	until chan struct{}
	read  *atomic.Int64
}

func (s *stuck) Read(p []byte) (int, error) {
	n, err := s.text.Read(p)
	if s.read.Add(int64(n)); err != nil {
		<-s.until
	}
	return n, err
}

// TestSlowClients ends connections that take their time, and tells those that got as
// far as the body.
func TestSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		here := &pipe{conns: make(chan net.Conn)}
		server := web.HTTP(o.handler, slog.New(slog.DiscardHandler))
		ended := make(chan error)
		go func() { ended <- server.Serve(here) }()
		for head, want := range map[string]string{
			"POST /retry-tasks HTTP/1.1\r\nHost: localh": "",
			"POST /retry-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{": "408",
			"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n":                           "431",
		} {
			client, conn := net.Pipe()
			here.conns <- conn
			var answer []byte
			var reading sync.WaitGroup
			reading.Go(func() { answer, _ = io.ReadAll(client) })
			start := time.Now()
			_, _ = io.WriteString(client, head)
			reading.Wait()
			if took := time.Since(start); took > web.ReadTimeout+time.Second || !strings.Contains(string(answer), want) || want == "" && len(answer) > 0 {
				t.Errorf("after %v: %q, want %q", took, answer, want)
			}
			_ = client.Close()
		}
		if o.stored() > 0 {
			t.Error("something was stored")
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

// pipe is a listener without a network.
type pipe struct{ conns chan net.Conn }

func (p *pipe) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p *pipe) Close() error   { close(p.conns); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7430} }

// FuzzTask demands of each task that is taken that it can be sent as it is, and says
// the same when it is sent again.
func FuzzTask(f *testing.F) {
	for _, seed := range []string{taskBody(""), taskBody(`"headers": {"x": "y"}, "delayMs": 5, "body": "a"`), taskBody(`"method": "GET", "bodyBase64": "YQ=="`), `{"headers": {"a": [{}]}}`, "{\"\xff\": 1}", `{"body": "\ud800\udc00\ufffd"}`} {
		f.Add([]byte(seed), "key")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
		task, p := parseTask(raw, []string{key}, now)
		if p != nil {
			if p.name == "" || p.Detail == "" || len(p.Detail) > 1000 {
				t.Fatalf("the problem %+v says too little, or too much", p)
			}
			return
		}
		r, err := http.NewRequest(task.Method, task.TargetURL, bytes.NewReader(task.Body))
		if err != nil {
			t.Fatalf("%q makes no request: %v", raw, err)
		}
		r.Header.Set("Idempotency-Key", task.IdempotencyKey)
		for name, value := range task.Headers {
			r.Header.Set(name, value)
		}
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			t.Fatalf("%q cannot be sent: %v", raw, err)
		}
		head, _, _ := bytes.Cut(wire.Bytes(), []byte("\r\n\r\n"))
		names := []string{"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Idempotency-Key"}
		for line := range bytes.SplitSeq(head, []byte("\r\n")) {
			if name, _, ok := bytes.Cut(line, []byte(":")); ok && task.Headers[string(name)] == "" && !slices.Contains(names, string(name)) && !bytes.HasSuffix(line, []byte("HTTP/1.1")) {
				if _, own := task.Headers[string(name)]; !own {
					t.Fatalf("%q has a header %q that nobody gave: %q", raw, name, head)
				}
			}
		}
		if again, p := parseTask(raw, []string{key}, now); p != nil || again.TargetURL != task.TargetURL || !bytes.Equal(again.Body, task.Body) {
			t.Fatalf("%q is another task now: %+v, %v", raw, again, p)
		}
	})
}
