package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/store"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, []byte(text), mode))
		return file
	}
	tests := []struct {
		name, url string
		is        error
		says      string
	}{
		{"another scheme", "mysql://host/db", nil, "postgres://"},
		{"no name", "", nil, "keeps nothing"},
		{"memory", ":memory:", nil, "keeps nothing"},
		{"no folder", filepath.Join(dir, "none", "letters.db"), nil, "no such file"},
		{"a folder", dir, nil, "directory"},
		{"not a database", write("letter.txt", strings.Repeat("Dear Sir or Madam, ", 1000), 0o600), store.ErrDamaged, "restore a copy"},
		{"readable by others", write("open.db", "", 0o644), nil, "chmod 600"},
		{"no address", "postgres://user:secret@:port/db", nil, "postgres"},
		{"nobody there", "postgres://user:secret@127.0.0.1:1/db?connect_timeout=1", nil, "user@127.0.0.1/db"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.name == "readable by others" {
				t.Skip("Windows has no such modes")
			}
			_, err := store.Open(t.Context(), tt.url)
			if fails(t, err, tt.says); tt.is != nil {
				fails(t, err, tt.is)
			}
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestNewFile(t *testing.T) {
	for _, name := range []string{"letters.db", "with space?and%23#.db"} {
		file := filepath.Join(t.TempDir(), name)
		for _, url := range []string{file, "sqlite:" + file, "sqlite://" + file} {
			must(t, errOf(open(t, url).Collect(t.Context(), noon, []store.Collected{collected(entry(1))})))
		}
		found, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
		for _, f := range found {
			info, err := os.Stat(f)
			if err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
				t.Errorf("%s has the mode %v, %v", f, info.Mode(), err)
			}
		}
		if _, missing := os.Stat(file); err != nil || missing != nil || len(found) != 3 {
			t.Errorf("the files are %q, %v, %v", found, err, missing)
		}
	}
}

func TestTryWrite(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		must(t, s.TryWrite(t.Context()))
		must(t, s.Close())
		if s.TryWrite(t.Context()) == nil {
			t.Error("a store that is closed was written")
		}
	})
}

func TestNewer(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		collect(t, s, noon, collected(entry(1)))
		must(t, errOf(raw(t, url).Exec("update meta set version = 99")))
		_, err := store.Open(t.Context(), url)
		for _, want := range []any{store.ErrNewer, "version 99", "knows 2"} {
			fails(t, err, want)
		}
		wantState(t, s, 1, store.StateCollected)
	})
}

// TestOlder opens stores that earlier versions wrote: the dumps have the second
// schema, and the first one with another index.
func TestOlder(t *testing.T) {
	first := []string{"drop index letters_cluster", "create index letters_cluster on letters (cluster, state, at, id)", "update meta set version = 1"}
	for version, older := range map[int][]string{1: first, 2: nil} {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			onBoth(t, func(t *testing.T, url string) {
				db, statements := raw(t, url), []string{goldentest.Read(t, "testdata/older/sqlite.sql")}
				if _, schema, found := strings.Cut(url, "search_path="); found {
					schema, _, _ = strings.Cut(schema, "&")
					statements = []string{"create schema " + schema, goldentest.Read(t, "testdata/older/postgres.sql")}
				} else {
					must(t, os.WriteFile(url, nil, 0o600))
				}
				for _, statement := range append(statements, older...) {
					must(t, errOf(db.Exec(statement)))
				}
				s := open(t, url)
				golden := ""
				for _, v := range everything(t, s) {
					golden += fmt.Sprintf("%+v\n", v)
				}
				goldentest.File(t, "testdata/older/everything.txt", golden)
				same(t, "letters by their error", idsOf(list(t, s, store.Filter{Cluster: 2}, 10)), []int64{2, 8, 7, 6, 5, 4, 3})
				gives(t, 0)(s.Collect(t.Context(), noon, []store.Collected{collected(entry(3))})) // it knows that one
				var now int
				must(t, db.QueryRow("select version from meta").Scan(&now))
				same(t, "version", now, 2)
			})
		})
	}
}

// TestDamaged overwrites pages in the middle of a file.
func TestDamaged(t *testing.T) {
	file := sqliteFile(t)
	s, err := store.Open(t.Context(), file)
	must(t, err)
	for n := range 20 {
		collect(t, s, noon, collected(entry(n)))
	}
	must(t, s.Close()) // which moves everything from the log into the file
	text, err := os.ReadFile(file)
	if err != nil || len(text) < 100<<10 {
		t.Fatalf("the file has %d bytes, %v", len(text), err)
	}
	for i := 20 << 10; i < len(text); i++ {
		text[i] = 0xaa
	}
	must(t, os.WriteFile(file, text, 0o600))
	s, err = store.Open(t.Context(), file)
	if err == nil {
		_, err = s.Collect(t.Context(), noon, []store.Collected{collected(entry(1000))})
		defer s.Close()
	}
	fails(t, err, store.ErrDamaged)
}

// TestLocked has another process keep the store for itself.
func TestLocked(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		t.Parallel() // each waits for ten seconds
		s := open(t, url)
		c, err := raw(t, url).Conn(t.Context())
		must(t, err)
		hold := []string{"begin immediate"}
		if strings.HasPrefix(url, "postgres") {
			hold = []string{"begin", "lock table ids in exclusive mode"}
		}
		for _, statement := range hold {
			must(t, errOf(c.ExecContext(t.Context(), statement)))
		}
		fails(t, errOf(s.Collect(t.Context(), noon, []store.Collected{collected(entry(1))})), store.ErrLocked)
		same(t, "letters", len(list(t, s, store.Filter{}, 10)), 0)
		must(t, errOf(c.ExecContext(t.Context(), "rollback")))
		collect(t, s, noon, collected(entry(1)))
	})
}

