package main

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{last: make(map[string]time.Time)}
		if got := c.pause(); got != 0 {
			t.Errorf("pause before anything = %v, want 0", got)
		}
		c.tick("a")
		c.tick("b")
		time.Sleep(3 * time.Second)
		c.tick("a")
		time.Sleep(2 * time.Second)
		c.tick("a")
		c.tick("b")
		if got := c.pause(); got != 5*time.Second {
			t.Errorf("pause = %v, want 5s, that of b", got)
		}
		time.Sleep(time.Second)
		c.tick("b")
		time.Sleep(time.Second)
		if got := c.pause(); got != 2*time.Second {
			t.Errorf("pause = %v, want 2s, that of a, which lasts", got)
		}
	})
}

func TestSplit(t *testing.T) {
	got := split([]string{"a", "b"})
	if len(got) != 2 || !slices.Equal(got[0], []string{"a"}) || !slices.Equal(got[1], []string{"b"}) {
		t.Errorf("split = %q", got)
	}
}
