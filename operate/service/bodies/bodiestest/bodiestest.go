// Package bodiestest checks what a store of bodies promises.
package bodiestest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies"
)

// Run checks stores that open makes, each of them empty.
func Run(t *testing.T, open func(t *testing.T) bodies.Store) {
	t.Run("keeps", func(t *testing.T) { keeps(t, open(t)) })
	t.Run("knows its own names", func(t *testing.T) { knows(t, open(t)) })
	t.Run("refuses what is too large", func(t *testing.T) { refuses(t, open(t)) })
	t.Run("reads without its context", func(t *testing.T) { readsOn(t, open(t)) })
	t.Run("sweeps", func(t *testing.T) { sweeps(t, open(t)) })
	t.Run("sweeps one of many", func(t *testing.T) { sweepsMany(t, open(t)) })
	t.Run("sweeps beside others", func(t *testing.T) { sweepsBeside(t, open(t)) })
}

func put(t *testing.T, s bodies.Store, tenant, body string) string {
	t.Helper()
	ref, err := s.Put(t.Context(), tenant, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// has reports whether a body is there, which must be as it was put.
func has(t *testing.T, s bodies.Store, ref, want string) bool {
	t.Helper()
	body, size, err := s.Open(t.Context(), ref)
	if errors.Is(err, bodies.ErrNotFound) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil || string(text) != want || size != int64(len(want)) {
		t.Errorf("%s is %.100q of %d bytes, error %v, want %.100q", ref, text, size, err, want)
	}
	return true
}

func keeps(t *testing.T, s bodies.Store) {
	for _, body := range []string{"", "a", strings.Repeat("\x00\xff", 1<<19)} {
		ref, other := put(t, s, "shop", body), put(t, s, "bank", body)
		if again := put(t, s, "shop", body); again != ref || other == ref {
			t.Errorf("the same body is %s and %s, that of another tenant %s", ref, again, other)
		}
		if !has(t, s, ref, body) || !has(t, s, other, body) {
			t.Errorf("%s or %s is lost", ref, other)
		}
	}
}

func knows(t *testing.T, s bodies.Store) {
	ref := put(t, s, "shop", "a")
	for _, name := range []string{"", "shop", "shop/", "/" + ref, ref + "0", ref[:len(ref)-1], ref + "/", "bank/" + ref[5:], "../" + ref, "./" + ref[5:], "shop/../" + ref, strings.ToUpper(ref), "shop/" + strings.Repeat("0", 64), "shop/" + strings.Repeat("z", 64)} {
		body, _, err := s.Open(t.Context(), name)
		if err == nil {
			_ = body.Close()
		}
		if kept := s.Keep(t.Context(), name); !errors.Is(err, bodies.ErrNotFound) || !errors.Is(kept, bodies.ErrNotFound) {
			t.Errorf("%q: %v, %v, want ErrNotFound", name, err, kept)
		}
	}
}

func refuses(t *testing.T, s bodies.Store) {
	ref := put(t, s, "shop", strings.Repeat("a", bodies.MaxSize+1))
	body, _, err := s.Open(t.Context(), ref)
	if err == nil {
		_ = body.Close()
	}
	if kept := s.Keep(t.Context(), ref); !errors.Is(err, bodies.ErrTooLarge) || !errors.Is(kept, bodies.ErrTooLarge) {
		t.Errorf("%v, %v, want ErrTooLarge", err, kept)
	}
}

// readsOn reads a body when the context is over that it was opened with.
func readsOn(t *testing.T, s bodies.Store) {
	ref := put(t, s, "shop", strings.Repeat("a", 8<<20))
	ctx, cancel := context.WithCancel(t.Context())
	body, size, err := s.Open(ctx, ref)
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, body)
	if err = errors.Join(err, body.Close()); err != nil || n != size {
		t.Errorf("%d of %d bytes, error %v", n, size, err)
	}
	if body, _, err := s.Open(ctx, ref); err == nil {
		_ = body.Close()
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// after is a time that everything was put before.
func after() time.Time { return time.Now().Add(time.Hour) }

func named(used ...string) bodies.Named {
	return func(_ context.Context, refs []string) (list []string, err error) {
		for _, ref := range refs {
			if slices.Contains(used, ref) {
				list = append(list, ref)
			}
		}
		return list, nil
	}
}

func sweeps(t *testing.T, s bodies.Store) {
	used, unused := put(t, s, "shop", "used"), put(t, s, "shop", "unused")
	sweep := func(before time.Time, names bodies.Named, want int) {
		t.Helper()
		if n, err := s.Sweep(t.Context(), before, names); n != want || err != nil {
			t.Errorf("%d deleted, error %v, want %d", n, err, want)
		}
	}
	sweep(time.Now().Add(-time.Hour), named(), 0)
	down := errors.New("down")
	if _, err := s.Sweep(t.Context(), after(), func(context.Context, []string) ([]string, error) { return nil, down }); !errors.Is(err, down) {
		t.Errorf("error %v, want that of the store of tasks", err)
	}
	if !has(t, s, used, "used") || !has(t, s, unused, "unused") {
		t.Fatal("what is new, or may be named, was deleted")
	}
	sweep(after(), named(used), 1)
	if !has(t, s, used, "used") || has(t, s, unused, "unused") {
		t.Error("what is named was deleted, or what is not was left")
	}
	put(t, s, "shop", "used")
	if err := s.Keep(t.Context(), used); err != nil {
		t.Fatal(err)
	}
	sweep(after(), named(used), 2) // all of it but one
	if !has(t, s, used, "used") {
		t.Error("what is named was deleted")
	}
	sweep(after(), named(), 1)
	if has(t, s, used, "used") {
		t.Error("what is no longer named was left")
	}
}

// sweepsMany asks for more names than at once.
func sweepsMany(t *testing.T, s bodies.Store) {
	const many = 450
	var used []string
	for i := range many {
		ref := put(t, s, "shop", fmt.Sprint(i))
		if i%3 == 0 {
			used = append(used, ref)
		}
	}
	if n, err := s.Sweep(t.Context(), after(), named(used...)); n != many-len(used) || err != nil {
		t.Errorf("%d deleted, error %v, want %d", n, err, many-len(used))
	}
	for i, ref := range used {
		if !has(t, s, ref, fmt.Sprint(3*i)) {
			t.Errorf("%s was deleted", ref)
		}
	}
}

// sweepsBeside puts and keeps a body again and again while it is swept for old. What
// is put while names are asked for is not among them, and stays.
func sweepsBeside(t *testing.T, s bodies.Store) {
	ref := put(t, s, "shop", "body")
	for round := range 20 {
		var putting sync.WaitGroup
		none := func(context.Context, []string) ([]string, error) { // a task names it just after it was looked for
			putting.Go(func() {
				if round%2 == 0 {
					put(t, s, "shop", "body")
				} else if err := s.Keep(t.Context(), ref); err != nil && (round%4 < 2 || !errors.Is(err, bodies.ErrNotFound)) {
					t.Error(err) // once all is deleted, there is nothing to keep
				}
			})
			if round%4 < 2 {
				putting.Wait()
			}
			return nil, nil
		}
		_, err := s.Sweep(t.Context(), after(), none)
		putting.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if !has(t, s, ref, "body") && (round%2 == 0 || round%4 < 2) {
			t.Fatalf("round %d: a body was deleted that was put after names were asked for", round)
		}
		put(t, s, "shop", "body")
	}
}
