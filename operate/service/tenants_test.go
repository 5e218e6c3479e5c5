package service

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

func hangs(ctx context.Context, _ *http.Request) (*http.Response, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// poisoned answers tasks with the header X-Poison one way, and all others with 200.
func poisoned(answer func(context.Context, *http.Request) (*http.Response, error)) func(context.Context, *http.Request) (*http.Response, error) {
	return func(ctx context.Context, req *http.Request) (*http.Response, error) {
		if req.Header.Get("X-Poison") != "" {
			return answer(ctx, req)
		}
		return answered(200), nil
	}
}

// TestNoTenantHoldsUpAnother has one tenant, or some, in trouble of all kinds, and one
// with a task a second, the same hosts among its targets: each is called in time.
func TestNoTenantHoldsUpAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		tenants, hosts, tasks int
		answer                func(context.Context, *http.Request) (*http.Response, error)
		schedule              Schedule // nil is a Heap
		within                time.Duration
	}{
		"its path hangs":                      {1, 1, 1000, poisoned(hangs), nil, time.Second},
		"its path fails":                      {1, 1, 1000, poisoned(answers(0, always(500))), nil, time.Second},
		"it floods a target":                  {1, 1, 2000, poisoned(answers(500*time.Millisecond, always(200))), nil, time.Second},
		"it floods many targets":              {1, 300, 3000, poisoned(answers(500*time.Millisecond, always(200))), nil, time.Second},
		"its 4 targets hang":                  {1, 4, 1000, poisoned(hangs), nil, time.Second},
		"its 300 targets hang":                {1, 300, 1000, poisoned(hangs), nil, time.Second},
		"all targets of three tenants hang":   {3, 300, 600, poisoned(hangs), nil, time.Second},
		"all targets of ten tenants hang":     {10, 30, 120, poisoned(hangs), nil, time.Second},
		"300 targets hang, and Redis is away": {1, 300, 1000, poisoned(hangs), broken{}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				w.config.Schedule = tt.schedule
				host := func(i int) string { return fmt.Sprintf("host%d.example", i%tt.hosts) }
				for i := range tt.hosts {
					w.targets[host(i)] = tt.answer
				}
				for i := range tt.tasks {
					for n := range tt.tenants {
						w.add(fmt.Sprint("bad", n), host(i), 0).Headers = map[string]string{"X-Poison": "1"}
					}
				}
				s, stop := w.start()
				w.pass(2 * time.Second)
				var good []*fakeRow
				for i := range 60 {
					r := w.add("good", host(i), 0)
					now := w.task(r) // the service may have taken it already
					_ = s.Scheduled(w.Context(), Due{now.Row, now.Tenant, now.NextAttemptAt})
					good = append(good, r)
					w.pass(time.Second)
				}
				w.pass(tt.within)
				stop()
				late, latest := 0, time.Duration(0)
				for _, r := range good {
					wait := time.Hour
					if calls := w.callsOf(r); len(calls) > 0 {
						wait = calls[0].Sub(r.CreatedAt)
					}
					if latest = max(latest, wait); wait > tt.within {
						late++
					}
				}
				if t.Logf("the latest after %v, %d calls in all", latest, w.made()); late > 0 {
					t.Errorf("%d of 60 tasks were not called within %v, the latest after %v", late, tt.within, latest)
				}
			})
		})
	}
}

// TestOneTenantAlone has one tenant flood many targets: what it has not in hand waits
// in its order, and costs no writes.
func TestOneTenantAlone(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		var rows []*fakeRow
		for i := range 5000 {
			host := fmt.Sprintf("host%d.example", i%300)
			w.targets[host] = answers(200*time.Millisecond, always(200))
			rows = append(rows, w.add("a", host, time.Duration(i-5000)*time.Millisecond))
		}
		_, stop := w.start()
		w.within(5000/48*200*time.Millisecond+time.Second, "a", Succeeded, 5000)
		stop()
		w.calledOnce()
		slices.SortStableFunc(rows, func(a, b *fakeRow) int { return w.callsOf(a)[0].Compare(w.callsOf(b)[0]) })
		for i, r := range rows {
			if off := i - int(r.Row-1); off > 64*mostInHand || off < -64*mostInHand {
				t.Fatalf("the task that was due as number %d was called as number %d", r.Row-1, i)
			}
		}
		for _, r := range rows {
			if r.Version != 3 { // claimed and settled
				t.Fatalf("a task was written %d times, want 2", r.Version-1)
			}
		}
	})
}
