package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/internal/web"
)

// TestUsage tests that Usage counts only the tasks, bodies and policies of one
// tenant.
func TestUsage(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		kept := func(want Quota) {
			t.Helper()
			if got, err := s.Usage(t.Context(), "acme"); err != nil || got != want {
				t.Errorf("Usage = %+v, %v, want %+v", got, err, want)
			}
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
// tasks are accepted after old ones have ended.
func TestQuotaOfATenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.api.Quotas = Quotas{All: Quota{Tasks: 100, Bytes: 3 * (smallBody + 1)}, Of: map[string]Quota{"large": {Tasks: 200}}}
		post := func(tenant, key, body string, e exchange) {
			t.Helper()
			e.method, e.path, e.header = "POST", "/retry-tasks", http.Header{"X-Tenant": {tenant}}
			e.body = taskBody(fmt.Sprintf(`"idempotencyKey": %q, "body": %q`, key, body))
			o.do(e)
		}
		for _, tenant := range []string{"small", "other", "large"} {
			o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, header: http.Header{"X-Tenant": {tenant}}, status: http.StatusOK})
		}
		for n := range 100 {
			post("small", fmt.Sprint(n), "", exchange{status: http.StatusAccepted})
		}
		if o.store.counted > 4 {
			t.Errorf("the tasks were counted %d times", o.store.counted)
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
		for id, task := range o.store.tasks {
			if task.Tenant == "small" {
				task.Status = Succeeded
				o.store.tasks[id] = task
				break
			}
		}
		time.Sleep(recountFull)
		post("small", "100", "", exchange{status: http.StatusAccepted})
		post("small", "101", "", exchange{problem: overQuota})
	})
}

// TestSamePolicyTakesNoQuota sends a policy again and again. It makes no new
// version, so that another policy still fits into the quota.
func TestSamePolicyTakesNoQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.api.Quotas = Quotas{All: Quota{Policies: 2}}
		put := func(body string, e exchange) {
			t.Helper()
			e.method, e.path, e.body, e.header = "POST", "/retry-policies", body, http.Header{"X-Tenant": {"small"}}
			o.do(e)
		}
		for range 5 {
			put(policyBody, exchange{status: http.StatusOK})
		}
		put(strings.Replace(policyBody, "quick", "second", 1), exchange{status: http.StatusOK})
		put(strings.Replace(policyBody, "quick", "third", 1), exchange{problem: overQuota, detail: "versions of policies"})
	})
}

// TestAttackDrip lets three tenants send as many large bodies as they may, one
// byte a second. A fourth tenant must still be able to send a body.
func TestAttackDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		for n := range 4 {
			o.store.policies[[2]string{fmt.Sprint("tenant-", n), "quick"}] = []Policy{{ID: "quick", Version: 1}}
		}
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
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
}
