package sqlstore_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/sqlstore"
	"github.com/redrive-go/redrive/idempotency/storetest"
	"github.com/redrive-go/redrive/integration/postgrestest"
)

// place is where a store is. It travels to another process as text.
type place struct{ driver, source, table string }

func (p place) String() string { return strings.Join([]string{p.driver, p.source, p.table}, " ") }

func (p place) open() (*sql.DB, *sqlstore.Store, error) {
	db, err := sql.Open(p.driver, p.source)
	if err != nil {
		return nil, nil, err
	}
	dialect := sqlstore.Postgres
	if p.driver == "sqlite" {
		dialect = sqlstore.SQLite
	}
	if strings.Contains(p.source, ":memory:") {
		db.SetMaxOpenConns(1)
	}
	store, err := sqlstore.New(db, dialect, p.table)
	return db, store, err
}

func (p place) mustOpen(t testing.TB) (*sql.DB, *sqlstore.Store) {
	t.Helper()
	db, store, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, store
}

func TestMain(m *testing.M) {
	storetest.Victim(func(address string) (idempotency.Store, error) {
		parts := strings.Split(address, " ")
		_, store, err := place{parts[0], parts[1], parts[2]}.open()
		return store, err
	})
	code := m.Run()
	postgrestest.Stop()
	os.Exit(code)
}

func sqliteFile(t testing.TB) place {
	return place{"sqlite", "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "keys.db")) + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_txlock=immediate", ""}
}

func postgres(t testing.TB) place {
	t.Helper()
	return place{"pgx", postgrestest.URL(t), fmt.Sprintf("redrive_test_%x", rand.Uint64())}
}

// create makes the table of p, and drops it in the end.
func create(t testing.TB, p place) (*sql.DB, *sqlstore.Store) {
	t.Helper()
	db, store := p.mustOpen(t)
	if err := store.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.driver == "pgx" {
		t.Cleanup(func() {
			if _, err := db.Exec("drop table " + p.table); err != nil {
				t.Error(err)
			}
		})
	}
	return db, store
}

func harness(where func(testing.TB) place) storetest.Harness {
	var p place
	return storetest.Harness{
		Open: func(t testing.TB) idempotency.Store {
			p = where(t)
			_, store := create(t, p)
			return store
		},
		Again: func(t testing.TB, _ idempotency.Store) idempotency.Store {
			_, store := p.mustOpen(t)
			return store
		},
		Address: func(testing.TB, idempotency.Store) string { return p.String() },
	}
}

func TestStoreOnSQLiteFile(t *testing.T) { storetest.Run(t, harness(sqliteFile)) }

func TestStoreOnSQLiteMemory(t *testing.T) {
	h := harness(func(testing.TB) place { return place{"sqlite", ":memory:", "keys"} })
	h.Again, h.Address = nil, nil
	storetest.Run(t, h)
}

func TestStoreOnPostgres(t *testing.T) {
	postgres(t)
	storetest.Run(t, harness(postgres))
}

// onBoth runs a test on SQLite and, where there is one, on Postgres.
func onBoth(t *testing.T, test func(*testing.T, place)) {
	t.Run("sqlite", func(t *testing.T) { test(t, sqliteFile(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, postgres(t)) })
}

func TestSweep(t *testing.T) {
	onBoth(t, func(t *testing.T, p place) {
		db, store := create(t, p)
		table := p.table
		if table == "" {
			table = "redrive_idempotency"
		}
		const ended, lasting = 5, 3
		for i := range ended + lasting {
			lease := time.Hour
			if i < ended {
				lease = time.Millisecond
			}
			c := idempotency.Claim{Key: fmt.Sprintf("key %d", i), Token: fmt.Sprintf("token%d", i)}
			if _, err := store.Begin(t.Context(), c, lease); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(20 * time.Millisecond)
		for _, want := range []int{4, 1, 0} {
			if n, err := store.Sweep(t.Context(), 4); err != nil || n != want {
				t.Errorf("Sweep = %d, %v, want %d", n, err, want)
			}
		}
		var rows int
		if err := db.QueryRow("select count(*) from " + table).Scan(&rows); err != nil || rows != lasting {
			t.Errorf("%d rows are left, %v, want %d", rows, err, lasting)
		}
	})
}

// TestCreateTable lets workers that start together create the table.
func TestCreateTable(t *testing.T) {
	onBoth(t, func(t *testing.T, p place) {
		create(t, p)
		if p.driver == "pgx" {
			p.table += "_2"
			db, _ := p.mustOpen(t)
			t.Cleanup(func() { _, _ = db.Exec("drop table if exists " + p.table) })
		}
		var wg sync.WaitGroup
		for range 6 {
			_, store := p.mustOpen(t)
			wg.Go(func() {
				if err := store.CreateTable(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestTableInSchema(t *testing.T) {
	onBoth(t, func(t *testing.T, p place) {
		p.table = "main.keys"
		if p.driver == "pgx" {
			p.table = fmt.Sprintf("public.redrive_test_%x", rand.Uint64())
		}
		_, store := create(t, p)
		if r, err := store.Begin(t.Context(), idempotency.Claim{Key: "key", Token: "a"}, time.Hour); err != nil || r.State != idempotency.Claimed {
			t.Errorf("Begin = %+v, %v", r, err)
		}
	})
}

func TestFaults(t *testing.T) {
	_, store := sqliteFile(t).mustOpen(t) // has no table
	c := idempotency.Claim{Key: "key", Token: "a"}
	record, err := store.Begin(t.Context(), c, time.Minute)
	if record.State != idempotency.InProgress {
		t.Errorf("Begin says %q, want the zero record", record.State)
	}
	_, swept := store.Sweep(t.Context(), 1)
	for call, err := range map[string]error{"Begin": err, "Complete": store.Complete(t.Context(), c, time.Minute), "Release": store.Release(t.Context(), c), "Sweep": swept} {
		if err == nil || !strings.Contains(err.Error(), "no such table") {
			t.Errorf("%s: %v, want that there is no table", call, err)
		}
	}
}
