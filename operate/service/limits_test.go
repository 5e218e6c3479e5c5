package service

import (
	"bytes"
	"errors"
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
			o.policy("tenant-0", "tenant-1", "tenant-2", "tenant-3")
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
		must(t, server.Close())
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

// TestUsage tests that Usage counts only the tasks, bodies and policies of one
// tenant.
func TestUsage(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		kept := func(want Quota) {
			t.Helper()
			gives(t, want)(s.Usage(t.Context(), "acme"))
		}
		var all []Task
		for n := range 8 {
			given := task(n)
			switch n {
			case 0, 1: // two tasks share a body outside of their rows
				given.Body, given.BodyRef, given.BodySize = nil, "acme/"+strings.Repeat("a", 64), 1000
			case 2, 3: // bodies in the rows of the tasks
				given.BodySize = 100
			case 4: // this task and the next one end below
				given.Body, given.BodyRef, given.BodySize = nil, "acme/"+strings.Repeat("b", 64), 10_000
			case 5:
				given.Body, given.BodyRef, given.BodySize = nil, "acme/"+strings.Repeat("c", 64), 100_000
			case 7:
				given.Tenant, given.BodySize = "umbrella", 7
			}
			all = append(all, create(t, s, given)...)
		}
		must(t, errOf(s.PutPolicy(t.Context(), policy("acme", 6))))
		kept(Quota{Tasks: 7, Bytes: 111_200, Policies: 2})
		claimed := claimAll(t, s, all[3], all[4], all[5])
		kept(Quota{Tasks: 7, Bytes: 111_200, Policies: 2})
		must(t, s.Settle(t.Context(), []Outcome{ended(claimed[0], Pending, 500), ended(claimed[1], Succeeded, 200), ended(claimed[2], Exhausted, 400)}))
		kept(Quota{Tasks: 5, Bytes: 101_200, Policies: 2}) // the body of an exhausted task counts
		must(t, errOf(s.Cancel(t.Context(), "acme", all[2].ID)))
		kept(Quota{Tasks: 4, Bytes: 101_100, Policies: 2})
	})
}

// TestDeletePolicy tests that only policies without tasks are deleted, and that
// a version never stands for two policies.
func TestDeletePolicy(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		given := create(t, s, task(1))[0]
		deletes := func(tenant string, want error) Policy {
			t.Helper()
			p, err := s.DeletePolicy(t.Context(), tenant, "standard")
			if !errors.Is(err, want) {
				t.Errorf("DeletePolicy: %v, want %v", err, want)
			}
			return p
		}
		deletes("acme", ErrPolicyUsed)
		claimed := claimAll(t, s, given)
		deletes("acme", ErrPolicyUsed)
		must(t, s.Settle(t.Context(), []Outcome{ended(claimed[0], Exhausted, 400)}))
		deletes("acme", ErrPolicyUsed)
		must(t, errOf(s.Revive(t.Context(), "acme", given.ID)))
		must(t, errOf(s.Cancel(t.Context(), "acme", given.ID)))
		second, err := s.PutPolicy(t.Context(), policy("acme", 6))
		if err != nil || second.Version != 2 {
			t.Fatalf("PutPolicy = %+v, %v", second, err)
		}
		if p := deletes("acme", nil); p.Version != 2 || p.MaxAttempts != 6 {
			t.Errorf("deleted %+v", p)
		}
		deletes("acme", ErrNotFound)
		if p, err := s.Policy(t.Context(), "umbrella", "standard", 0); err != nil || p.Version != 1 {
			t.Errorf("another tenant has %+v, %v", p, err)
		}
		if _, _, err := s.Create(t.Context(), task(2)); !errors.Is(err, ErrNotFound) {
			t.Errorf("a task of a policy that was deleted: %v", err)
		}
		if p, err := s.PutPolicy(t.Context(), policy("acme", 7)); err != nil || p.Version != 3 {
			t.Errorf("created again, it is %+v, %v, want version 3", p, err)
		}
		if p, err := s.PutPolicy(t.Context(), policy("acme", 7)); err != nil || p.Version != 3 {
			t.Errorf("sent again, it is %+v, %v, want version 3", p, err)
		}
	})
}

// TestDeletePolicyBesideTasks creates tasks while their policy is deleted. No
// task may remain without a policy.
func TestDeletePolicyBesideTasks(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		for round := range 20 {
			p, err := s.PutPolicy(t.Context(), policy("acme", 5))
			must(t, err)
			var created error
			var creating sync.WaitGroup
			given := task(round)
			given.PolicyVersion = p.Version
			creating.Go(func() { _, _, created = s.Create(t.Context(), given) })
			_, deleted := s.DeletePolicy(t.Context(), "acme", "standard")
			creating.Wait()
			if (created == nil) != errors.Is(deleted, ErrPolicyUsed) || (deleted == nil) != errors.Is(created, ErrNotFound) {
				t.Fatalf("creating a task: %v; deleting its policy: %v", created, deleted)
			}
			if created == nil {
				must(t, errOf(s.Cancel(t.Context(), "acme", given.ID)))
			}
		}
	})
}

