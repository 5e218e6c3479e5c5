package service

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// transactions notes what was done together, each for a second.
type transactions struct {
	done [][]int
	fail func(items []int) error
}

func (d *transactions) do(ctx context.Context, items []int) error {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := d.fail(items); err != nil {
		return err
	}
	d.done = append(d.done, items)
	return nil
}

func TestGroup(t *testing.T) {
	broken, refused := errors.New("connection lost"), errors.New("no such key")
	tests := []struct {
		name  string
		fail  func(items []int) error
		done  [][]int
		wrong map[int]error
	}{
		{"all is well", func([]int) error { return nil }, [][]int{{0}, {1, 2, 4, 5}}, map[int]error{3: context.Canceled}},
		{"one is refused", func(items []int) error {
			if slices.Contains(items, 2) {
				return refused
			}
			return nil
		}, [][]int{{0}, {1}, {4}, {5}}, map[int]error{2: refused, 3: context.Canceled}},
		{"the connection breaks", func(items []int) error {
			if len(items) > 1 {
				return broken
			}
			return nil
		}, [][]int{{0}}, map[int]error{1: broken, 2: broken, 3: context.Canceled, 4: broken, 5: broken}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &transactions{fail: tt.fail}
				g := &group[int]{do: d.do, refused: func(err error) bool { return err == refused }}
				ctx, cancel := context.WithCancel(t.Context())
				errs := make([]error, 6)
				for n := range errs {
					of := t.Context()
					if n == 3 {
						of = ctx
					}
					go func() { errs[n] = g.add(of, n) }()
					synctest.Wait()
				}
				cancel() // while the first is under way
				synctest.Wait()
				if !errors.Is(errs[3], context.Canceled) {
					t.Errorf("a call whose context ended: %v", errs[3])
				}
				g.wait()
				synctest.Wait()
				if !slices.EqualFunc(d.done, tt.done, slices.Equal) {
					t.Errorf("done together: %v, want %v", d.done, tt.done)
				}
				for n, err := range errs {
					if !errors.Is(err, tt.wrong[n]) {
						t.Errorf("call %d: %v, want %v", n, err, tt.wrong[n])
					}
				}
			})
		})
	}
}