func TestCancelledContext(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		fails(t, errOf(s.Collect(ctx, noon, []store.Collected{collected(entry(1))})), context.Canceled)
		fails(t, errOf(s.Letters(ctx, store.Filter{}, store.Page{})), context.Canceled)
		collect(t, s, noon, collected(entry(1)))
	})
}

// TestCancelledWhileReading ends the context at any moment of a long answer.
func TestCancelledWhileReading(t *testing.T) {
	s := open(t, sqliteFile(t))
	for range 100 {
		running(t, s, 0)
	}
	begin := time.Now()
	must(t, errOf(s.Jobs(t.Context(), store.Page{})))
	const tries = 100
	took := time.Since(begin)
	for n := range tries {
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(n)/tries)
		if _, err := s.Jobs(ctx, store.Page{}); err != nil && ctx.Err() == nil || errors.Is(err, store.ErrDamaged) {
			t.Errorf("Jobs: %v, want a list or the end of the context", err)
		}
		cancel()
	}
}

// TestClockJumpsBack shows that order and leases do not need a clock that runs.
func TestClockJumpsBack(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 2)
		past := noon.Add(-24 * time.Hour)
		collect(t, s, past, collected(entry(5)), collected(entry(6)))
		same(t, "collected at", letter(t, s, 3).CollectedAt, past)
		queue(t, s, l, 10)
		fails(t, errOf(s.Lease(t.Context(), past, l.Job, "process 2", time.Minute)), store.ErrLeased)
		claimed, err := s.Claim(t.Context(), past, l, 10)
		must(t, err)
		same(t, "claimed", sendingIDs(claimed), []int64{1, 2})
		history, err := s.History(t.Context(), 1)
		must(t, err)
		same(t, "last in the history", history[len(history)-1].To, store.StateSending) // in the order in which it happened
	})
}

// TestTwoProcesses collects the same letters into one store twice.
func TestTwoProcesses(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		var added atomic.Int64
		errs := make([]error, 2)
		for i := range errs {
			wg.Go(func() {
				var s *store.Store
				if s, errs[i] = store.Open(t.Context(), url); errs[i] != nil { // both create it
					return
				}
				defer s.Close()
				for n := 0; n < 50 && errs[i] == nil; n++ {
					var new int
					new, errs[i] = s.Collect(t.Context(), noon, pair(n))
					added.Add(int64(new))
				}
			})
		}
		wg.Wait()
		must(t, errors.Join(errs...))
		same(t, "letters", len(list(t, open(t, url), store.Filter{}, 1000)), 100)
		same(t, "letters that the two say they added", added.Load(), 100)
		recount(t, raw(t, url), "topic", "topics")
	})
}

// pair is the n-th of those that are collected together.
func pair(n int) []store.Collected {
	return []store.Collected{collected(entry(2 * n)), collected(entry(2*n + 1))}
}

// victim is the variable by which this program learns that it is a process which
// collects letters into a store until it is killed.
const victim = "REDRIVE_STORE_VICTIM"

func beVictim(url string) {
	s, err := store.Open(context.Background(), url)
	for n := 0; err == nil; n++ {
		if _, err = s.Collect(context.Background(), noon, pair(n)); err == nil {
			fmt.Println(n)
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// TestKilled kills a process that collects. What it was told is durable is
// there, and the store goes on at once.
func TestKilled(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		for range 3 {
			last := killVictim(t, url)
			letters := list(t, s, store.Filter{}, 1000)
			if len(letters) < 2*(last+1) || len(letters)%2 != 0 {
				t.Errorf("%d letters, after %d pairs were acknowledged", len(letters), last+1)
			}
			gives(t, 0)(s.Collect(t.Context(), noon, pair(last))) // they are known
			recount(t, raw(t, url), "cluster", "clusters")
		}
	})
}

// killVictim returns the number of the last pair that a process said it had
// collected before it was killed.
func killVictim(t *testing.T, url string) (last int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victim+"="+url)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatalf("the process says %q", lines.Text())
		}
		if last%20 == 19 {
			must(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it was killed
	return last
}

// TestPostgresKilled kills the server while letters are collected, and repeats
// what failed: none is lost, none is there twice.
func TestPostgresKilled(t *testing.T) {
	server := postgrestest.New(t)
	url := postgrestest.Schema(t, server.URL)
	s := open(t, url)
	n := 0
	for range 3 {
		begun, failed := make(chan struct{}), make(chan error, 1)
		go func() {
			for start := n; ; n++ {
				if n == start+3 {
					close(begun)
				}
				if _, err := s.Collect(t.Context(), noon, pair(n)); err != nil {
					failed <- err
					return
				}
			}
		}()
		select {
		case <-begun:
		case err := <-failed:
			t.Fatal(err)
		}
		err := server.Kill()
		<-failed
		must(t, errors.Join(err, server.Restart()))
		must(t, errOf(s.Collect(t.Context(), noon, pair(n))))
		n++
	}
	same(t, "letters", len(list(t, s, store.Filter{}, 1000)), 2*n)
	recount(t, raw(t, url), "topic", "topics")
}