// TestQuotaOfATenant fills the quota of one tenant. The tasks of other tenants
// are still accepted. A task that is stored already is answered with 200. New
// tasks are accepted after old ones have ended. A policy that is sent again
// makes no new version, so that another one still fits.
func TestQuotaOfATenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.api.Quotas = Quotas{All: Quota{Tasks: 100, Bytes: 3 * (smallBody + 1), Policies: 2}, Of: map[string]Quota{"large": {Tasks: 200}}}
		post := func(tenant, key, body string, e exchange) {
			t.Helper()
			e.method, e.path, e.header = "POST", "/retry-tasks", http.Header{"X-Tenant": {tenant}}
			e.body = taskBody(fmt.Sprintf(`"idempotencyKey": %q, "body": %q`, key, body))
			o.do(e)
		}
		o.policy("small", "other", "large")
		for _, e := range []exchange{
			{body: policyBody, status: http.StatusOK},
			{body: policyBody, status: http.StatusOK},
			{body: strings.Replace(policyBody, "quick", "second", 1), status: http.StatusOK},
			{body: strings.Replace(policyBody, "quick", "third", 1), problem: overQuota, detail: "versions of policies"},
		} {
			e.method, e.path, e.header = "POST", "/retry-policies", http.Header{"X-Tenant": {"small"}}
			o.do(e)
		}
		for n := range 100 {
			post("small", fmt.Sprint(n), "", exchange{status: http.StatusAccepted})
		}
		if n := o.store.counted.Load(); n > 4 {
			t.Errorf("the tasks were counted %d times", n)
		}
		post("small", "100", "", exchange{problem: overQuota, detail: "has 100 tasks"})
		post("small", "7", "", exchange{status: http.StatusOK})
		for n := range 3 {
			post("other", fmt.Sprint(n), strings.Repeat("a", smallBody+1), exchange{status: http.StatusAccepted})
		}
		post("other", "3", strings.Repeat("a", smallBody+1), exchange{problem: overQuota, detail: "bytes in bodies"})
		post("other", "3", strings.Repeat("a", smallBody), exchange{status: http.StatusAccepted})
		for n := range 200 {
			post("large", fmt.Sprint(n), "", exchange{status: http.StatusAccepted})
		}
		post("large", "200", "", exchange{problem: overQuota, detail: "it may have 200"})
		claimed, err := o.store.Claim(t.Context(), []int64{1}, time.Now(), 0)
		must(t, err)
		must(t, o.store.Settle(t.Context(), []Outcome{ended(claimed[0], Succeeded, 200)}))
		time.Sleep(recountFull)
		post("small", "100", "", exchange{status: http.StatusAccepted})
		post("small", "101", "", exchange{problem: overQuota})
	})
}

// TestAttackDrip lets three tenants send as many large bodies as they may, one
// byte a second. A fourth tenant must still be able to send a body.
func TestAttackDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.policy("tenant-0", "tenant-1", "tenant-2", "tenant-3")
		here := &pipe{conns: make(chan net.Conn)}
		server := web.HTTP(o.handler, slog.New(slog.DiscardHandler))
		ended := make(chan error)
		go func() { ended <- server.Serve(here) }()
		body := taskBody(`"body": "` + strings.Repeat("a", smallRequest+1000) + `"`)
		connect := func() net.Conn {
			ours, theirs := net.Pipe()
			here.conns <- theirs
			return ours
		}
		send := func(c net.Conn, tenant string, sent int) error {
			_, err := fmt.Fprintf(c, "POST /retry-tasks HTTP/1.1\r\nHost: localhost\r\nX-Tenant: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", tenant, len(body), body[:sent])
			return err
		}
		var dripping sync.WaitGroup
		stop := make(chan struct{})
		for n := range 3 * mostLarge {
			c := connect()
			dripping.Go(func() { _, _ = io.Copy(io.Discard, c) })
			dripping.Go(func() {
				defer c.Close()
				err := send(c, fmt.Sprint("tenant-", max(n-1, 0)%3), smallRequest+1) // the first one takes two places
				for next := smallRequest + 1; err == nil && next < len(body)-1; next++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Second):
						_, err = c.Write([]byte(body[next : next+1]))
					}
				}
			})
			synctest.Wait()
		}
		if o.large.left() > 0 {
			t.Errorf("%d places are left", o.large.left())
		}
		for n := range 5 {
			start := time.Now()
			c := connect()
			dripping.Go(func() { _ = send(c, "tenant-3", len(body)) })
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 202" && n == 0 || string(answer) != "HTTP/1.1 200" && n > 0 {
				t.Errorf("the fourth tenant is answered with %q, %v after %v", answer, err, time.Since(start))
			}
			_ = c.Close()
		}
		close(stop)
		dripping.Wait()
		must(t, server.Close())
		<-ended
	})
}
